//! `rackpool-kv`: serves the hash table in the pool over the Redis protocol.
//!
//! | module | holds |
//! |---|---|
//! | [`resp`] | the protocol |
//! | [`commands`] | the commands |
//! | [`store`], [`collections`] | a thread's access to the data |
//! | [`texts`] | strings of any length |
//! | [`values`] | the encoding of values in the table |
//! | [`large`] | strings that are too long for an entry |
//! | [`server`] | connections and threads |
//! | [`activity`] | a connection's fields in `CLIENT LIST` |
//! | [`client_memory`], [`auth_throttle`] | limits on memory of clients and guesses of passwords |
//! | [`memory_limit`] | the limit of the entries' memory, and eviction |
//! | [`watches`] | the keys that `WATCH` observes |
//! | [`sweep`] | removal of expired keys, and of maps and strings without a key |
//!
//! `docs/design/kv-service.md` describes the layout of the data and the differences from Redis.
#![forbid(unsafe_code)]

pub mod activity;
pub mod auth_throttle;
pub mod client_memory;
pub mod collections;
pub mod commands;
pub mod failure;
mod glob;
pub mod large;
pub mod memory_limit;
mod metrics;
mod number;
mod open;
pub mod resp;
pub mod server;
mod service_lifecycle;
mod service_options;
pub mod session;
pub mod shared;
pub mod store;
pub mod sweep;
pub mod texts;
pub mod values;
pub mod watches;

pub use service_lifecycle::run;
pub use service_options::ServiceOptions;
