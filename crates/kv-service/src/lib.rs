//! `rackpool-kv`: the hash table in the pool, for everything that speaks to Redis.
//!
//! | module | holds |
//! |---|---|
//! | [`resp`] | the protocol |
//! | [`commands`] | what can be asked |
//! | [`store`], [`collections`] | how a thread works on the data |
//! | [`values`] | how values that are no strings lie in the table |
//! | [`server`] | connections and threads |
//! | [`activity`] | what others are told of a connection |
//! | [`client_memory`], [`auth_throttle`] | what keeps greedy clients and guessers within bounds |
//! | [`watches`] | which keys transactions depend on |
//! | [`sweep`] | expiry of keys that nobody asks for |
//!
//! `docs/design/kv-service.md` tells what is kept where, and what differs from Redis.
#![forbid(unsafe_code)]

pub mod activity;
pub mod auth_throttle;
pub mod client_memory;
pub mod collections;
pub mod commands;
pub mod failure;
mod glob;
mod metrics;
mod number;
mod open;
mod options;
pub mod resp;
mod run;
pub mod server;
pub mod session;
pub mod shared;
pub mod store;
pub mod sweep;
pub mod values;
pub mod watches;

pub use options::Options;
pub use run::run;
