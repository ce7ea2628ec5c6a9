//! Resolving locks of other transactions.

use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::error::KvError;
use crate::handle::Handle;
use crate::locks::id::{TransactionId, TransactionOutcome};
use crate::memory::Memory;
use crate::transactions::transactor::Transactor;
use crate::transactions::transactor::record::{TransactorRecord, TransactorState};
use crate::transactions::transactor::value::{KeyLock, StoredValue, encode_plain};

impl<M: Memory> Transactor<M> {
    /// The outcome of a transaction, and its record.
    pub(super) fn resolution(
        handle: &mut Handle<M>,
        id: TransactionId,
    ) -> Result<(TransactionOutcome, TransactorRecord), KvError<M::Error>> {
        let mut record = TransactorRecord::default();
        handle.get(&TransactorRecord::key(id.owner, id.slot), &mut record.bytes)?;
        let resolution = match record.state_of(id) {
            Some(TransactorState::Pending) => TransactionOutcome::Pending,
            Some(TransactorState::Committed) => TransactionOutcome::Committed,
            Some(TransactorState::Aborted) => TransactionOutcome::Aborted,
            None => TransactionOutcome::Over,
        };
        Ok((resolution, record))
    }

    /// Resolves the lock under `key`, whose bytes are in `raw`. Waits for its transaction for the
    /// lock wait first, then aborts it.
    pub(super) fn unlock(&mut self, key: &[u8]) -> Result<(), KvError<M::Error>> {
        let found = std::mem::take(&mut self.raw);
        let result = self.unlock_found(key, &found);
        self.raw = found;
        result
    }

    /// The least number of looks at a pending transaction: random, so that two transactions that
    /// abort each other get out of step.
    fn looks(&self) -> u64 {
        let seed = self.owner ^ u64::from(self.slot) << 32 ^ self.number;
        SmallRng::seed_from_u64(seed).random_range(0..=self.grace)
    }

    fn unlock_found(&mut self, key: &[u8], found: &[u8]) -> Result<(), KvError<M::Error>> {
        let Some(StoredValue::Locked(lock)) = StoredValue::decode(found) else { return Ok(()) };
        let began = Instant::now();
        let mut looks = self.looks();
        loop {
            let (resolution, record) = Self::resolution(&mut self.handle, lock.id)?;
            if resolution != TransactionOutcome::Pending {
                let committed = resolution == TransactionOutcome::Committed;
                return self.resolve_lock(key, found, &lock, committed);
            }
            if looks > 0 || began.elapsed() < self.lock_wait {
                looks = looks.saturating_sub(1);
                std::thread::yield_now();
                if !self.handle.get(key, &mut self.raw)? || self.raw != found {
                    return Ok(());
                }
                continue;
            }
            let aborted = record.in_state(TransactorState::Aborted);
            let record_key = TransactorRecord::key(lock.id.owner, lock.id.slot);
            let pending = Some(&record.bytes[..]);
            match self.handle.compare_and_put(&record_key, pending, &aborted.bytes) {
                // The record is read again, so an unknown outcome does no harm.
                Ok(_) | Err(KvError::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces a lock, whose bytes are `found`, by the value that it stands for. All clients write
    /// the same value.
    pub(super) fn resolve_lock(
        &mut self,
        key: &[u8],
        found: &[u8],
        lock: &KeyLock<'_>,
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        let changed = match if committed { lock.new } else { lock.old } {
            Some(value) => {
                encode_plain(&mut self.staging, value);
                self.handle.compare_and_put(key, Some(found), &self.staging)
            }
            None => self.handle.compare_and_delete(key, found),
        };
        match changed {
            Ok(_) | Err(KvError::OutcomeUnknown) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
