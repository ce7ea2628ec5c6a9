use std::fmt;

use crate::entry::{EntryChange, Form, ValueKind, Version};
use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::transaction_view::{TransactionView, WriteSetEntry};
use crate::locks::commit_record::{CommitRecord, CommitState};
use crate::locks::id::{TableKey, TransactionId};
use crate::memory::Memory;

/// Commits optimistic transactions; one for each thread.
///
/// A transaction begins with [`Handle::begin`] on one or more handles, uses them as usual, and ends
/// with [`commit`](Self::commit). If that returns false, another change conflicted and the caller
/// repeats the work. Other clients, in transactions or not, see all changes or none. A client that
/// is killed or stopped during a commit does not block others.
///
/// ```
/// use rackpool_kv::{Committer, Handle, KvError, Memory};
///
/// /// Moves a value to another key.
/// fn rename<M: Memory>(
///     handle: &mut Handle<M>, from: &[u8], to: &[u8], committer: &mut Committer,
/// ) -> Result<bool, KvError<M::Error>> {
///     loop {
///         handle.begin();
///         let mut value = Vec::new();
///         let found = handle.get(from, &mut value)?;
///         if found {
///             handle.put(to, &value)?;
///             handle.delete(from)?;
///         }
///         if committer.commit(&mut [&mut *handle])? {
///             return Ok(found);
///         }
///     }
/// }
/// ```
pub struct Committer {
    owner: u64,
    slot: u16,
    /// The number of the last transaction.
    number: u64,
    record: CommitRecord,
    /// The keys that may still have locks of the last transaction, each with the number of its
    /// table.
    left: Vec<TableKey>,
    /// As [`Handle`]'s field `grace`.
    grace: u64,
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, slot, number, .. } = self;
        write!(f, "Committer({owner:x}, {slot}, {number})")
    }
}

/// The largest grace.
const MAX_GRACE: u64 = 1023;

/// An entry of the read set.
struct ReadSetEntry {
    at: TableKey,
    /// `None`: the key was not there.
    version: Option<Version>,
}

impl Committer {
    /// A committer for `owner`, a number that no other program ever uses. At any time only one
    /// committer of an owner may have the same slot.
    #[must_use]
    pub const fn new(owner: u64, slot: u16) -> Self {
        let record = CommitRecord { bytes: Vec::new() };
        Self { owner, slot, number: 0, record, left: Vec::new(), grace: 0 }
    }

    /// Begins an insistent transaction on these handles: it locks each entry when it reads it, so
    /// that other clients cannot change it any more. This is for work that fails repeatedly with
    /// [`Handle::begin`]. Others wait for an insistent transaction up to 64 times as long as for
    /// another one. It also ends with [`commit`](Self::commit).
    ///
    /// # Errors
    /// As [`commit`](Self::commit), but nothing was changed, and the handles have no views.
    pub fn insist<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<(), KvError<M::Error>> {
        handles.iter_mut().for_each(|handle| handle.cancel());
        self.settle(handles)?;
        self.number += 1;
        self.put_record(handles, CommitRecord::insistent(self.number))?;
        let id = self.id();
        for handle in handles {
            handle.view = Some(Box::new(TransactionView::insistent(id)));
        }
        Ok(())
    }

    /// Ends the views of these handles. If no entry that they read has changed, applies their
    /// changes at one point in time and returns true. Everything that was read was current at that
    /// point.
    ///
    /// The handles of all committers of a table must be in the same order. The first table has the
    /// records of transactions; the others are opened [`with_records`](crate::Table::with_records)
    /// of the first.
    ///
    /// # Errors
    /// After [`KvError::OutcomeUnknown`] either all changes were made or none will be. After any
    /// other error none were made. [`KvError::TooLarge`] if an entry's old and new value do not fit
    /// into one page together, and it is not the only change.
    pub fn commit<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<bool, KvError<M::Error>> {
        let (mut reads, mut writes): (Vec<ReadSetEntry>, Vec<WriteSetEntry>) =
            (Vec::new(), Vec::new());
        let (mut insists, mut is_torn) = (false, false);
        for (table, handle) in handles.iter_mut().enumerate() {
            handle.grace = self.grace;
            let view = handle.view.take().unwrap_or_default();
            insists |= view.insists.is_some();
            is_torn |= view.is_torn;
            for (key, cell) in view.cells {
                if view.insists.is_some() {
                    self.left.push(TableKey { table, key: key.clone() });
                }
                // A key that was created and deleted in the view only has to be absent still.
                if cell.is_written && (cell.version.is_some() || cell.now.is_some()) {
                    writes.push(WriteSetEntry { table, key, version: cell.version, new: cell.now });
                } else {
                    reads.push(ReadSetEntry { at: TableKey { table, key }, version: cell.version });
                }
            }
        }
        let done = match (&reads[..], &writes[..]) {
            _ if insists && is_torn => self.end(handles, Ok(false)),
            (_, writes) if insists => self.commit_insistent(handles, writes),
            ([] | [_], []) => Ok(true),
            (reads, []) => all_current(handles, reads),
            ([], [write]) => match handles.get_mut(write.table) {
                Some(handle) => handle.write_if_current(write),
                None => Ok(true),
            },
            (reads, writes) => self.commit_all(handles, reads, writes),
        };
        // Transactions that abort each other get out of step.
        self.grace =
            if matches!(done, Ok(false)) { (2 * self.grace + 1).min(MAX_GRACE) } else { 0 };
        done
    }

    const fn id(&self) -> TransactionId {
        TransactionId { owner: self.owner, slot: self.slot, number: self.number }
    }

