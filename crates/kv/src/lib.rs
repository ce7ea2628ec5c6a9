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
//!
//! A module imports only from modules above its own in this table:
//!
//! | module | contains |
//! |---|---|
//! | `entry`, `error` | the values of entries; why an operation failed |
//! | `memory` | the interface to the memory, its implementation by the pool, access to one word |
//! | `layout` | the bytes of header, directory, segments, slots and objects |
//! | `locks` | the bytes of locks and records of transactions |
//! | `recent_use` | when keys were last used |
//! | `handle` | [`Table`] and [`Handle`], and what a handle keeps in its own memory |
//! | `objects` | objects between reservation and release: publish, resolve, free |
//! | `segments` | find, freeze, split and reuse segments |
//! | `entries` | find, verify, store, compare, modify and scan entries, also through locks |
//! | `lifecycle` | create, open, destroy, remove and walk a whole table |
//! | `transactions` | [`Committer`] and [`Transactor`], their commit and recovery |
//! | [`ordered`] | B-link trees on a table |
//! | [`sorted_set`] | sorted sets on ordered maps |
#![forbid(unsafe_code)]

mod entries;
mod entry;
mod error;
mod handle;
mod layout;
mod lifecycle;
mod locks;
mod memory;
mod objects;
pub mod ordered;
mod recent_use;
mod segments;
pub mod sorted_set;
mod transactions;

pub use entries::lookahead::Lookahead;
pub use entries::lost::LostEntry;
pub use entries::placed::EntryPlace;
pub use entries::round::Round;
pub use entry::{Entry, EntryChange, Form, ValueKind, Version, now_ms};
pub use error::KvError;
pub use handle::Handle;
pub use handle::table::Table;
pub use layout::header::begins_table;
pub use layout::table_options::TableOptions;
pub use lifecycle::destroy::Destroyed;
pub use lifecycle::walk::{TablePart, TableWalk};
pub use memory::pool::PoolError;
pub use memory::{CasError, CasRequest, Memory, ReservedObject, Roots};
pub use rackpool_client::{GlobalAddr, PublishCas, PublishMode, ReadRequest, RootUpdate};
pub use recent_use::RecentUse;
pub use segments::spare::SegmentCounts;
pub use transactions::optimistic::{Committer, Recovery, RecoveryStep};
pub use transactions::transactor::{KeyChange, Transactor};
