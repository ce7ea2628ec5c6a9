//! Reading through locks: the outcome of a lock's transaction, and the entry that the lock stands
//! for.

use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::entries::find::{LiveSlot, Located, LookupIntent, Miss};
use crate::entry::{EntryChange, Form, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::hash::KeyHash;
use crate::locks::commit_record::{CommitRecord, CommitState};
use crate::locks::entry_lock::EntryLock;
use crate::locks::id::{TransactionId, TransactionOutcome};
use crate::memory::Memory;

/// The factor, up to its double, on the lock wait of other clients for an insistent transaction.
const INSISTENT_LOCK_WAITS: u32 = 32;

impl<M: Memory> Handle<M> {
    /// The handle of the table with the transaction records.
    pub(crate) fn records(&mut self) -> &mut Self {
        let shared = self.shared.records.as_ref().unwrap_or(&self.shared);
        self.records.get_or_insert_with(|| Box::new(Self::new(std::sync::Arc::clone(shared))))
    }

    /// The record of a transaction, or of a later one of the same committer; empty if there is
    /// none.
    pub(crate) fn record(&mut self, id: TransactionId) -> Result<CommitRecord, KvError<M::Error>> {
        let entry = self.records().read(&CommitRecord::key(id))?;
        let entry = entry.filter(|entry| entry.form.kind == ValueKind::RECORD);
        Ok(CommitRecord { bytes: entry.map(|entry| entry.value.to_vec()).unwrap_or_default() })
    }

    /// Replaces the record `old` by `new` if it is unchanged; returns whether it did.
    pub(crate) fn swap_record(
        &mut self,
        id: TransactionId,
        old: &CommitRecord,
        new: &CommitRecord,
    ) -> Result<bool, KvError<M::Error>> {
        self.records().change_reserved(&CommitRecord::key(id), |value, made| {
            if value != Some(&old.bytes) {
                return EntryChange::Keep;
            }
            made.extend_from_slice(&new.bytes);
            EntryChange::Put(Form { kind: ValueKind::RECORD, expires_ms: 0 })
        })
    }

    /// The outcome of a transaction. With `may_be_pending`, a transaction in state *Pending* is
    /// reported as such at once. Otherwise the call waits for a transaction that is not yet
    /// decided, for the lock wait, and then aborts it.
    pub(crate) fn outcome(
        &mut self,
        id: TransactionId,
        may_be_pending: bool,
    ) -> Result<TransactionOutcome, KvError<M::Error>> {
        let mut began = None;
        let mut looks = self.looks(id);
        loop {
            let record = self.record(id)?;
            match record.state_of(id) {
                None => return Ok(TransactionOutcome::Over),
                Some(CommitState::Committed) => return Ok(TransactionOutcome::Committed),
                Some(CommitState::Aborted) => return Ok(TransactionOutcome::Aborted),
                Some(CommitState::Pending) if may_be_pending => {
                    return Ok(TransactionOutcome::Pending);
                }
                Some(CommitState::Pending | CommitState::Checking) => {}
            }
            let began = *began.get_or_insert_with(Instant::now);
            let times =
                if record.is_insistent() { INSISTENT_LOCK_WAITS + self.spread(id) } else { 1 };
            if looks > 0 || began.elapsed() < self.shared.lock_wait * times {
                looks = looks.saturating_sub(1);
                std::thread::yield_now();
                continue;
            }
            match self.swap_record(id, &record, &record.in_state(CommitState::Aborted)) {
                // The record is read again, so an unknown outcome does no harm.
                Ok(_) | Err(KvError::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The least number of looks at an undecided transaction: random, so that two transactions that
    /// abort each other get out of step.
    fn looks(&self, id: TransactionId) -> u64 {
        self.random(id).random_range(0..=self.grace)
    }

    /// The random part of the lock wait for an insistent transaction, for the same reason.
    fn spread(&self, id: TransactionId) -> u32 {
        self.random(id).random_range(0..INSISTENT_LOCK_WAITS)
    }

    fn random(&self, id: TransactionId) -> SmallRng {
        let seed = id.owner ^ u64::from(id.slot) << 32 ^ id.number ^ self.grace << 48;
        SmallRng::seed_from_u64(seed)
    }

    /// Follows a lock that a search found to the entry that it stands for, which is then in the
    /// scratch buffer. Readers do not wait for a pending transaction. Writers wait for the lock
    /// wait, then abort it.
    #[cold]
    pub(crate) fn look_through(
        &mut self,
        found: LiveSlot,
        hash: KeyHash,
        key: &[u8],
        intent: LookupIntent,
    ) -> Result<Located, KvError<M::Error>> {
        let mut slot = found;
        let mut over = None;
        loop {
            let Some(lock) = EntryLock::decode(&self.scratch[slot.value.clone()]) else {
                let addr = slot.word.object().addr;
                return Err(KvError::Corrupt { what: "lock", addr });
            };
            let id = lock.id;
            let committed = match self.outcome(id, intent == LookupIntent::Read)? {
                TransactionOutcome::Committed => Some(true),
                TransactionOutcome::Pending | TransactionOutcome::Aborted => Some(false),
                TransactionOutcome::Over if over == Some(id) => Some(false),
                TransactionOutcome::Over => None,
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
                Some(None) if intent == LookupIntent::Read => {
                    return Ok(Located::Absent(Miss::LOCKED));
                }
                Some(None) => {
                    self.unlink(&slot)?;
                }
                None => over = Some(id),
            }
            match self.locate_raw(hash, key, intent)? {
                Located::Live(next) if next.form.kind == ValueKind::LOCK => slot = next,
                located => return Ok(located),
            }
        }
    }
}
