//! The owner's steps that end a transaction.

use crate::error::KvError;
use crate::memory::Memory;
use crate::transactions::transactor::Transactor;
use crate::transactions::transactor::record::{TransactorRecord, TransactorState};
use crate::transactions::transactor::value::StoredValue;

impl<M: Memory> Transactor<M> {
    /// Moves the record of the own transaction to a final state; returns whether it is `wanted`.
    pub(super) fn decide(&mut self, wanted: TransactorState) -> Result<bool, KvError<M::Error>> {
        let key = TransactorRecord::key(self.owner, self.slot);
        let mut wanted_now = wanted;
        loop {
            if let Some((TransactorState::Aborted, _)) = self.record.head() {
                return Ok(wanted == TransactorState::Aborted);
            }
            let next = self.record.in_state(wanted_now);
            let decided = self.handle.compare_and_put(&key, Some(&self.record.bytes), &next.bytes);
            match decided {
                Ok(true) => {
                    self.record = next;
                    return Ok(wanted_now == wanted);
                }
                Ok(false) => {
                    let mut now = TransactorRecord::default();
                    self.handle.get(&key, &mut now.bytes)?;
                    match now.head() {
                        Some((TransactorState::Pending, number)) if number == self.number => {}
                        Some((state, number)) if number == self.number => {
                            self.record = now;
                            return Ok(state == wanted);
                        }
                        // Another client has run recovery for this program and has removed the
                        // record.
                        _ => return Ok(wanted == TransactorState::Aborted),
                    }
                }
                // The swap may have been made. The next one aborts unless it was.
                Err(KvError::OutcomeUnknown) => wanted_now = TransactorState::Aborted,
                Err(error) if wanted == TransactorState::Committed => return self.give_up(error),
                Err(error) => return Err(error),
            }
        }
    }

    /// Aborts after a failed commit, and returns the error of the commit.
    fn give_up(&mut self, error: KvError<M::Error>) -> Result<bool, KvError<M::Error>> {
        self.decide(TransactorState::Aborted)?;
        Err(error)
    }

    /// Replaces the own locks by the values that they stand for.
    pub(super) fn resolve_own<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [u8]>,
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        keys.into_iter().try_for_each(|key| {
            let (owner, slot, number) = (self.owner, self.slot, self.number);
            self.resolve_key(key, owner, slot, number, committed)
        })
    }

    /// Replaces the lock of that transaction under `key` by its value, until no such lock is there.
    pub(super) fn resolve_key(
        &mut self,
        key: &[u8],
        owner: u64,
        slot: u16,
        number: u64,
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        loop {
            if !self.handle.get(key, &mut self.raw)? {
                return Ok(());
            }
            let found = std::mem::take(&mut self.raw);
            let resolved = match StoredValue::decode(&found) {
                Some(StoredValue::Locked(lock))
                    if (lock.id.owner, lock.id.slot, lock.id.number) == (owner, slot, number) =>
                {
                    self.resolve_lock(key, &found, &lock, committed)
                }
                _ => return Ok(()),
            };
            self.raw = found;
            resolved?;
        }
    }

    /// Resolves what the last transaction of this owner and slot left behind.
    pub(super) fn settle_last(&mut self) -> Result<(), KvError<M::Error>> {
        let (owner, slot) = (self.owner, self.slot);
        if let Some((_, number)) = self.settle_record(owner, slot)?.head() {
            self.number = self.number.max(number);
        }
        Ok(())
    }
}
