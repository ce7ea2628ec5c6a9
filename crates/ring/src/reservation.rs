//! Reservation records: objects that a program has and that nothing points to yet, or that it has
//! unlinked. `docs/design/publication.md` describes each state and what a kill between any two
//! stores leaves.

pub use rackpool_model::{Armed, ArmedMode, Borrowed, ReservationState};
use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Number of reservations that a thread can have at the same time.
pub const RESERVATIONS: usize = 16;

/// The record of one reservation. The client's thread writes it; after the client's death the
/// daemon does.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ReservationRecord {
    state: AtomicU64,
    object: AtomicU64,
    token: AtomicU64,
    link: AtomicU64,
    word: AtomicU64,
    mask: AtomicU64,
    replaced: AtomicU64,
    /// Depends on the mode: the place of a borrowed object, the stamp to compare, or the settled
    /// value of the link.
    aside: AtomicU64,
}

#[cfg(not(loom))]
// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl rackpool_shm::Shared for ReservationRecord {}

impl ReservationRecord {
    /// State held: notes an object that only the client knows. The record must be free.
    #[inline]
    pub fn hold(&self, object: u64) {
        self.object.store(object, Ordering::Release);
        // SYNC: pairs with the load in `read`, in the daemon when the client has gone.
        self.state.store(ReservationState::HELD, Ordering::Release);
    }

    /// State borrowed: notes an object that is about to be taken out of a word. The record must be
    /// free.
    pub fn borrow(&self, borrowed: &Borrowed) {
        self.object.store(borrowed.object, Ordering::Release);
        self.token.store(borrowed.token, Ordering::Release);
        self.aside.store(borrowed.place, Ordering::Release);
        // SYNC: pairs with the load in `read`, in the daemon when the client has gone.
        self.state.store(ReservationState::BORROWED, Ordering::Release);
    }

    /// State armed: notes a swap that is about to be made. The record must be held, borrowed or
    /// free.
    #[inline]
    pub fn arm(&self, armed: &Armed) {
        // Release stores keep their order, so the record is never armed with a part of the fields.
        self.object.store(armed.object, Ordering::Release);
        self.token.store(armed.token, Ordering::Release);
        self.link.store(armed.link, Ordering::Release);
        self.word.store(armed.word, Ordering::Release);
        self.mask.store(armed.mask, Ordering::Release);
        self.replaced.store(armed.replaced, Ordering::Release);
        let (state, aside) = armed.state_and_aside();
        self.aside.store(aside, Ordering::Release);
        // SYNC: pairs with the load in `read`, in the daemon when the client has gone.
        self.state.store(state, Ordering::Release);
    }

    /// Leaves the armed state for held or borrowed: the swap was certainly not made.
    #[inline]
    pub fn disarm(&self) {
        let borrowed = self.state.load(Ordering::Relaxed) == ReservationState::BORROWED_ARMED;
        // SYNC: pairs with the load in `read`.
        self.state.store(
            if borrowed { ReservationState::BORROWED } else { ReservationState::HELD },
            Ordering::Release,
        );
    }

    /// Leaves the armed state for replaced: the swap was certainly made, and `replaced` is
    /// unreachable. Not for borrowed objects. A link to settle remains noted until it is settled.
    pub fn mark_replaced(&self) {
        let settle = self.state.load(Ordering::Relaxed) == ReservationState::SETTLE_ARMED;
        let state =
            if settle { ReservationState::SETTLE_REPLACED } else { ReservationState::REPLACED };
        // SYNC: pairs with the load in `read`, in this daemon or the next one.
        self.state.store(state, Ordering::Release);
    }

    /// State free: the record notes no object.
    #[inline]
    pub fn clear(&self) {
        // SYNC: pairs with the load in `noted`.
        self.state.store(ReservationState::FREE, Ordering::Release);
    }

