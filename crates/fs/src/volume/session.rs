//! The identity of a mount: a seat, and the token that stands in the seat while the mount lives.

use rackpool_client::GlobalAddr;
use rackpool_kv::ReadRequest;

use crate::error::{FsError, VolumeOpenError};
use crate::format::session::Session;
use crate::format::superblock::VolumeSuperblock;
use crate::volume::Volume;
use crate::volume_memory::VolumeMemory;

/// A mount's session, with the seat that it keeps.
pub(crate) struct TakenSeat<S> {
    pub(crate) session: Session,
    pub(crate) seat: S,
}

/// Takes a free seat.
///
/// # Errors
/// [`VolumeOpenError::TooManyMounts`] if all seats are taken.
pub(crate) fn take_seat<M: VolumeMemory>(
    memory: &M,
    superblock: GlobalAddr,
) -> Result<TakenSeat<M::Seat>, VolumeOpenError> {
    let failed = |error| VolumeOpenError::Fs(FsError::of_memory::<M>(error));
    for seat in 0..VolumeSuperblock::SEATS {
        let addr = VolumeSuperblock::seat_addr(superblock, seat);
        let mut word = [0; 8];
        memory.read(addr, &mut word).map_err(failed)?;
        if u64::from_le_bytes(word) != superblock.raw() {
            continue;
        }
        if let Some(held) = memory.sit(addr, superblock).map_err(failed)? {
            let session = Session { seat, token: held.token };
            return Ok(TakenSeat { session, seat: held.seat });
        }
    }
    Err(VolumeOpenError::TooManyMounts(VolumeSuperblock::SEATS))
}

impl<M: VolumeMemory> Volume<M> {
    /// Returns whether a mount is alive. If its seat cannot be read, the mount counts as alive.
    pub(crate) fn is_alive(&self, session: Session) -> bool {
        if session == self.session {
            return true;
        }
        if session.seat >= VolumeSuperblock::SEATS {
            return false;
        }
        let mut word = [0; 8];
        let addr = VolumeSuperblock::seat_addr(self.superblock, session.seat);
        let read = self.memory.read_batch(&mut [ReadRequest { addr, into: &mut word }]);
        read.is_err() || u64::from_le_bytes(word) == session.token
    }

    /// Returns whether no other mount has the file open. Sessions of mounts that are gone are
    /// removed from `opens`.
    pub(crate) fn is_ours_alone(&self, opens: &mut Vec<Session>) -> bool {
        opens.retain(|session| self.is_alive(*session));
        opens.iter().all(|session| *session == self.session)
    }

    /// Fails with [`FsError::Busy`] if another mount that is alive holds the claim.
    pub(crate) fn check_claim(&self, claim: Option<Session>) -> Result<(), FsError> {
        match claim {
            Some(other) if other != self.session && self.is_alive(other) => Err(FsError::Busy),
            _ => Ok(()),
        }
    }
}
