//! The `rackpool` command: starts a pool on this machine, shows it, and measures it.
//!
//! | module | holds |
//! |---|---|
//! | [`cluster`] | a pool on this machine: its processes, started, killed, stopped |
//! | [`commands`] | `up`, `status`, `ycsb`, `demo` |
//! | [`ycsb`] | YCSB's workloads, generators and measurements |
//! | [`report`] | plots and the HTML page |
#![forbid(unsafe_code)]

pub mod cluster;
pub mod commands;
pub mod report;
mod store;
pub mod ycsb;

pub use store::PoolStores;
