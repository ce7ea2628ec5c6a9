use std::fmt;

use super::install::Write;
use super::lock::{TableKey, TransactionId};
use super::record::{Record, State};
use super::view::View;
use crate::entry::{Change, Form, Kind, Version};
use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;

/// Makes the changes of views at one moment: one for each thread.
///
/// A transaction begins with [`Handle::begin`] on one or several handles, works with them as ever,
/// and ends with [`commit`](Self::commit). If that says that another change came between, the work
/// is to be done again. Other clients, with a view or without, see all changes or none. A client
/// that is killed or stopped in a commit keeps nobody from going on.
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
    /// Of the last transaction.
    number: u64,
    record: Record,
    /// The keys that may have locks of the last transaction, each with the number of its table.
    left: Vec<TableKey>,
    /// As [`Handle`]'s.
    grace: u64,
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, slot, number, .. } = self;
        write!(f, "Committer({owner:x}, {slot}, {number})")
    }
}

/// The grace grows up to this.
const MAX_GRACE: u64 = 1023;

/// What a transaction only read.
type Read = (usize, Vec<u8>, Option<Version>);

impl Committer {
    /// Commits in the name of `owner`, a number that no other program ever has; at a time only one
    /// committer of an owner may have the same slot.
    #[must_use]
    pub const fn new(owner: u64, slot: u16) -> Self {
        let record = Record { bytes: Vec::new() };
        Self { owner, slot, number: 0, record, left: Vec::new(), grace: 0 }
    }

    /// Begins a transaction on these handles that takes what it reads into its hands at once, so
    /// that others can't change it all the time: for one that did not get through with
    /// [`Handle::begin`]. Others wait for it up to 64 times as long as for others. It ends with
    /// [`commit`](Self::commit), too.
    ///
    /// # Errors
    /// As [`commit`](Self::commit), but that nothing was changed: then there are no views.
    pub fn insist<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<(), KvError<M::Error>> {
        handles.iter_mut().for_each(|handle| handle.cancel());
        self.settle(handles)?;
        self.number += 1;
        self.put_record(handles, Record::insistent(self.number))?;
        let id = self.id();
        for handle in handles {
            handle.view = Some(Box::new(View::insistent(id)));
        }
        Ok(())
    }

