//! Recovery from transactions whose owner was killed.

use crate::error::KvError;
use crate::memory::Memory;
use crate::transactions::transactor::Transactor;
use crate::transactions::transactor::record::{TransactorRecord, TransactorState};

impl<M: Memory> Transactor<M> {
    /// Removes the locks and records of `owner`, a program that is gone for good and used slots
    /// below `slots`. Others may do the same concurrently. Afterwards no key has a lock of that
    /// owner.
    pub fn recover(&mut self, owner: u64, slots: u16) -> Result<(), KvError<M::Error>> {
        for slot in 0..slots {
            let record = self.settle_record(owner, slot)?;
            if record.head().is_some() {
                self.handle
                    .compare_and_delete(&TransactorRecord::key(owner, slot), &record.bytes)?;
            }
        }
        Ok(())
    }

    /// Aborts the transaction of a record if it is undecided, and resolves all of its locks.
    /// Returns the record afterwards, which is empty if there is none.
    pub(super) fn settle_record(
        &mut self,
        owner: u64,
        slot: u16,
    ) -> Result<TransactorRecord, KvError<M::Error>> {
        let key = TransactorRecord::key(owner, slot);
        loop {
            let mut record = TransactorRecord::default();
            self.handle.get(&key, &mut record.bytes)?;
            let Some((state, number)) = record.head() else {
                return Ok(TransactorRecord::default());
            };
            if state == TransactorState::Pending {
                let aborted = record.in_state(TransactorState::Aborted);
                match self.handle.compare_and_put(&key, Some(&record.bytes), &aborted.bytes) {
                    Ok(_) | Err(KvError::OutcomeUnknown) => continue,
                    Err(error) => return Err(error),
                }
            }
            for locked in record.keys() {
                self.resolve_key(
                    &locked,
                    owner,
                    slot,
                    number,
                    state == TransactorState::Committed,
                )?;
            }
            return Ok(record);
        }
    }
}
