//! The client library of rackpool.
pub use rackpool_model::GlobalAddr;
