//! One thread's access to a table, and what it keeps in its own memory.

pub(crate) mod directory_cache;
pub(crate) mod scan_batch;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod table;
pub(crate) mod transaction_view;

use std::ops::Range;
use std::sync::Arc;

use crate::entry::Form;
#[cfg(doc)]
use crate::error::KvError;
use crate::handle::directory_cache::DirectoryCache;
use crate::handle::scan_batch::ScanBatch;
use crate::handle::table::Table;
use crate::handle::transaction_view::TransactionView;
use crate::layout::segment::TableLayout;
use crate::layout::slot::ObjectRef;
use crate::memory::Memory;
use crate::recent_use::RecentUse;

/// State that all handles of a table share.
#[derive(Debug)]
pub(crate) struct TableState<M> {
    pub(crate) memory: M,
    pub(crate) layout: TableLayout,
    pub(crate) lock_wait: std::time::Duration,
    /// The table with the records of transactions, if this is a different table.
    pub(crate) records: Option<Arc<Self>>,
}

/// One thread's access to a [`Table`]. A handle has its own copy of the directory and its own
/// buffers, so handles never wait for each other.
///
/// Keys have 0 to 65535 bytes; header (32 B), key and value together fit into one page of the pool.
/// All operations are linearizable among all handles in all racks. An operation waits for another
/// client only while that client splits a segment, and at most for the time that
/// [`Table::with_lock_wait`] sets.
///
/// An operation that fails with [`KvError::Memory`] has changed no entry. After
/// [`KvError::OutcomeUnknown`] the entry may have been changed.
///
/// ```
/// use rackpool_kv::{KvError, Memory, Table};
///
/// fn demo<M: Memory>(table: &Table<M>) -> Result<(), KvError<M::Error>> {
///     let mut handle = table.handle();
///     let mut value = Vec::new();
///     assert!(!handle.get(b"rack", &mut value)?, "there is none yet");
///     assert!(handle.insert(b"rack", b"7")?);
///     assert!(handle.update(b"rack", b"8")?);
///     assert!(handle.put(b"rack", b"9")?, "it took the place of another value");
///     assert!(!handle.compare_and_put(b"rack", Some(b"7"), b"1")?, "it is 9 by now");
///     assert!(handle.compare_and_delete(b"rack", b"9")?);
///     assert!(!handle.delete(b"rack")?, "there is none any more");
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Handle<M> {
    pub(crate) shared: Arc<TableState<M>>,
    pub(crate) cache: DirectoryCache,
    /// The object that was read last.
    pub(crate) scratch: Vec<u8>,
    /// The object that is being written.
    pub(crate) staging: Vec<u8>,
    /// The new value that the closure of `modify` produced.
    pub(crate) made: Vec<u8>,
    /// The entries that a step of a scan copied.
    pub(crate) batch: ScanBatch,
    pub(crate) unreclaimed: u64,
    /// The form of the entry that the last put replaced, and the position of its value in the
    /// scratch buffer.
    pub(crate) replaced: Option<(Form, Range<usize>)>,
    /// The read set and write set of an optimistic transaction; `None` outside of one.
    pub(crate) view: Option<Box<TransactionView>>,
    /// A handle of the table with the transaction records; created at first use.
    pub(crate) records: Option<Box<Self>>,
    /// Upper bound of the random number of times that this handle looks at another client's pending
    /// transaction before it aborts it, in addition to the lock wait. It grows with each own commit
    /// that fails.
    pub(crate) grace: u64,
    /// By how many bytes this handle has made the table's objects grow.
    pub(crate) growth: i64,
    /// Where the handle records which keys it looks for.
    pub(crate) recent_use: Option<Arc<RecentUse>>,
}

impl<M: Memory> Handle<M> {
    pub(crate) fn new(shared: Arc<TableState<M>>) -> Self {
        Self {
            shared,
            cache: DirectoryCache::new(),
            scratch: vec![0; ObjectRef::MAX_WHOLE],
            staging: Vec::new(),
            made: Vec::new(),
            batch: ScanBatch::default(),
            unreclaimed: 0,
            replaced: None,
            view: None,
            records: None,
            grace: 0,
            growth: 0,
            recent_use: None,
        }
    }

    /// The table of this handle.
    #[must_use]
    pub fn table(&self) -> Table<M> {
        Table { shared: Arc::clone(&self.shared) }
    }

    /// By how many bytes the changes of this handle have made the table's objects grow since the
    /// last call: objects as allocated, without segments. What other handles do with the entries
    /// meanwhile is not in it, nor is a change whose outcome is unknown.
    pub fn take_growth(&mut self) -> i64 {
        let records = self.records.as_mut().map_or(0, |records| records.take_growth());
        std::mem::take(&mut self.growth).saturating_add(records)
    }

    /// Sets where this handle records which keys its operations look for, and returns what was set
    /// before. Scans record nothing.
    pub const fn record_use(&mut self, uses: Option<Arc<RecentUse>>) -> Option<Arc<RecentUse>> {
        std::mem::replace(&mut self.recent_use, uses)
    }

    /// An upper bound of the number of pool allocations (objects, segments) that this handle could
    /// not free: freeing failed, or it was unknown whether a change had been made. 0 unless a
    /// daemon or a page was lost. When this program ends, its daemon resolves the publications that
    /// are in doubt and frees what is unreachable.
    #[must_use]
    pub fn unreclaimed(&self) -> u64 {
        self.unreclaimed
    }
}
