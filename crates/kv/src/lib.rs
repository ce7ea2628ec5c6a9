//! A hash table that lives in the pool: any number of clients in any rack use it at once, with
//! one-sided reads, writes and 8-byte compare-and-swaps only. No lock, no server, no stop to grow;
//! a client may be killed or stopped anywhere, and no other one waits for it or sees wrong data.
//!
//! - [`Table`] names a table: create, open, destroy.
//! - [`Handle`] is one thread's access to it: get, put, insert, update, delete, compare-and-put.
//! - [`Memory`] is what a table needs of the memory below.
//!
//! The protocol, and why it is right, is in `docs/design/kv.md`.
#![forbid(unsafe_code)]

mod bucket;
mod compare;
mod destroy;
mod directory;
mod error;
mod find;
mod free_stack;
mod handle;
mod hash;
mod header;
mod life;
mod memory;
mod object;
mod placement;
mod pool;
mod reclaim;
mod reshape;
mod scan;
mod segment;
mod slot;
mod split;
mod store;
mod table;
mod verify;
mod words;

pub use error::KvError;
pub use handle::Handle;
pub use memory::{CasError, CasRequest, Memory, ReadRequest};
pub use pool::PoolError;
pub use rackpool_client::GlobalAddr;
pub use table::{Options, Table};
