//! Recovery from transactions whose owner was killed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::entries::round::Round;
use crate::entry::{Entry, EntryChange, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::locks::commit_record::{CommitRecord, CommitState};
use crate::locks::entry_lock::EntryLock;
use crate::locks::id::{TableKey, TransactionId};
use crate::memory::Memory;
use crate::transactions::optimistic::commit::Committer;

/// A record that is unchanged for this time counts as abandoned. A transaction takes less time,
/// unless its program was stopped; then it is aborted and repeated.
const UNCHANGED: Duration = Duration::from_secs(1);
/// The most records that are watched at a time.
const MAX_WATCHED: usize = 1024;

/// Removes the locks and records of abandoned transactions, in steps: round after round, from a
/// random position of the table.
#[derive(Debug)]
pub struct Recovery {
    round: Round,
    /// Transactions whose record may be abandoned, and when it was first seen.
    watched: VecDeque<(TransactionId, Instant)>,
    unchanged: Duration,
}

/// What one [step](Recovery::step) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryStep {
    /// The number of records removed.
    pub cleared: u64,
    /// Whether a round is complete.
    pub is_round: bool,
}

impl Recovery {
    /// Starts at a random position of the table with the records of this handle's transactions.
    #[must_use]
    pub fn anywhere<M: Memory>(handle: &mut Handle<M>) -> Self {
        Self {
            round: Round::anywhere(handle.records()),
            watched: VecDeque::new(),
            unchanged: UNCHANGED,
        }
    }

    /// Sets how long a record must be unchanged to count as abandoned; default 1 s.
    #[must_use]
    pub fn unchanged_for(self, unchanged: Duration) -> Self {
        Self { unchanged, ..self }
    }

    /// Reads about `wanted` more entries. Then removes the records that have been unchanged for
    /// long enough since they were first seen, and the locks of their transactions. The handles are
    /// in the order of [`Committer::commit`] and have no views.
    ///
    /// # Errors
    /// The table's or the memory's own error. The next step continues behind the segment at which
    /// this one failed.
    pub fn step<M: Memory>(
        &mut self,
        handles: &mut [&mut Handle<M>],
        wanted: usize,
    ) -> Result<RecoveryStep, KvError<M::Error>> {
        let Some(first) = handles.first_mut() else {
            return Ok(RecoveryStep { cleared: 0, is_round: true });
        };
        let (records, cursor) = (first.records(), self.round.cursor());
        let watched = &mut self.watched;
        let note = |key: &[u8], entry: Entry<'_>| {
            let record = CommitRecord { bytes: entry.value.to_vec() };
            let id = record.head().and_then(|(_, number)| CommitRecord::id_of(key, number));
            let is_new = |id: &TransactionId| watched.iter().all(|(other, _)| other != id);
            if let Some(id) = id.filter(is_new).filter(|_| watched.len() < MAX_WATCHED) {
                watched.push_back((id, Instant::now()));
            }
        };
        let next = match records.scan_kind(cursor, wanted, Some(ValueKind::RECORD), note) {
            Ok(next) => next,
            Err(error) => {
                self.round.go_on(records.scan_past(cursor).unwrap_or(0));
                return Err(error);
            }
        };
        let is_round = self.round.go_on(next);
        let mut cleared = 0;
        while let Some((id, _)) =
            self.watched.front().copied().filter(|(_, since)| since.elapsed() >= self.unchanged)
        {
            self.watched.pop_front();
            cleared += u64::from(clear_away(handles, id)?);
        }
        Ok(RecoveryStep { cleared, is_round })
    }
}

impl Committer {
    /// Removes the locks and records of all transactions; for programs that are gone. It may be
    /// called at any time: a transaction in progress is aborted, and its program repeats it. The
    /// handles are in the order of [`commit`](Self::commit) and have no views. Returns the number
    /// of records removed.
    ///
    /// # Errors
    /// The table's or the memory's own error; some locks and records are then left.
    pub fn recover<M: Memory>(handles: &mut [&mut Handle<M>]) -> Result<u64, KvError<M::Error>> {
        let Some(first) = handles.first_mut() else { return Ok(0) };
        let mut found = Vec::new();
        first.records().walk_reserved(ValueKind::RECORD, |key, value| {
            let record = CommitRecord { bytes: value.to_vec() };
            let id = record.head().and_then(|(_, number)| CommitRecord::id_of(key, number));
            found.extend(id);
        })?;
        let mut cleared = 0;
        for id in found {
            cleared += u64::from(clear_away(handles, id)?);
        }
        Ok(cleared)
    }
}

/// Aborts a transaction if it is undecided, resolves all of its locks, and deletes its record.
/// Returns whether it deleted the record; it does not if the committer has stored another one.
fn clear_away<M: Memory>(
    handles: &mut [&mut Handle<M>],
    id: TransactionId,
) -> Result<bool, KvError<M::Error>> {
    let Some(first) = handles.first_mut() else { return Ok(false) };
    let (record, state) = loop {
        let record = first.record(id)?;
        let Some(state) = record.state_of(id) else { return Ok(false) };
        if state.is_final() {
            break (record, state);
        }
        match first.swap_record(id, &record, &record.in_state(CommitState::Aborted)) {
            Ok(_) | Err(KvError::OutcomeUnknown) => {}
            Err(error) => return Err(error),
        }
    };
    let keys = match record.keys() {
        Some(keys) => keys,
        None => locked_keys(handles, id)?,
    };
    for TableKey { table, key } in keys {
        if let Some(handle) = handles.get_mut(table) {
            handle.resolve_lock(&key, id, state == CommitState::Committed)?;
        }
    }
    let Some(first) = handles.first_mut() else { return Ok(false) };
    first.records().change_reserved(&CommitRecord::key(id), |value, _| {
        if value == Some(&record.bytes) { EntryChange::Delete } else { EntryChange::Keep }
    })
}

/// All keys that a transaction has locked. Reads all tables.
fn locked_keys<M: Memory>(
    handles: &mut [&mut Handle<M>],
    id: TransactionId,
) -> Result<Vec<TableKey>, KvError<M::Error>> {
    let mut keys = Vec::new();
    for (table, handle) in handles.iter_mut().enumerate() {
        handle.walk_reserved(ValueKind::LOCK, |key, value| {
            if EntryLock::decode(value).is_some_and(|lock| lock.id == id) {
                keys.push(TableKey { table, key: key.to_vec() });
            }
        })?;
    }
    Ok(keys)
}
