use crate::entries::find::{LiveSlot, Located, LookupIntent};
use crate::entries::store::PendingPut;
use crate::entry::{Form, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::condition::Condition;
use crate::layout::object::EntryObject;
use crate::layout::slot::ObjectRef;
use crate::memory::{Memory, ReservedObject};

impl<M: Memory> Handle<M> {
    /// Replaces the value of a key if it is `expected`; returns whether it did.
    pub(crate) fn exchange(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let mut put = self.prepare_put(key, Form::PLAIN, new, Condition::BYTES)?;
        let result = self.try_exchange(&mut put, expected);
        self.discard(put);
        result
    }

    fn try_exchange(
        &mut self,
        put: &mut PendingPut<'_, M::Reservation>,
        expected: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        loop {
            let Located::Live(slot) = self.locate(put.hash, put.key, LookupIntent::Write)? else {
                return Ok(false);
            };
            if slot.form.is_over() {
                return Ok(false);
            }
            if slot.form.kind != ValueKind::STRING {
                return Err(KvError::OtherKind { found: slot.form.kind });
            }
            if self.scratch[slot.value.clone()] != *expected {
                return Ok(false);
            }
            if !self.is_published(&slot)? {
                continue;
            }
            if self.exchange_slot(&slot, put)? {
                return Ok(true);
            }
        }
    }

    /// Replaces the object that a search just read, and whose owner word is 0, by a compare-and-put
    /// on its stamp; returns whether the object was unchanged.
    pub(crate) fn exchange_slot(
        &mut self,
        slot: &LiveSlot,
        put: &mut PendingPut<'_, M::Reservation>,
    ) -> Result<bool, KvError<M::Error>> {
        let condition = Condition { word: slot.word, stamp: EntryObject::stamp_in(&self.scratch) };
        self.write_put(put, Some(condition))?;
        if !self.link(slot.at, slot.word, put)? {
            return Ok(false);
        }
        let Some((object, reservation)) = put.object.take() else { return Ok(false) };
        self.settle_exchange(put, condition, object, reservation)
    }

    /// Resolves a compare-and-put whose object was linked; returns whether it counts.
    fn settle_exchange(
        &mut self,
        put: &PendingPut<'_, M::Reservation>,
        condition: Condition,
        object: ObjectRef,
        mut reservation: M::Reservation,
    ) -> Result<bool, KvError<M::Error>> {
        let (addr, token) = (object.addr, reservation.token());
        let counts = self
            .decide_condition(addr, token, condition)
            .or_else(|error| self.decided_by_others(addr, token).ok_or(error));
        match &counts {
            Ok(true) => self.shared.memory.resolve(&mut reservation, true),
            // A search for the key resolves every aborted object in its way and unlinks it. In this
            // life of the segment no other slot can point to the object.
            Ok(false) => {
                if self.locate(put.hash, put.key, LookupIntent::Write).is_ok() {
                    self.shared.memory.abort(&mut reservation);
                }
            }
            Err(_) => self.unreclaimed += 1,
        }
        // If the outcome is unknown, neither object is freed.
        self.finish(reservation);
        counts.or(Err(KvError::OutcomeUnknown))
    }
}
