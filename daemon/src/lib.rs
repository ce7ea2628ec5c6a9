//! The rack daemon of rackpool: serves one rack's memory to the clients of the rack and to other
//! racks.
//!
//! The daemon has two main threads. The *control plane* (`control`, `link`, `metadata_server`;
//! tokio) serves the sockets of clients and the connection to the metadata server. The *data plane*
//! (`data_plane`) is a poll loop that serves request rings and the fabric. Only the data plane
//! changes the rack's metadata.
#![forbid(unsafe_code)]

mod adoption;
mod client_host;
mod control;
mod daemon_lifecycle;
mod daemon_options;
mod data_plane;
mod descriptors;
mod fabric;
mod frames;
mod link;
mod metadata_connector;
mod metrics;
mod placement;
mod priority;
mod process;
mod processor;
mod rack;
mod region;
mod reserver;
mod slab;
mod spill_folder;
mod swap_options;
#[cfg(feature = "testing")]
pub mod testing;
mod wake_latency;

pub use daemon_lifecycle::run;
pub use daemon_options::DaemonOptions;
pub use placement::{NodeChoice, NodeChoiceError};
pub use swap_options::{SwapOptions, Switch};
