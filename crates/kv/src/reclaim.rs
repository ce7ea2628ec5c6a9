use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::{Memory, Reservation};
use crate::object::Object;
use crate::slot::ObjectRef;
use crate::words::{Swap, swap_word};

impl<M: Memory> Handle<M> {
    /// Writes what is staged into a new object, or into that of a reservation, which only this
    /// handle knows. The object gets this lot, or one of its own.
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
        Object::set_token(&mut self.staging, reservation.token(), lot);
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

    /// Ends a reservation: what is reachable by nobody goes back.
    pub(crate) fn finish(&mut self, reservation: M::Reservation) {
        // The operation this belongs to is done: its caller must not take it for failed.
        if self.shared.memory.finish(reservation).is_err() {
            self.unreclaimed += 1;
        }
    }

    /// Clears the owner word of a published object, which was `owner` when it was linked: a random
    /// word that is in no other memory, so that this harms nobody however late it is.
    pub(crate) fn clear_owner(
        &self,
        object: GlobalAddr,
        owner: u64,
    ) -> Result<(), KvError<M::Error>> {
        clear_owner(&self.shared.memory, object, owner)
    }
}

/// The same, without a handle.
pub(crate) fn clear_owner<M: Memory>(
    memory: &M,
    object: GlobalAddr,
    owner: u64,
) -> Result<(), KvError<M::Error>> {
    while swap_word(memory, object, owner, 0)? == Swap::Unknown {}
    Ok(())
}
