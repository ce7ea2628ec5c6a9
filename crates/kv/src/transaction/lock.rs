//! Meeting a lock: whose it is, and how it is taken away.

use std::time::Instant;

use super::record::{Record, State};
use super::transactor::Transactor;
use super::value::{Lock, Stored, TransactionId, encode_plain};
use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;

/// What became of the transaction of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// It may still commit.
    Pending,
    Committed,
    Aborted,
    /// It is over, and nothing is left of it to clear away but locks that came too late.
    Over,
}

impl<M: Memory> Transactor<M> {
    /// What became of a transaction, and its record.
    pub(super) fn resolution(
        handle: &mut Handle<M>,
        id: TransactionId,
    ) -> Result<(Resolution, Record), KvError<M::Error>> {
        let mut record = Record::default();
        handle.get(&Record::key(id.owner, id.slot), &mut record.bytes)?;
        let resolution = match record.state_of(id) {
            Some(State::Pending) => Resolution::Pending,
            Some(State::Committed) => Resolution::Committed,
            Some(State::Aborted) => Resolution::Aborted,
            None => Resolution::Over,
        };
        Ok((resolution, record))
    }

    /// Takes away the lock that stands under `key`, whose bytes are in `raw`. Who it belongs to is
    /// given some time first.
    pub(super) fn unlock(&mut self, key: &[u8]) -> Result<(), KvError<M::Error>> {
        let found = std::mem::take(&mut self.raw);
        let result = self.unlock_found(key, &found);
        self.raw = found;
        result
    }

    /// How often to look at a pending transaction at least: at random, so that two that abort each
    /// other get out of step.
    fn looks(&self) -> u64 {
        let seed = self.owner ^ u64::from(self.slot) << 32 ^ self.number;
        // SplitMix64's finish.
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (word ^ word >> 31) % (self.grace + 1)
    }

    fn unlock_found(&mut self, key: &[u8], found: &[u8]) -> Result<(), KvError<M::Error>> {
        let Some(Stored::Locked(lock)) = Stored::decode(found) else { return Ok(()) };
        let began = Instant::now();
        let mut looks = self.looks();
        loop {
            let (resolution, record) = Self::resolution(&mut self.handle, lock.id)?;
            if resolution != Resolution::Pending {
                let committed = resolution == Resolution::Committed;
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
            let aborted = record.in_state(State::Aborted);
            let record_key = Record::key(lock.id.owner, lock.id.slot);
            let pending = Some(&record.bytes[..]);
            match self.handle.compare_and_put(&record_key, pending, &aborted.bytes) {
                // Unknown or not, the record tells.
                Ok(_) | Err(KvError::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts in place of a lock, whose bytes are `found`, what it stands for. It is the same whoever
    /// does it.
    pub(super) fn resolve_lock(
        &mut self,
        key: &[u8],
        found: &[u8],
        lock: &Lock<'_>,
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
