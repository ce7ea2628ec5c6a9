use std::sync::Arc;

use crate::directory::DirectoryCache;
use crate::entry::{EntryChange, Form, ValueKind};
use crate::error::KvError;
use crate::find::{Located, LookupIntent};
use crate::memory::Memory;
use crate::optimistic::TransactionView;
use crate::scan::ScanBatch;
use crate::segment::TableLayout;
use crate::slot::ObjectRef;
use crate::store::PutMode;
use crate::table::Table;

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
    /// The read set and write set of an optimistic transaction; `None` outside of one.
    pub(crate) view: Option<Box<TransactionView>>,
    /// A handle of the table with the transaction records; created at first use.
    pub(crate) records: Option<Box<Self>>,
    /// Upper bound of the random number of times that this handle looks at another client's pending
    /// transaction before it aborts it, in addition to the lock wait. It grows with each own commit
    /// that fails.
    pub(crate) grace: u64,
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
            view: None,
            records: None,
            grace: 0,
        }
    }

    /// The table of this handle.
    #[must_use]
    pub fn table(&self) -> Table<M> {
        Table { shared: Arc::clone(&self.shared) }
    }

    /// Reads the value of `key` into `value`, replacing the buffer's content. Returns whether the
    /// key is present; if it is absent, `value` is empty.
    ///
    /// # Errors
    /// [`KvError::OtherKind`] if the value is not a string. [`KvError`] for a key that is too long,
    /// for damaged bytes, or the memory's own error.
    #[inline]
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError<M::Error>> {
        value.clear();
        if self.view.is_some() {
            return self.get_cell(key, value);
        }
        match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) if slot.form.is_over() => Ok(false),
            Located::Live(slot) if slot.form.kind == ValueKind::STRING => {
                value.extend_from_slice(&self.scratch[slot.value]);
                Ok(true)
            }
            Located::Live(slot) => Err(KvError::OtherKind { found: slot.form.kind }),
            Located::Absent(_) => Ok(false),
        }
    }

    /// Stores `value` under `key`. Returns whether it replaced a value, of any kind.
    ///
    /// # Errors
    /// [`KvError`]: key or value too long, a full table or pool, damaged bytes, or the memory's own
    /// error. [`KvError::OutcomeUnknown`] if it is unknown whether the change was made.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        self.put_entry(key, Form::PLAIN, value)
    }

    /// Stores `value` under `key` if the key is absent. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_none() {
            let stored = self.store(key, Form::PLAIN, value, PutMode::IfAbsent)?;
            if stored.done || stored.was_present {
                return Ok(stored.done);
            }
        }
        // The entry that was found has expired.
        self.modify(key, |entry, made| {
            if entry.is_some() {
                return EntryChange::Keep;
            }
            made.extend_from_slice(value);
            EntryChange::Put(Form::PLAIN)
        })
    }

    /// Stores `value` under `key` if the key is present. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            let is_present = self.cell(key)?.entry().is_some();
            return if is_present { self.put(key, value).map(|_| true) } else { Ok(false) };
        }
        Ok(self.store(key, Form::PLAIN, value, PutMode::IfPresent)?.done)
    }

    /// Deletes `key`. Returns whether the key was present.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            return self.delete_cell(key, None);
        }
        self.remove(key, None)
    }

    /// Stores `new` under `key` if the current value is `expected`; `None` means that the key is
    /// absent. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`]; [`KvError::OtherKind`] if the value is not a string.
    pub fn compare_and_put(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        match expected {
            None => self.insert(key, new),
            Some(expected) if self.view.is_some() => self.exchange_cell(key, expected, new),
            Some(expected) => self.exchange(key, expected, new),
        }
    }

    /// Deletes `key` if its value is `expected`. Returns whether it deleted the key.
    ///
    /// Unlike [`compare_and_put`](Self::compare_and_put), it compares the slot word, not the value,
    /// in its deciding step. If this client is stopped during the call while the slot changes an
    /// exact multiple of 1024 times, and the last value is at the address of the expected one, that
    /// value is deleted. The operation is therefore meant for values that are never replaced, only
    /// deleted.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn compare_and_delete(
        &mut self,
        key: &[u8],
        expected: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            return self.delete_cell(key, Some(expected));
        }
        self.remove(key, Some(expected))
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
