//! Strings that are too long for an entry: their bytes are fixed memory of the pool.
//!
//! | module | holds |
//! |---|---|
//! | `head` | the encoding of a string's head |
//! | `memory` | fixed memory that this process owns and fills |
//! | `value` | a string before a key names it |
//! | `view` | a string that is read in place |
//! | `remove` | the end of a string, and the sweep |
//!
//! `docs/design/kv-service.md` describes the layout and the states.

mod head;
mod memory;
mod remove;
mod value;
mod view;

use std::sync::Arc;

use rackpool_client::{AccessError, AllocError, MapError, PinError, Pool};
use rackpool_kv::{Handle, KvError, PoolError, Table};
use rackpool_sync::atomic::AtomicU64;

use crate::failure::{Failure, told};

pub(crate) use remove::free;
pub use value::{LargeValue, Part};
pub use view::StringView;

/// The longest string that Redis allows.
pub const MAX_STRING: usize = 512 << 20;

/// A handle of the node table.
pub type Nodes = Handle<Arc<Pool>>;

/// What all threads need to store large strings.
#[derive(Debug)]
pub struct LargeStrings {
    pub(crate) pool: Arc<Pool>,
    /// The node table, which has the heads.
    pub(crate) nodes: Table<Arc<Pool>>,
    /// The bytes of fixed memory of strings that arrive and are in no table yet.
    pub(crate) arriving: Arc<AtomicU64>,
    /// The most bytes that key and value of an ordinary entry have together.
    pub(crate) ordinary: usize,
}

impl LargeStrings {
    /// For a service that keeps at most `ordinary` bytes of key and value in an entry.
    #[must_use]
    pub fn new(nodes: &Table<Arc<Pool>>, ordinary: usize, arriving: Arc<AtomicU64>) -> Self {
        Self { pool: Arc::clone(nodes.memory()), nodes: nodes.clone(), arriving, ordinary }
    }

    /// Whether key and value fit into an ordinary entry.
    #[inline]
    #[must_use]
    pub const fn is_ordinary(&self, key: &[u8], value: usize) -> bool {
        key.len().saturating_add(value) <= self.ordinary
    }
}

fn accessed(error: AccessError) -> Failure {
    Failure::Pool(KvError::Memory(PoolError::Access(error)))
}

fn allocated(error: AllocError) -> Failure {
    Failure::Pool(KvError::Memory(PoolError::Alloc(error)))
}

fn pinned(error: PinError) -> Failure {
    match error {
        PinError::Access(error) => accessed(error),
        error => told(format!("ERR {error}")),
    }
}

fn mapped(error: MapError) -> Failure {
    match error {
        MapError::Access(error) => accessed(error),
        error => told(format!("ERR {error}")),
    }
}
