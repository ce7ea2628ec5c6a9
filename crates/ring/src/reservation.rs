//! Reservation records: objects that a program has and that nothing points to yet, or that it has
//! unlinked. `docs/design/publication.md` describes each state and what a kill between any two
//! stores leaves.

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Number of reservations that a thread can have at the same time.
pub const RESERVATIONS: usize = 16;

const FREE: u64 = 0;
const HELD: u64 = 1;
const ARMED: u64 = 2;
const REPLACED: u64 = 3;
const BORROWED: u64 = 4;
const BORROWED_ARMED: u64 = 5;
const COMPARE_ARMED: u64 = 6;
const SETTLE_ARMED: u64 = 7;
const SETTLE_REPLACED: u64 = 8;

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

/// The compare-and-swap that publishes a reservation, as an armed record states it. Addresses are
/// global, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Armed {
    /// The object to be published; 0 if one is only unlinked.
    pub object: u64,
    /// The value of the object's owner word until it is published.
    pub token: u64,
    /// Address of the link, the word that is swapped.
    pub link: u64,
    /// New value of the link.
    pub word: u64,
    /// The bits of the link that tell whether it holds `word`.
    pub mask: u64,
    /// The object that the link pointed to before. It is freed, or put back to the place of a
    /// borrowed object, if the swap was made.
    pub replaced: u64,
    /// The variant of the publication.
    pub mode: ArmedMode,
}

/// Variants of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArmedMode {
    /// The publication counts once the swap was made.
    #[default]
    Plain,
    /// The object was borrowed from the word at this address, which has held the token since. The
    /// unreachable object is put back there and not to the pool.
    Borrowed(u64),
    /// The publication counts only if the second word of `replaced` still has this value, its
    /// stamp.
    Compare(u64),
    /// The bits of `mask` in the link are set to those of this value before `replaced` is freed.
    Settle(u64),
}

/// A borrowed object, as its record states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrowed {
    /// The borrowed object.
    pub object: u64,
    /// The value of the word while the object is borrowed.
    pub token: u64,
    /// Address of the word that the object was borrowed from.
    pub place: u64,
}

impl Armed {
    /// Returns true if `link`, the value of the link, proves that the swap was made.
    #[must_use]
    pub const fn is_linked(&self, link: u64) -> bool {
        (link ^ self.word) & self.mask == 0
    }

    /// Returns the value that settles a link with the value `link`, or `None` if it needs no
    /// settling.
    #[must_use]
    pub const fn settled(&self, link: u64) -> Option<u64> {
        match self.mode {
            ArmedMode::Settle(word) if self.is_linked(link) => {
                Some((link & !self.mask) | (word & self.mask))
            }
            _ => None,
        }
    }
}

impl ReservationRecord {
    /// State held: notes an object that only the client knows. The record must be free.
    #[inline]
    pub fn hold(&self, object: u64) {
        self.object.store(object, Ordering::Release);
        // SYNC: pairs with the load in `is_held`, in the daemon when the client has gone.
        self.state.store(HELD, Ordering::Release);
    }

    /// State borrowed: notes an object that is about to be taken out of a word. The record must be
    /// free.
    pub fn borrow(&self, borrowed: &Borrowed) {
        self.object.store(borrowed.object, Ordering::Release);
        self.token.store(borrowed.token, Ordering::Release);
        self.aside.store(borrowed.place, Ordering::Release);
        // SYNC: pairs with the load in `borrowed`, in the daemon when the client has gone.
        self.state.store(BORROWED, Ordering::Release);
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
        let (state, aside) = match armed.mode {
            ArmedMode::Plain => (ARMED, 0),
            ArmedMode::Borrowed(place) => (BORROWED_ARMED, place),
            ArmedMode::Compare(stamp) => (COMPARE_ARMED, stamp),
            ArmedMode::Settle(word) => (SETTLE_ARMED, word),
        };
        self.aside.store(aside, Ordering::Release);
        // SYNC: pairs with the load in `armed`, in the daemon when the client has gone.
        self.state.store(state, Ordering::Release);
    }

