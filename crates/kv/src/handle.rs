use std::sync::Arc;

use crate::directory::DirectoryCache;
use crate::entry::{Change, Form, Kind};
use crate::error::KvError;
use crate::find::{Intent, Located};
use crate::memory::Memory;
use crate::optimistic::View;
use crate::scan::Batch;
use crate::segment::Layout;
use crate::slot::ObjectRef;
use crate::store::Rule;
use crate::table::Table;

/// What all handles of a table share.
#[derive(Debug)]
pub(crate) struct Shared<M> {
    pub(crate) memory: M,
    pub(crate) layout: Layout,
    pub(crate) lock_wait: std::time::Duration,
    /// The table with the records of transactions, if it is another one.
    pub(crate) records: Option<Arc<Self>>,
}

/// One thread's access to a [`Table`]: it has its own copy of the directory and its own buffers, so
/// that handles never wait for each other.
///
/// Keys have 0 to 65535 bytes; header (32 B), key and value together fit into one page of the pool.
/// All operations are linearizable among all handles in all racks. None ever waits for another
/// client, except a moment (see [`Table::with_lock_wait`]) for one that splits a segment.
///
/// An operation that fails with [`KvError::Memory`] changed no entry; one that fails with
/// [`KvError::OutcomeUnknown`] may have.
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
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) cache: DirectoryCache,
    /// What was read last: an object.
    pub(crate) scratch: Vec<u8>,
    /// What is being written: an object.
    pub(crate) staging: Vec<u8>,
    /// The value that a change has made.
    pub(crate) made: Vec<u8>,
    /// The entries that a step of a scan has read.
    pub(crate) batch: Batch,
    pub(crate) unreclaimed: u64,
    /// What an optimistic transaction has read and written.
    pub(crate) view: Option<Box<View>>,
    /// Access to the records of transactions, once it was needed.
    pub(crate) records: Option<Box<Self>>,
    /// How often at most a pending transaction is looked at before it is aborted, whatever the
    /// lock_wait: the more often own ones failed, the more.
    pub(crate) grace: u64,
}

impl<M: Memory> Handle<M> {
    pub(crate) fn new(shared: Arc<Shared<M>>) -> Self {
        Self {
            shared,
            cache: DirectoryCache::new(),
            scratch: vec![0; ObjectRef::MAX_WHOLE],
            staging: Vec::new(),
            made: Vec::new(),
            batch: Batch::default(),
            unreclaimed: 0,
            view: None,
            records: None,
            grace: 0,
        }
    }

    /// The table this is a handle of.
    #[must_use]
    pub fn table(&self) -> Table<M> {
        Table { shared: Arc::clone(&self.shared) }
    }

    /// Reads the value of `key` into `value`, replacing what it holds. Says whether the key is
    /// there; if not, `value` is left empty. [`KvError::OtherKind`] if the value is no string.
    ///
    /// # Errors
    /// [`KvError`]: a key of no allowed length, a value that is no string, damaged bytes, or the memory's
    /// own error.
    #[inline]
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError<M::Error>> {
        value.clear();
        if self.view.is_some() {
            return self.get_cell(key, value);
        }
        match self.locate(Self::hash(key)?, key, Intent::Read)? {
            Located::Live(slot) if slot.form.is_over() => Ok(false),
            Located::Live(slot) if slot.form.kind == Kind::STRING => {
                value.extend_from_slice(&self.scratch[slot.value]);
                Ok(true)
            }
            Located::Live(slot) => Err(KvError::OtherKind { found: slot.form.kind }),
            Located::Absent(_) => Ok(false),
        }
    }

    /// Stores `value` under `key`. Says whether it replaced another one, of whatever kind.
    ///
    /// # Errors
    /// [`KvError`]: key or value too long, a full table or pool, [`KvError::OutcomeUnknown`] when nobody
    /// knows whether the change was made, damaged bytes, or the memory's own error.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        self.put_entry(key, Form::PLAIN, value)
    }

    /// Stores `value` under `key` if the key is not there yet. Says whether it did.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_none() {
            let stored = self.store(key, Form::PLAIN, value, Rule::IfAbsent)?;
            if stored.done || stored.was_present {
                return Ok(stored.done);
            }
        }
        // There is one whose time is over.
        self.modify(key, |entry, made| {
            if entry.is_some() {
                return Change::Keep;
            }
            made.extend_from_slice(value);
            Change::Put(Form::PLAIN)
        })
    }

    /// Stores `value` under `key` if the key is there already. Says whether it did.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            let is_present = self.cell(key)?.entry().is_some();
            return if is_present { self.put(key, value).map(|_| true) } else { Ok(false) };
        }
        Ok(self.store(key, Form::PLAIN, value, Rule::IfPresent)?.done)
    }

    /// Deletes `key`. Says whether it was there.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            return self.delete_cell(key, None);
        }
        self.remove(key, None)
    }

    /// Stores `new` under `key` if its value is `expected`, or if it has none and `expected` is
    /// `None`. Says whether it did.
    ///
    /// # Errors
    /// As [`Handle::put`]; [`KvError::OtherKind`] if the value is no string.
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

    /// Deletes `key` if its value is `expected`. Says whether it did.
    ///
    /// Unlike a [`compare_and_put`](Self::compare_and_put) it takes the slot's word for the value:
    /// if this client sleeps in it while the value is changed an exact multiple of 1024 times, and
    /// the last one lies where the expected one did, it deletes that. So it is for values that,
    /// once written, nobody changes but to delete them.
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

    /// How many pieces of the pool (objects, segments) this handle had to leave behind because the
    /// memory failed while it gave them back or did not say whether a change was made. At most so
    /// many; 0 unless a daemon or page was lost. Objects whose publication is in doubt are taken
    /// back, or not, when this program ends and it can be told.
    #[must_use]
    pub fn unreclaimed(&self) -> u64 {
        self.unreclaimed
    }
}
