use rackpool_client::PublishCas;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::words::read_word;
use crate::memory::{CasError, Memory, ReservedObject};

impl<M: Memory> Handle<M> {
    /// [`publish_once`], counting an unknown outcome in `unreclaimed`.
    pub(crate) fn publish_once(
        &mut self,
        reservation: &mut M::Reservation,
        link: &PublishCas,
    ) -> Result<bool, KvError<M::Error>> {
        let published = publish_once(&self.shared.memory, reservation, link);
        if matches!(published, Err(KvError::OutcomeUnknown)) {
            self.unreclaimed += 1;
        }
        published
    }
}

/// Publishes a reservation with an owner word; returns whether the link had the expected word. If
/// the swap is indeterminate, the link and the owner word tell its outcome.
pub(crate) fn publish_once<M: Memory>(
    memory: &M,
    reservation: &mut M::Reservation,
    link: &PublishCas,
) -> Result<bool, KvError<M::Error>> {
    loop {
        match memory.publish(reservation, link) {
            Ok(found) => return Ok(found == link.expected),
            Err(CasError::Failed(error)) => return Err(KvError::Memory(error)),
            Err(CasError::GivenUp(_)) => return Err(KvError::OutcomeUnknown),
            Err(CasError::Indeterminate) => {}
        }
        // The link is read first: a client that changes it has cleared the owner word before.
        let published = read_word(memory, link.addr)? == link.new
            || read_word(memory, reservation.addr())? != reservation.token();
        memory.resolve(reservation, published);
        if published {
            return Ok(true);
        }
    }
}