    fn commit_all<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        reads: &[ReadSetEntry],
        writes: &[WriteSetEntry],
    ) -> Result<bool, KvError<M::Error>> {
        self.settle(handles)?;
        self.number += 1;
        let page = handles.first().map_or(0, |first| first.shared.memory.page_bytes());
        let max = usize::try_from(page / 2).unwrap_or(usize::MAX);
        let keys = writes.iter().map(|write| (write.table, &write.key[..]));
        match self.put_record(handles, CommitRecord::new(self.number, keys, max)) {
            // No lock refers to the record yet.
            Err(KvError::OutcomeUnknown) => return Ok(false),
            put => put?,
        }
        let locked = self.lock_all(handles, writes);
        let checked = match locked {
            Ok(true) if !reads.is_empty() => match self.decide(handles, CommitState::Checking) {
                Ok(true) => all_current(handles, reads),
                other => other,
            },
            other => other,
        };
        self.end(handles, checked)
    }

    /// Applies the write set of an insistent transaction, which has locked all that it read.
    fn commit_insistent<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        writes: &[WriteSetEntry],
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        let changed =
            writes.iter().try_fold(true, |all, write| match handles.get_mut(write.table) {
                Some(handle) if all => handle.change_lock(id, write),
                _ => Ok(all),
            });
        self.end(handles, changed)
    }

    /// Decides the record: *Committed* if `checked` is true, else *Aborted*. Then resolves the
    /// locks.
    fn end<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        checked: Result<bool, KvError<M::Error>>,
    ) -> Result<bool, KvError<M::Error>> {
        let committed = match checked {
            Ok(true) => match self.decide(handles, CommitState::Committed) {
                Ok(committed) => committed,
                // Only this client can commit the transaction, so an abort is still possible.
                Err(error) => return self.decide(handles, CommitState::Aborted).and(Err(error)),
            },
            _ => false,
        };
        if !committed {
            self.decide(handles, CommitState::Aborted)?;
        }
        // Locks that cannot be resolved now are resolved before the next transaction, or by others.
        let _ = self.resolve(handles, committed);
        match checked {
            _ if committed => Ok(true),
            // Nothing was changed, so the caller may repeat the transaction.
            Ok(_) | Err(KvError::OutcomeUnknown) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stores the locks of the write set; false if an entry had changed.
    fn lock_all<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        writes: &[WriteSetEntry],
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        for write in writes {
            let Some(handle) = handles.get_mut(write.table) else { continue };
            self.left.push(TableKey { table: write.table, key: write.key.clone() });
            if !handle.lock(id, write)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Stores the record of a new transaction, replacing that of the last one.
    fn put_record<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        record: CommitRecord,
    ) -> Result<(), KvError<M::Error>> {
        let id = self.id();
        let Some(first) = handles.first_mut() else { return Ok(()) };
        self.record = record;
        let bytes = &self.record.bytes;
        first.records().change_reserved(&CommitRecord::key(id), |_, made| {
            made.extend_from_slice(bytes);
            EntryChange::Put(Form { kind: ValueKind::RECORD, expires_ms: 0 })
        })?;
        Ok(())
    }

    /// Moves the record of the own transaction to the state `wanted`; returns whether it reached
    /// it. If another client decided otherwise, that holds.
    fn decide<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        wanted: CommitState,
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        let Some(first) = handles.first_mut() else { return Ok(false) };
        let mut wanted_now = wanted;
        // Whether a swap to *Committed* may have been made.
        let mut may_be_committed = false;
        loop {
            if let Some((state, _)) = self.record.head().filter(|(state, _)| state.is_final()) {
                return Ok(state == wanted);
            }
            let next = self.record.in_state(wanted_now);
            match first.swap_record(id, &self.record, &next) {
                Ok(true) => {
                    self.record = next;
                    return Ok(wanted_now == wanted);
                }
                Ok(false) => {
                    let now = first.record(id)?;
                    match now.state_of(id) {
                        // Recovery has resolved the transaction and deleted its record.
                        None => {
                            self.record = self.record.in_state(CommitState::Aborted);
                            if may_be_committed {
                                return Err(KvError::OutcomeUnknown);
                            }
                            return Ok(wanted == CommitState::Aborted);
                        }
                        Some(state) => {
                            let is_new = now != self.record;
                            self.record = now;
                            if is_new && state == wanted {
                                return Ok(true);
                            }
                        }
                    }
                }
                // The swap may have been made. The next one aborts unless it was.
                Err(KvError::OutcomeUnknown) => {
                    may_be_committed |= wanted_now == CommitState::Committed;
                    wanted_now = CommitState::Aborted;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces the own locks by the entries that they stand for.
    fn resolve<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        let id = self.id();
        while let Some(TableKey { table, key }) = self.left.last() {
            if let Some(handle) = handles.get_mut(*table) {
                handle.resolve_lock(key, id, committed)?;
            }
            self.left.pop();
        }
        Ok(())
    }

    /// Resolves what the last transaction left behind.
    fn settle<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<(), KvError<M::Error>> {
        if self.left.is_empty() {
            return Ok(());
        }
        let aborted = self.decide(handles, CommitState::Aborted)?;
        self.resolve(handles, !aborted)
    }
}

/// Whether all entries of the read set have their versions.
fn all_current<M: Memory>(
    handles: &mut [&mut Handle<M>],
    reads: &[ReadSetEntry],
) -> Result<bool, KvError<M::Error>> {
    for ReadSetEntry { at: TableKey { table, key }, version } in reads {
        if let Some(handle) = handles.get_mut(*table)
            && !handle.is_current(key, *version)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}
