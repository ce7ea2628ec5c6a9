//! The steps of a thread's reservations and their records.

use std::marker::PhantomData;

use rackpool_ring::reservation::{self, Armed, Borrowed};
use rackpool_shm::window::AtomicOperation;

use super::{Phase, PublishCas, PublishMode, Reservation};
use crate::thread::Thread;
use crate::{AccessError, AllocError, FreeError, GlobalAddr};

impl Thread {
    pub(super) fn reservation(&mut self, bytes: Option<u64>) -> Result<Reservation, AllocError> {
        let record = self.free_record()?;
        let addr = match bytes {
            Some(bytes) => match self.alloc_noting(bytes, Some(record)) {
                Ok(addr) => addr,
                Err(error) => {
                    self.end_record(record);
                    return Err(error);
                }
            },
            None => GlobalAddr::NULL,
        };
        Ok(self.reservation_in(record, addr, GlobalAddr::NULL))
    }

    /// Makes a reservation of an object that only this program knows.
    pub(crate) fn reservation_of(&mut self, addr: GlobalAddr) -> Result<Reservation, AllocError> {
        let record = self.free_record()?;
        if let Some(record) = self.record(record) {
            record.hold(addr.raw());
        }
        Ok(self.reservation_in(record, addr, GlobalAddr::NULL))
    }

    /// Takes a record in the state free.
    fn free_record(&mut self) -> Result<u8, AllocError> {
        let record = self.reservations.take().ok_or(AllocError::TooManyReservations)?;
        // The content of a left record has no meaning for the new reservation's object.
        if let Some(left) = self.record(record).filter(|left| !left.is_free()) {
            left.clear();
        }
        Ok(record)
    }

    fn reservation_in(&mut self, record: u8, addr: GlobalAddr, place: GlobalAddr) -> Reservation {
        Reservation {
            addr,
            token: self.reservations.token(),
            pool: self.id,
            record,
            phase: Phase::Held,
            replaced: None,
            place,
            mode: PublishMode::Plain,
            of_one_thread: PhantomData,
        }
    }

