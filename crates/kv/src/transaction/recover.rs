//! What transactions of others have left behind.

use super::record::{Record, State};
use super::transactor::Transactor;
use crate::error::KvError;
use crate::memory::Memory;

impl<M: Memory> Transactor<M> {
    /// Clears away what a program left that is gone for good: `owner`, of which slots below `slots`
    /// were in use. Others may do the same meanwhile. Afterwards no key has a lock of it.
    pub fn recover(&mut self, owner: u64, slots: u16) -> Result<(), KvError<M::Error>> {
        for slot in 0..slots {
            let record = self.settle_record(owner, slot)?;
            if record.head().is_some() {
                self.handle.compare_and_delete(&Record::key(owner, slot), &record.bytes)?;
            }
        }
        Ok(())
    }

    /// Aborts the transaction of a record if nobody has decided, and resolves all of its locks;
    /// gives the record as it is then.
    pub(super) fn settle_record(
        &mut self,
        owner: u64,
        slot: u16,
    ) -> Result<Record, KvError<M::Error>> {
        let key = Record::key(owner, slot);
        loop {
            let mut record = Record::default();
            self.handle.get(&key, &mut record.bytes)?;
            let Some((state, number)) = record.head() else { return Ok(Record::default()) };
            if state == State::Pending {
                let aborted = record.in_state(State::Aborted);
                match self.handle.compare_and_put(&key, Some(&record.bytes), &aborted.bytes) {
                    Ok(_) | Err(KvError::OutcomeUnknown) => continue,
                    Err(error) => return Err(error),
                }
            }
            for locked in record.keys() {
                self.resolve_key(&locked, owner, slot, number, state == State::Committed)?;
            }
            return Ok(record);
        }
    }
}
