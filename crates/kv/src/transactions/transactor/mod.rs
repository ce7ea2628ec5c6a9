//! Atomic changes of several keys: `docs/design/transactions.md`.

mod commit;
mod lock;
mod record;
mod recover;
mod resolve;
mod value;

use std::time::Duration;

pub use commit::KeyChange;

use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::table::Table;
use crate::locks::id::TransactionOutcome;
use crate::memory::Memory;
use crate::transactions::transactor::record::{RESERVED, TransactorRecord};
use crate::transactions::transactor::value::{StoredValue, encode_plain};

/// One thread's access to a table in which several keys are changed atomically.
///
/// All clients of such a table use it through transactors only. Keys must not begin with the byte
/// 0xff. A client that is killed or stopped during a commit does not block others. The locks of a
/// killed client are removed by [`recover`](Self::recover).
///
/// ```
/// use rackpool_kv::{KeyChange, KvError, Memory, Table, Transactor};
///
/// fn demo<M: Memory>(table: &Table<M>) -> Result<(), KvError<M::Error>> {
///     // Owner 7 is this program, and 0 one of its threads.
///     let mut accounts = Transactor::new(table, 7, 0);
///     accounts.commit(&[KeyChange { key: b"ann", expected: None, new: Some(b"5") }])?;
///     let moved = accounts.commit(&[
///         KeyChange { key: b"ann", expected: Some(b"5"), new: None },
///         KeyChange { key: b"bob", expected: None, new: Some(b"5") },
///     ])?;
///     assert!(moved);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Transactor<M> {
    handle: Handle<M>,
    owner: u64,
    slot: u16,
    /// The number of the last transaction.
    number: u64,
    /// The record of the last transaction.
    record: TransactorRecord,
    /// Whether no lock of the last transaction is left.
    clean: bool,
    lock_wait: Duration,
    /// Upper bound of the random number of looks at another client's pending transaction before it
    /// is aborted, in addition to the lock wait. It grows with each abort of an own transaction.
    grace: u64,
    /// The stored bytes of the key that was read last.
    raw: Vec<u8>,
    /// The bytes to be stored under a key.
    staging: Vec<u8>,
}

/// How long a transactor waits for another transaction before it aborts it.
const LOCK_WAIT: Duration = Duration::from_millis(2);

impl<M: Memory> Transactor<M> {
    /// A transactor for `owner`, a number that no other program ever uses. At any time only one
    /// transactor of an owner may have the same slot.
    #[must_use]
    pub fn new(table: &Table<M>, owner: u64, slot: u16) -> Self {
        Self {
            handle: table.handle(),
            owner,
            slot,
            number: 0,
            record: TransactorRecord::default(),
            clean: false,
            lock_wait: LOCK_WAIT,
            grace: 0,
            raw: Vec::new(),
            staging: Vec::new(),
        }
    }

    /// Sets how long to wait for another transaction that has locked a key before aborting it;
    /// default 2 ms.
    #[must_use]
    pub fn with_lock_wait(self, lock_wait: Duration) -> Self {
        Self { lock_wait, ..self }
    }

    /// The table of this transactor.
    #[must_use]
    pub fn table(&self) -> Table<M> {
        self.handle.table()
    }

    /// The number of pool allocations that could not be freed: [`Handle::unreclaimed`].
    #[must_use]
    pub fn unreclaimed(&self) -> u64 {
        self.handle.unreclaimed()
    }

    /// Reads the value of `key` into `value`, replacing the buffer's content; returns whether the
    /// key is present. It never waits. Reads of one key are linearizable. Values of several keys
    /// may be of different points in time; a [`commit`](Self::commit) that names them all validates
    /// them.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError<M::Error>> {
        value.clear();
        let mut seen = Vec::new();
        loop {
            if !self.handle.get(key, &mut self.raw)? {
                return Ok(false);
            }
            let lock = match StoredValue::decode(&self.raw) {
                Some(StoredValue::Plain(plain)) => {
                    value.extend_from_slice(plain);
                    return Ok(true);
                }
                Some(StoredValue::Locked(lock)) => lock,
                None => return Err(self.damaged()),
            };
            let read = |value: &mut Vec<u8>, found: Option<&[u8]>| {
                value.extend_from_slice(found.unwrap_or_default());
                Ok(found.is_some())
            };
            match Self::resolution(&mut self.handle, lock.id)?.0 {
                TransactionOutcome::Committed => return read(value, lock.new),
                TransactionOutcome::Pending | TransactionOutcome::Aborted => {
                    return read(value, lock.old);
                }
                // Only if the lock is still there did its transaction not commit.
                TransactionOutcome::Over if seen == self.raw => return read(value, lock.old),
                TransactionOutcome::Over => seen.clone_from(&self.raw),
            }
        }
    }

    /// Calls `visit` with every key and its value. The guarantees of [`Handle::for_each`] hold for
    /// keys without a lock; for a locked key `visit` gets the old value.
    pub fn for_each(
        &mut self,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError<M::Error>> {
        self.handle.for_each(|key, value| {
            if key.first() == Some(&RESERVED) {
                return;
            }
            match StoredValue::decode(value) {
                Some(StoredValue::Plain(value)) => visit(key, value),
                Some(StoredValue::Locked(lock)) => {
                    lock.old.into_iter().for_each(|old| visit(key, old))
                }
                None => {}
            }
        })
    }

    /// Replaces a plain value, without a lock. If `new` is `None`, only checks that the key is
    /// absent.
    fn replace_plain(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, KvError<M::Error>> {
        let Some(new) = new else { return Ok(!self.handle.get(key, &mut self.raw)?) };
        encode_plain(&mut self.staging, new);
        let expected = expected.map(|value| {
            encode_plain(&mut self.raw, value);
            &self.raw[..]
        });
        self.handle.compare_and_put(key, expected, &self.staging)
    }

    /// The error for bytes that no transactor wrote.
    fn damaged(&self) -> KvError<M::Error> {
        KvError::Corrupt { what: "value", addr: self.handle.table().addr() }
    }
}
