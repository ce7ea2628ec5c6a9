use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::object::EntryObject;
use crate::layout::slot::ObjectRef;
use crate::memory::words::{CasOutcome, swap_word};
use crate::memory::{Memory, ReservedObject};

impl<M: Memory> Handle<M> {
    /// Writes the staging buffer into a new object, or into that of `reservation`, which is not yet
    /// linked. The object gets the given `lot`, or a random one.
    pub(crate) fn write_object(
        &mut self,
        reservation: Option<M::Reservation>,
        lot: Option<u32>,
    ) -> Result<(ObjectRef, M::Reservation), KvError<M::Error>> {
        let memory = &self.shared.memory;
        let bytes = self.staging.len();
        let least = (bytes as u64).max(ObjectRef::ALIGN);
        let reservation = match reservation {
            Some(reservation) => reservation,
            None => memory.reserve(least).map_err(KvError::Memory)?,
        };
        EntryObject::set_token(&mut self.staging, reservation.token(), lot);
        let addr = reservation.addr();
        let Some(object) = ObjectRef::new(addr, bytes) else {
            self.finish(reservation);
            return Err(KvError::Address { addr });
        };
        if let Err(error) = memory.write(addr, &self.staging) {
            self.finish(reservation);
            return Err(KvError::Memory(error));
        }
        Ok((object, reservation))
    }

    /// Ends a reservation: frees the object that is unreachable.
    pub(crate) fn finish(&mut self, reservation: M::Reservation) {
        // The operation has taken effect, so the caller must not see an error.
        if self.shared.memory.finish(reservation).is_err() {
            self.unreclaimed += 1;
        }
    }

    /// Clears the owner word of a published object, which was `owner` when the object was linked. A
    /// token is random and never reused, so a late swap does no harm.
    pub(crate) fn clear_owner(
        &self,
        object: GlobalAddr,
        owner: u64,
    ) -> Result<(), KvError<M::Error>> {
        clear_owner(&self.shared.memory, object, owner)
    }
}

/// [`Handle::clear_owner`] without a handle.
pub(crate) fn clear_owner<M: Memory>(
    memory: &M,
    object: GlobalAddr,
    owner: u64,
) -> Result<(), KvError<M::Error>> {
    while swap_word(memory, object, owner, 0)? == CasOutcome::Unknown {}
    Ok(())
}
