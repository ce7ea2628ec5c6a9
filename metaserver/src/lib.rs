//! The metadata server of rackpool: a thin shell around [`rackpool_proto::metadata::Machine`].
//!
//! | module | does |
//! |---|---|
//! | `server` | drives the machine: hands it events, carries out its actions |
//! | `connection`, `listener` | turn bytes into requests and answers into bytes |
//! | `store` | keeps the durable records in one redb file |
//! | `options`, `start` | command line, and the order in which the parts come up |
//!
//! `docs/design/metadata.md` tells what is durable when, and what happens at each crash.
#![forbid(unsafe_code)]

mod address_file;
mod connection;
mod listener;
mod options;
mod parent;
mod server;
mod start;
mod store;

pub use options::Options;
pub use start::{StartError, serve};
pub use store::{Store, StoreError};