    /// Leaves the armed state for held or borrowed: the swap was certainly not made.
    #[inline]
    pub fn disarm(&self) {
        let borrowed = self.state.load(Ordering::Relaxed) == BORROWED_ARMED;
        // SYNC: pairs with the loads in `is_held` and `borrowed`.
        self.state.store(if borrowed { BORROWED } else { HELD }, Ordering::Release);
    }

    /// Leaves the armed state for replaced: the swap was certainly made, and `replaced` is
    /// unreachable. Not for borrowed objects. A link to settle remains noted until it is settled.
    pub fn mark_replaced(&self) {
        let settle = self.state.load(Ordering::Relaxed) == SETTLE_ARMED;
        let state = if settle { SETTLE_REPLACED } else { REPLACED };
        // SYNC: pairs with the loads in `noted` and `to_settle`, in this daemon or the next one.
        self.state.store(state, Ordering::Release);
    }

    /// State free: the record notes no object.
    #[inline]
    pub fn clear(&self) {
        // SYNC: pairs with the load in `noted`.
        self.state.store(FREE, Ordering::Release);
    }

    /// Returns true in state free.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FREE
    }

    /// Returns true in state held: the record notes an object that was never published.
    #[must_use]
    pub fn is_held(&self) -> bool {
        // SYNC: pairs with the stores in `hold` and `disarm`.
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Returns the swap of an armed record; it may or may not have been made.
    #[must_use]
    pub fn armed(&self) -> Option<Armed> {
        // SYNC: pairs with the store in `arm`.
        let state = self.state.load(Ordering::Acquire);
        matches!(state, ARMED | BORROWED_ARMED | COMPARE_ARMED | SETTLE_ARMED)
            .then(|| self.swap(state))
    }

    /// Returns the swap that was made and whose link may not be settled yet, if there is one.
    #[must_use]
    pub fn to_settle(&self) -> Option<Armed> {
        // SYNC: pairs with the store in `mark_replaced`.
        let state = self.state.load(Ordering::Acquire);
        (state == SETTLE_REPLACED).then(|| self.swap(state))
    }

    fn swap(&self, state: u64) -> Armed {
        let aside = self.aside.load(Ordering::Relaxed);
        Armed {
            object: self.object.load(Ordering::Relaxed),
            token: self.token.load(Ordering::Relaxed),
            link: self.link.load(Ordering::Relaxed),
            word: self.word.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
            replaced: self.replaced.load(Ordering::Relaxed),
            mode: match state {
                BORROWED_ARMED => ArmedMode::Borrowed(aside),
                COMPARE_ARMED => ArmedMode::Compare(aside),
                SETTLE_ARMED | SETTLE_REPLACED => ArmedMode::Settle(aside),
                _ => ArmedMode::Plain,
            },
        }
    }

    /// Returns the borrowed object and its place, if the record is in state borrowed.
    #[must_use]
    pub fn borrowed(&self) -> Option<Borrowed> {
        // SYNC: pairs with the stores in `borrow` and `disarm`.
        if self.state.load(Ordering::Acquire) != BORROWED {
            return None;
        }
        Some(Borrowed {
            object: self.object.load(Ordering::Relaxed),
            token: self.token.load(Ordering::Relaxed),
            place: self.aside.load(Ordering::Relaxed),
        })
    }

    /// Returns the field with the object that goes back to the pool after the client's death.
    /// Returns `None` if there is none, or if the record is armed and not resolved.
    #[must_use]
    pub fn noted(&self) -> Option<&AtomicU64> {
        // SYNC: pairs with the stores in `hold`, `disarm`, `mark_replaced` and `clear`.
        match self.state.load(Ordering::Acquire) {
            HELD => Some(&self.object),
            REPLACED | SETTLE_REPLACED => Some(&self.replaced),
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
    fn only_bits_of_the_mask_tell_whether_a_link_is_the_word() {
        let armed = Armed { word: 0xf0, mask: 0xff, ..Armed::default() };
        assert!(armed.is_linked(0xf0) && armed.is_linked(0xabf0));
        assert!(!armed.is_linked(0xf1));
    }

    #[test]
    fn a_state_that_nobody_writes_says_nothing() {
        let record = ReservationRecord::default();
        record.state.store(77, Ordering::Relaxed);
        assert!(record.noted().is_none() && record.struck().is_none() && record.armed().is_none());
    }
}
