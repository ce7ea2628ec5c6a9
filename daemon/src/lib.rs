//! The rack daemon of rackpool: serves one rack's memory to the clients of the rack and to other
//! racks.
//!
//! The daemon has two main threads. The *control plane* (`control`, `link`, `metadata_server`;
//! tokio) serves the sockets of clients and the connection to the metadata server. The *data plane*
//! (`data_plane`) is a poll loop that serves request rings and the fabric. Only the data plane
//! changes the rack's metadata.
#![forbid(unsafe_code)]

mod client_host;
mod control;
mod data_plane;
mod descriptors;
mod fabric;
mod frames;
mod link;
mod metadata_server;
mod metrics;
mod options;
mod placement;
mod priority;
mod process;
mod processor;
mod rack;
mod region;
mod reserver;
mod run;
mod slab;
mod swap_options;
#[cfg(feature = "testing")]
pub mod testing;
mod wake_latency;

pub use options::Options;
pub use placement::{NodeChoice, NodeChoiceError};
pub use run::run;
pub use swap_options::{SwapOptions, Switch};
