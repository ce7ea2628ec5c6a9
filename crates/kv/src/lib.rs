//! A hash table that lives in the pool: any number of clients in any rack use it at once, with
//! one-sided reads, writes and 8-byte compare-and-swaps only. No lock, no server, no stop to grow;
//! a client may be killed or stopped anywhere, and no other one waits for it or sees wrong data.
//!
//! - [`Table`] names a table: open or create, destroy.
//! - [`Handle`] is one thread's access to it: get, put, insert, update, delete, compare-and-put,
//!   modify.
//! - [`Transactor`] changes several keys at once, in tables that are used by transactors only.
//! - [`Committer`] makes one change of what handles of any tables have read and written privately.
//! - [`ordered`] has ordered maps whose nodes are in a table.
//! - [`sorted_set`] has sorted sets on them.
//! - [`Memory`] is what a table needs of the memory below.
//!
//! The protocol, and why it is right, is in `docs/design/kv.md`.
#![forbid(unsafe_code)]

mod bucket;
mod compare;
mod condition;
#[warn(clippy::missing_errors_doc)]
mod create;
#[warn(clippy::missing_errors_doc)]
mod destroy;
mod directory;
mod entry;
mod error;
mod find;
#[warn(clippy::missing_errors_doc)]
mod handle;
mod hash;
mod header;
mod life;
mod lookahead;
mod memory;
#[warn(clippy::missing_errors_doc)]
mod modify;
mod object;
#[warn(clippy::missing_errors_doc)]
mod optimistic;
pub mod ordered;
#[warn(clippy::missing_errors_doc)]
mod parts;
mod placement;
mod pool;
mod reclaim;
mod reshape;
mod round;
#[warn(clippy::missing_errors_doc)]
mod scan;
mod segment;
mod slot;
pub mod sorted_set;
#[warn(clippy::missing_errors_doc)]
mod spare_segments;
mod split;
mod store;
#[warn(clippy::missing_errors_doc)]
mod table;
mod transaction;
mod verify;
mod words;

pub use destroy::Destroyed;
pub use entry::{Change, Entry, Form, Kind, Version, now_ms};
pub use error::KvError;
pub use handle::Handle;
pub use header::begins_table;
pub use lookahead::Lookahead;
pub use memory::{CasError, CasRequest, Memory, ReadRequest, Reservation, Roots};
pub use optimistic::{Committer, Recovery};
pub use parts::{Part, Walk};
pub use pool::PoolError;
pub use rackpool_client::{GlobalAddr, PublishCas, PublishMode};
pub use round::Round;
pub use spare_segments::Segments;
pub use table::{Options, Table};
pub use transaction::{KeyChange, Transactor};