    /// Ends the views of these handles and makes their changes at one moment, if nothing that they
    /// have read was changed by others; says whether it did. Everything that was read was so at
    /// that moment.
    ///
    /// The handles of all committers of a table stand in the same order. The first one's table has
    /// the records of transactions: the others are [`with_records`](crate::Table::with_records) of
    /// it.
    ///
    /// # Errors
    /// After [`KvError::OutcomeUnknown`] the changes were made, all of them, or will not be made;
    /// after any other error they were not made. [`KvError::TooLarge`] if an entry's old and new
    /// value do not fit into one page together, and it is not the only change.
    pub fn commit<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<bool, KvError<M::Error>> {
        let (mut reads, mut writes): (Vec<Read>, Vec<Write>) = (Vec::new(), Vec::new());
        let (mut insists, mut is_torn) = (false, false);
        for (table, handle) in handles.iter_mut().enumerate() {
            handle.grace = self.grace;
            let view = handle.view.take().unwrap_or_default();
            insists |= view.insists.is_some();
            is_torn |= view.is_torn;
            for (key, cell) in view.cells {
                if view.insists.is_some() {
                    self.left.push((table, key.clone()));
                }
                // What was made and deleted again only must not have come meanwhile.
                if cell.is_written && (cell.version.is_some() || cell.now.is_some()) {
                    writes.push(Write { table, key, version: cell.version, new: cell.now });
                } else {
                    reads.push((table, key, cell.version));
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
        // Those that are in each other's way get out of step.
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
        reads: &[Read],
        writes: &[Write],
    ) -> Result<bool, KvError<M::Error>> {
        self.settle(handles)?;
        self.number += 1;
        let page = handles.first().map_or(0, |first| first.shared.memory.page_bytes());
        let max = usize::try_from(page / 2).unwrap_or(usize::MAX);
        let keys = writes.iter().map(|write| (write.table, &write.key[..]));
        match self.put_record(handles, Record::new(self.number, keys, max)) {
            // Nothing depends on it yet.
            Err(KvError::OutcomeUnknown) => return Ok(false),
            put => put?,
        }
        let locked = self.lock_all(handles, writes);
        let checked = match locked {
            Ok(true) if !reads.is_empty() => match self.decide(handles, State::Checking) {
                Ok(true) => all_current(handles, reads),
                other => other,
            },
            other => other,
        };
        self.end(handles, checked)
    }

    /// Makes changes of entries that are all locked, as everything is that was read.
    fn commit_insistent<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        writes: &[Write],
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        let changed =
            writes.iter().try_fold(true, |all, write| match handles.get_mut(write.table) {
                Some(handle) if all => handle.change_lock(id, write),
                _ => Ok(all),
            });
        self.end(handles, changed)
    }

    /// Commits if everything is as it has to be, else aborts; then resolves the own locks.
    fn end<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        checked: Result<bool, KvError<M::Error>>,
    ) -> Result<bool, KvError<M::Error>> {
        let committed = match checked {
            Ok(true) => match self.decide(handles, State::Committed) {
                Ok(committed) => committed,
                // Only this client could commit it.
                Err(error) => return self.decide(handles, State::Aborted).and(Err(error)),
            },
            _ => false,
        };
        if !committed {
            self.decide(handles, State::Aborted)?;
        }
        // What can't be resolved now is before the next transaction, or by others.
        let _ = self.resolve(handles, committed);
        match checked {
            _ if committed => Ok(true),
            // Nothing was changed: it is worth trying again.
            Ok(_) | Err(KvError::OutcomeUnknown) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Puts the locks.
    fn lock_all<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        writes: &[Write],
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        for write in writes {
            let Some(handle) = handles.get_mut(write.table) else { continue };
            self.left.push((write.table, write.key.clone()));
            if !handle.lock(id, write)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the record of a new transaction.
    fn put_record<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        record: Record,
    ) -> Result<(), KvError<M::Error>> {
        let id = self.id();
        let Some(first) = handles.first_mut() else { return Ok(()) };
        self.record = record;
        let bytes = &self.record.bytes;
        first.records().change_reserved(&Record::key(id), |_, made| {
            made.extend_from_slice(bytes);
            Change::Put(Form { kind: Kind::RECORD, expires_ms: 0 })
        })?;
        Ok(())
    }

    /// Brings the record of the own transaction into another state; says whether it is in that one.
    /// What others did with it counts.
    fn decide<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        wanted: State,
    ) -> Result<bool, KvError<M::Error>> {
        let id = self.id();
        let Some(first) = handles.first_mut() else { return Ok(false) };
        let mut wanted_now = wanted;
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
                        // Others have cleared it away, which they do with what did not commit.
                        None => {
                            self.record = self.record.in_state(State::Aborted);
                            return Ok(wanted == State::Aborted);
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
                // Whichever of the two is seen first decides.
                Err(KvError::OutcomeUnknown) => wanted_now = State::Aborted,
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts entries in the place of the own locks.
    fn resolve<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        let id = self.id();
        while let Some((table, key)) = self.left.last() {
            if let Some(handle) = handles.get_mut(*table) {
                handle.resolve_lock(key, id, committed)?;
            }
            self.left.pop();
        }
        Ok(())
    }

    /// Ends what the last transaction left behind.
    fn settle<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
    ) -> Result<(), KvError<M::Error>> {
        if self.left.is_empty() {
            return Ok(());
        }
        let aborted = self.decide(handles, State::Aborted)?;
        self.resolve(handles, !aborted)
    }
}

/// Whether everything that was read is still so.
fn all_current<M: Memory>(
    handles: &mut [&mut Handle<M>],
    reads: &[Read],
) -> Result<bool, KvError<M::Error>> {
    for (table, key, version) in reads {
        if let Some(handle) = handles.get_mut(*table)
            && !handle.is_current(key, *version)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}
