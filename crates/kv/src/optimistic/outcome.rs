//! Meeting a lock: what became of its transaction, and what the lock stands for.

use std::time::Instant;

use super::lock::{Lock, TransactionId};
use super::record::{Record, State};
use crate::entry::{Change, Form, Kind};
use crate::error::KvError;
use crate::find::{Intent, LiveSlot, Located, Miss};
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;

/// What became of the transaction of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It may commit later.
    Pending,
    Committed,
    Aborted,
    /// It is over, and nothing is left of it but locks that came too late: if the lock is still
    /// there after that was seen, it did not commit.
    Over,
}

/// The factor, up to its double, by which other clients wait longer for a transaction that locks
/// the entries that it reads.
const INSISTENT_LOCK_WAITS: u32 = 32;

impl<M: Memory> Handle<M> {
    /// Access to the records of transactions.
    pub(super) fn records(&mut self) -> &mut Self {
        let shared = self.shared.records.as_ref().unwrap_or(&self.shared);
        self.records.get_or_insert_with(|| Box::new(Self::new(std::sync::Arc::clone(shared))))
    }

    /// The record of a transaction, or of a later one of its committer; empty if there is none.
    pub(super) fn record(&mut self, id: TransactionId) -> Result<Record, KvError<M::Error>> {
        let entry = self.records().read(&Record::key(id))?;
        let entry = entry.filter(|entry| entry.form.kind == Kind::RECORD);
        Ok(Record { bytes: entry.map(|entry| entry.value.to_vec()).unwrap_or_default() })
    }

    /// Replaces a record if it still is this one; says whether it did.
    pub(super) fn swap_record(
        &mut self,
        id: TransactionId,
        old: &Record,
        new: &Record,
    ) -> Result<bool, KvError<M::Error>> {
        self.records().change_reserved(&Record::key(id), |value, made| {
            if value != Some(&old.bytes) {
                return Change::Keep;
            }
            made.extend_from_slice(&new.bytes);
            Change::Put(Form { kind: Kind::RECORD, expires_ms: 0 })
        })
    }

    /// What became of a transaction. One that may still commit is given some time, then aborted,
    /// unless `may_wait` and it has not got so far that the caller could come after it.
    pub(crate) fn outcome(
        &mut self,
        id: TransactionId,
        may_be_pending: bool,
    ) -> Result<Outcome, KvError<M::Error>> {
        let mut began = None;
        let mut looks = self.looks(id);
        loop {
            let record = self.record(id)?;
            match record.state_of(id) {
                None => return Ok(Outcome::Over),
                Some(State::Committed) => return Ok(Outcome::Committed),
                Some(State::Aborted) => return Ok(Outcome::Aborted),
                Some(State::Pending) if may_be_pending => return Ok(Outcome::Pending),
                Some(State::Pending | State::Checking) => {}
            }
            let began = *began.get_or_insert_with(Instant::now);
            let times =
                if record.is_insistent() { INSISTENT_LOCK_WAITS + self.spread(id) } else { 1 };
            if looks > 0 || began.elapsed() < self.shared.lock_wait * times {
                looks = looks.saturating_sub(1);
                std::thread::yield_now();
                continue;
            }
            match self.swap_record(id, &record, &record.in_state(State::Aborted)) {
                // Unknown or not, the record tells.
                Ok(_) | Err(KvError::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How often to look at a pending transaction at least: at random, so that two that abort each
    /// other get out of step.
    fn looks(&self, id: TransactionId) -> u64 {
        self.random(id) % (self.grace + 1)
    }

    /// How much longer to wait for an insistent transaction, for the same reason.
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn spread(&self, id: TransactionId) -> u32 {
        self.random(id) as u32 % INSISTENT_LOCK_WAITS
    }

    fn random(&self, id: TransactionId) -> u64 {
        let seed = id.owner ^ u64::from(id.slot) << 32 ^ id.number ^ self.grace << 48;
        // SplitMix64's finish.
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^ word >> 31
    }

    /// Goes on from a lock that a search has found: to the entry that it stands for, in the scratch
    /// bytes as well. A transaction that may still commit is no obstacle to readers; others wait a
    /// moment, then abort it.
    #[cold]
    pub(crate) fn look_through(
        &mut self,
        found: LiveSlot,
        hash: KeyHash,
        key: &[u8],
        intent: Intent,
    ) -> Result<Located, KvError<M::Error>> {
        let mut slot = found;
        let mut over = None;
        loop {
            let Some(lock) = Lock::decode(&self.scratch[slot.value.clone()]) else {
                let addr = slot.word.object().addr;
                return Err(KvError::Corrupt { what: "lock", addr });
            };
            let id = lock.id;
            let committed = match self.outcome(id, intent == Intent::Read)? {
                Outcome::Committed => Some(true),
                Outcome::Pending | Outcome::Aborted => Some(false),
                Outcome::Over if over == Some(id) => Some(false),
                Outcome::Over => None,
            };
            match committed.map(|committed| lock.side(committed)) {
                Some(Some(side)) => {
                    let begin = slot.value.start;
                    let value = begin + side.value.start..begin + side.value.end;
                    return Ok(Located::Live(LiveSlot {
                        value,
                        form: side.form,
                        lot: side.lot,
                        ..slot
                    }));
                }
                Some(None) if intent == Intent::Read => return Ok(Located::Absent(Miss::LOCKED)),
                Some(None) => {
                    self.unlink(&slot)?;
                }
                None => over = Some(id),
            }
            match self.locate_raw(hash, key, intent)? {
                Located::Live(next) if next.form.kind == Kind::LOCK => slot = next,
                located => return Ok(located),
            }
        }
    }
}
