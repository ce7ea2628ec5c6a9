//! The metadata server of rackpool: a thin shell around [`rackpool_proto::metadata::Machine`].
//!
//! | module | does |
//! |---|---|
//! | `server` | drives the machine: hands it events, carries out its actions |
//! | `listener`, `admission`, `complaints`, `limits` | let those in who prove who they are, and bound the others |
//! | `connection`, `permission` | turn bytes into requests that may be asked, and answers into bytes |
//! | `store` | keeps the durable records in one redb file |
//! | `metrics` | counts for Prometheus |
//! | `options`, `start` | command line, and the order in which the parts come up |
//!
//! `docs/design/metadata.md` tells what is durable when, and what happens at each crash;
//! `docs/design/access.md` who is let in.
#![forbid(unsafe_code)]

mod address_file;
mod admission;
mod admission_limiter;
mod complaints;
mod connection;
mod limits;
mod listener;
mod metrics;
mod options;
mod parent;
mod permission;
mod server;
mod start;
mod store;

pub use options::Options;
pub use start::{StartError, serve};
pub use store::{Store, StoreError};