    /// Returns true in state free.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ReservationState::FREE
    }

    /// Returns true in state held: the record notes an object that was never published.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.read(), ReservationState::Held(_))
    }

    /// Returns what the record says.
    #[must_use]
    pub fn read(&self) -> ReservationState {
        // SYNC: pairs with the stores in `hold`, `borrow`, `arm`, `disarm`, `mark_replaced` and
        // `clear`.
        let state = self.state.load(Ordering::Acquire);
        let Self { object, token, link, word, mask, replaced, aside, .. } = self;
        let fields = [object, token, link, word, mask, replaced, aside];
        let [object, token, link, word, mask, replaced, aside] =
            fields.map(|field| field.load(Ordering::Relaxed));
        ReservationState::decode([state, object, token, link, word, mask, replaced, aside])
    }

    /// Returns the swap of an armed record; it may or may not have been made.
    #[must_use]
    pub fn armed(&self) -> Option<Armed> {
        match self.read() {
            ReservationState::Armed(armed) => Some(armed),
            _ => None,
        }
    }

    /// Returns the swap that was made and whose link may not be settled yet, if there is one.
    #[must_use]
    pub fn to_settle(&self) -> Option<Armed> {
        match self.read() {
            ReservationState::Settling(made) => Some(made),
            _ => None,
        }
    }

    /// Returns the borrowed object and its place, if the record is in state borrowed.
    #[must_use]
    pub fn borrowed(&self) -> Option<Borrowed> {
        match self.read() {
            ReservationState::Borrowed(borrowed) => Some(borrowed),
            _ => None,
        }
    }

    /// Returns the field with the object that goes back to the pool after the client's death.
    /// Returns `None` if there is none, or if the record is armed and not resolved.
    #[must_use]
    pub fn noted(&self) -> Option<&AtomicU64> {
        // SYNC: pairs with the stores in `hold`, `disarm`, `mark_replaced` and `clear`.
        match self.state.load(Ordering::Acquire) {
            ReservationState::HELD => Some(&self.object),
            ReservationState::REPLACED | ReservationState::SETTLE_REPLACED => Some(&self.replaced),
            _ => None,
        }
    }

    /// Returns the field to be cleared when its object has gone back through another note: the one
    /// that [`noted`](Self::noted) returns, or `replaced` of an armed record.
    #[must_use]
    pub fn struck(&self) -> Option<&AtomicU64> {
        let is_of_the_pool = |armed: &Armed| !matches!(armed.mode, ArmedMode::Borrowed(_));
        self.noted().or_else(|| self.armed().filter(is_of_the_pool).map(|_| &self.replaced))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn value(cell: Option<&AtomicU64>) -> Option<u64> {
        cell.map(|cell| cell.load(Ordering::Relaxed))
    }

    /// The offsets of docs/design/publication.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        assert_eq!(size_of::<ReservationRecord>(), 64);
        assert_eq!(
            (offset_of!(ReservationRecord, state), offset_of!(ReservationRecord, object)),
            (0, 8)
        );
        assert_eq!(
            (offset_of!(ReservationRecord, token), offset_of!(ReservationRecord, link)),
            (16, 24)
        );
        assert_eq!(
            (offset_of!(ReservationRecord, word), offset_of!(ReservationRecord, mask)),
            (32, 40)
        );
        assert_eq!(
            (offset_of!(ReservationRecord, replaced), offset_of!(ReservationRecord, aside)),
            (48, 56)
        );
    }

    #[test]
    fn a_record_says_in_each_state_what_goes_back() {
        let record = ReservationRecord::default();
        assert!(record.is_free() && record.noted().is_none() && record.struck().is_none());
        record.hold(16);
        assert!(record.is_held());
        assert_eq!((value(record.noted()), value(record.struck())), (Some(16), Some(16)));
        let armed = Armed {
            object: 16,
            token: 1,
            link: 2,
            word: 3,
            mask: 4,
            replaced: 32,
            mode: ArmedMode::Plain,
        };
        record.arm(&armed);
        assert_eq!(record.armed(), Some(armed));
        assert_eq!((value(record.noted()), value(record.struck())), (None, Some(32)));
        record.disarm();
        assert_eq!(value(record.noted()), Some(16));
        record.arm(&armed);
        record.mark_replaced();
        assert_eq!((value(record.noted()), record.armed()), (Some(32), None));
        record.clear();
        assert!(record.is_free());
    }

    #[test]
    fn what_was_lent_does_not_go_back_to_the_pool() {
        let record = ReservationRecord::default();
        let borrowed = Borrowed { object: 64, token: 7, place: 8 };
        record.borrow(&borrowed);
        assert_eq!(record.borrowed(), Some(borrowed));
        assert!(record.noted().is_none() && record.struck().is_none() && !record.is_held());
        let armed = Armed {
            object: 64,
            token: 7,
            replaced: 128,
            mode: ArmedMode::Borrowed(8),
            ..Armed::default()
        };
        record.arm(&armed);
        assert_eq!((record.armed(), record.borrowed()), (Some(armed), None));
        assert!(record.noted().is_none() && record.struck().is_none());
        record.disarm();
        assert_eq!(record.borrowed(), Some(borrowed));
    }

    #[test]
    fn a_link_is_settled_before_what_it_replaced_goes_back() {
        let record = ReservationRecord::default();
        let armed = Armed {
            word: 0xf1,
            mask: 0xff,
            replaced: 64,
            mode: ArmedMode::Settle(0x01),
            ..Armed::default()
        };
        record.arm(&armed);
        assert_eq!((record.armed(), record.to_settle()), (Some(armed), None));
        record.mark_replaced();
        assert_eq!((record.armed(), record.to_settle()), (None, Some(armed)));
        assert_eq!(value(record.noted()), Some(64));
        // Other clients may have changed bits outside the mask.
        assert_eq!((armed.settled(0x1f1), armed.settled(0x101)), (Some(0x101), None));
        let plain = Armed { mode: ArmedMode::Plain, ..armed };
        assert_eq!(plain.settled(0xf1), None);
    }

    #[test]
    fn a_state_that_nobody_writes_says_nothing() {
        let record = ReservationRecord::default();
        record.state.store(77, Ordering::Relaxed);
        assert!(record.noted().is_none() && record.struck().is_none() && record.armed().is_none());
    }
}
