//! The rack daemon of rackpool: serves one rack's memory to the clients of the rack and to other
//! racks.
//!
//! Two threads. The *control plane* (`control`, `link`; tokio) talks to clients that come and
//! go and to the metadata server. The *data plane* (`plane`) is a poll loop that serves request
//! rings and the fabric, and is the only one that changes the rack's metadata.
#![forbid(unsafe_code)]

mod control;
mod descriptors;
mod link;
mod options;
mod plane;
mod process;
mod rack;
mod region;
mod run;
mod slab;

pub use options::Options;
pub use run::run;