    /// Borrows the object from the word at `place`. Returns `None` if the word does not hold its
    /// address.
    pub(super) fn take_out(
        &mut self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Reservation>, AllocError> {
        let record = self.reservations.take().ok_or(AllocError::TooManyReservations)?;
        let reservation = self.reservation_in(record, object, place);
        let borrowed =
            Borrowed { object: object.raw(), token: reservation.token, place: place.raw() };
        if let Some(record) = self.record(record) {
            record.borrow(&borrowed);
        }
        match self.swap_surely(place, object.raw(), reservation.token) {
            Ok(true) => Ok(Some(reservation)),
            Ok(false) => {
                self.end_record(record);
                Ok(None)
            }
            Err(error) => {
                self.leave_record(record);
                Err(error.into())
            }
        }
    }

    /// Swaps a word from a token or to one, and repeats an indeterminate swap until the outcome is
    /// known. A token is swapped in once and out once, so the repetition is safe. Returns true if
    /// the swap was made.
    fn swap_surely(
        &mut self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<bool, AccessError> {
        let mut asked_before = false;
        loop {
            match self.atomic(addr, AtomicOperation::CompareAndSwap { expected, new }) {
                Ok(found) => return Ok(found == expected || (asked_before && found == new)),
                Err(AccessError::Indeterminate(_)) => asked_before = true,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn publish(
        &mut self,
        reservation: &mut Reservation,
        link: &PublishCas,
    ) -> Result<u64, AccessError> {
        if reservation.pool != self.id || reservation.phase != Phase::Held {
            return Err(AccessError::NotAReservation(reservation.addr));
        }
        // `finish` will free it.
        if let Some(replaced) = link.replaced {
            self.window.prefetch_mark(replaced);
        }
        let armed = Armed {
            object: reservation.addr.raw(),
            token: reservation.token,
            link: link.addr.raw(),
            word: link.new,
            mask: link.mask,
            replaced: link.replaced.unwrap_or(GlobalAddr::NULL).raw(),
            mode: match link.mode {
                _ if !reservation.place.is_null() => {
                    reservation::ArmedMode::Borrowed(reservation.place.raw())
                }
                PublishMode::Plain => reservation::ArmedMode::Plain,
                PublishMode::Compare(stamp) => reservation::ArmedMode::Compare(stamp),
                PublishMode::Settle(word) => reservation::ArmedMode::Settle(word),
            },
        };
        let record = self.record(reservation.record);
        record.ok_or(AccessError::NotAReservation(reservation.addr))?.arm(&armed);
        (reservation.replaced, reservation.mode) = (link.replaced, link.mode);
        let PublishCas { expected, new, .. } = *link;
        let found = self.atomic(link.addr, AtomicOperation::CompareAndSwap { expected, new });
        match found {
            Ok(found) if found == expected => self.resolve(reservation, true),
            // A daemon may still execute a request that the client gave up.
            Err(AccessError::Indeterminate(_) | AccessError::Daemon(_)) => {
                reservation.phase = Phase::InDoubt;
            }
            _ => self.resolve(reservation, false),
        }
        found
    }

    /// Records the outcome of the reservation's swap: it was made, or it never will be.
    pub(super) fn resolve(&mut self, reservation: &mut Reservation, published: bool) {
        let compares = matches!(reservation.mode, PublishMode::Compare(_));
        if published && compares && reservation.phase != Phase::Unresolved {
            reservation.phase = Phase::Unresolved;
        } else if published {
            reservation.phase = Phase::Published;
            if !reservation.addr.is_null() && !compares {
                let cleared =
                    AtomicOperation::CompareAndSwap { expected: reservation.token, new: 0 };
                // If this fails, the first client that needs the owner word clears it.
                let _ = self.atomic(reservation.addr, cleared);
            }
        } else if reservation.phase == Phase::InDoubt && !self.calls.settle(&self.connection) {
            // The client gave the swap up, and its daemon may still execute it.
        } else if let Some(record) = self.record(reservation.record) {
            record.disarm();
            reservation.phase = Phase::Held;
        }
    }

    pub(super) fn finish(&mut self, reservation: &Reservation) -> Result<(), FreeError> {
        if reservation.pool != self.id {
            return Err(AccessError::NotAReservation(reservation.addr).into());
        }
        if matches!(reservation.phase, Phase::InDoubt | Phase::Unresolved) {
            self.leave_record(reservation.record);
            return Ok(());
        }
        if !reservation.place.is_null() {
            return self.put_back(reservation);
        }
        let unwanted = match reservation.phase {
            Phase::Published => reservation.replaced,
            _ => Some(reservation.addr).filter(|addr| !addr.is_null()),
        };
        if reservation.phase == Phase::Published
            && let Err(error) = self.settle_link(reservation)
        {
            self.leave_record(reservation.record);
            return Err(error.into());
        }
        let Some(unwanted) = unwanted else {
            self.end_record(reservation.record);
            return Ok(());
        };
        let freed = self.free_noting(unwanted, Some(reservation.record));
        match &freed {
            // The object was not allocated: there is nothing to free.
            Err(FreeError::NotAllocated(_) | FreeError::NotAnObject { .. }) => {
                self.end_record(reservation.record);
            }
            // Its memory is lost, so there is nothing to free either.
            Err(FreeError::Access(AccessError::PageLost(_))) => {
                self.end_record(reservation.record);
                return Ok(());
            }
            // An object that could not be noted elsewhere goes back when the program ends.
            Err(_) => self.leave_record(reservation.record),
            Ok(()) => {}
        }
        freed
    }

    /// Stores what is unreachable into the word that the object was borrowed from.
    fn put_back(&mut self, reservation: &Reservation) -> Result<(), FreeError> {
        let back = match reservation.phase {
            Phase::Published => reservation.replaced.unwrap_or(GlobalAddr::NULL),
            _ => reservation.addr,
        };
        match self.swap_surely(reservation.place, reservation.token, back.raw()) {
            Ok(_) => {
                self.end_record(reservation.record);
                Ok(())
            }
            Err(error) => {
                self.leave_record(reservation.record);
                Err(error.into())
            }
        }
    }

    /// Settles the link of a published reservation, if its mode asks for that.
    fn settle_link(&mut self, reservation: &Reservation) -> Result<(), AccessError> {
        if !matches!(reservation.mode, PublishMode::Settle(_)) {
            return Ok(());
        }
        let Some(record) = self.record(reservation.record) else { return Ok(()) };
        record.mark_replaced();
        let Some(armed) = record.to_settle() else { return Ok(()) };
        let mut found = armed.word;
        while let Some(settled) = armed.settled(found) {
            let swap = AtomicOperation::CompareAndSwap { expected: found, new: settled };
            match self.atomic(GlobalAddr::from_raw(armed.link), swap) {
                Ok(now) if now == found => return Ok(()),
                Ok(now) => found = now,
                Err(AccessError::Indeterminate(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Clears the record: its object is noted elsewhere, or the record is not needed any more.
    pub(crate) fn end_record(&mut self, record: u8) {
        if let Some(record) = self.record(record) {
            record.clear();
        }
        self.reservations.used &= !(1 << record);
    }

    fn leave_record(&mut self, record: u8) {
        if self.reservations.used & 1 << record != 0 {
            self.reservations.used &= !(1 << record);
            self.reservations.left |= 1 << record;
        }
    }
}
