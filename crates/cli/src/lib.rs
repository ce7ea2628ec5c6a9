//! The `rackpool` command: starts a pool on this machine, shows it, and measures it.
//!
//! | module | holds |
//! |---|---|
//! | [`cluster`] | a pool on this machine: its processes, started, killed, stopped |
//! | [`commands`] | `up`, `status`, `top`, `explain`, `credentials`, `ycsb`, `demo` |
//! | [`doctor`] | what this computer has, where it lies and what it costs |
//! | [`heat`] | thresholds of the swap, tried on a recorded trace |
//! | [`rcmp_microbench`] | random accesses to items in pages of all racks: what moving hot pages gains |
//! | [`ycsb`] | YCSB's workloads, generators and measurements |
//! | [`report`] | plots and the HTML page |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod commands;
pub mod doctor;
pub mod heat;
mod metadata;
pub mod rcmp_microbench;
mod recorder;
pub mod report;
mod store;
pub mod ycsb;

pub use metadata::MetadataServer;
pub use recorder::{RecordedPool, Recorder};
pub use store::{Place, PoolStores};
