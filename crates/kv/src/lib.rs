//! A hash table whose every byte is in the pool. Any number of clients in any racks use it
//! concurrently, by one-sided reads, one-sided writes and 8-byte compare-and-swaps only.
//!
//! The table has no locks and no server, and it does not pause to grow. A client may be killed or
//! stopped at any point: it does not block other clients, and they read no wrong data.
//!
//! - [`Table`] names a table: open or create it, destroy it.
//! - [`Handle`] is one thread's access to a table: get, put, insert, update, delete,
//!   compare-and-put, modify.
//! - [`Transactor`] changes several keys atomically, in tables that only transactors use.
//! - [`Committer`] commits optimistic transactions over handles of one or more tables.
//! - [`ordered`] has ordered maps, whose nodes are entries of a table.
//! - [`sorted_set`] has sorted sets, built on ordered maps.
//! - [`Memory`] is the interface to the memory that holds a table.
//!
//! The protocol and its correctness arguments are in `docs/design/kv.md`.
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
pub use entry::{Entry, EntryChange, Form, ValueKind, Version, now_ms};
pub use error::KvError;
pub use handle::Handle;
pub use header::begins_table;
pub use lookahead::Lookahead;
pub use memory::{CasError, CasRequest, Memory, ReservedObject, Roots};
pub use optimistic::{Committer, Recovery, RecoveryStep};
pub use parts::{TablePart, TableWalk};
pub use pool::PoolError;
pub use rackpool_client::{GlobalAddr, PublishCas, PublishMode, ReadRequest, RootUpdate};
pub use round::Round;
pub use spare_segments::SegmentCounts;
pub use table::{Table, TableOptions};
pub use transaction::{KeyChange, Transactor};
