//! The metadata server of rackpool: a thin shell around
//! [`rackpool_proto::metadata::MetadataMachine`].
//!
//! | module | does |
//! |---|---|
//! | `server` | drives the machine: passes it events, executes its actions |
//! | `listener`, `admission`, `admission_limiter`, `limits` | admit peers, and bound unknown ones |
//! | `rejection_log` | logs the rejected connections, a few lines at a time |
//! | `connection`, `permission` | turn bytes into permitted requests, and answers into bytes |
//! | `store` | keeps the durable records in one redb file |
//! | `metrics` | metrics for Prometheus |
//! | `options`, `start` | command line, and the order in which the parts come up |
//!
//! `docs/design/metadata.md` describes what is durable when, and what happens at each crash;
//! `docs/design/access.md` describes authentication.
#![forbid(unsafe_code)]

mod address_file;
mod admission;
mod admission_limiter;
mod connection;
mod limits;
mod listener;
mod metadata_server_options;
mod metrics;
mod parent_process;
mod permission;
mod rejection_log;
mod server;
mod start;
mod store;

pub use metadata_server_options::MetadataServerOptions;
pub use start::{StartError, serve};
pub use store::{Store, StoreError};
