use rackpool_client::GlobalAddr;

use crate::hash::KeyHash;
use crate::life::Life;

/// A slot: one aligned 64-bit word, the only thing in a segment that changes, always by
/// compare-and-swap.
///
/// ```text
///  63     62  61 60     53 52   50 49         42 41                    0
/// +------+------+---------+-------+-------------+-----------------------+
/// |frozen| pins | version | class | fingerprint |   address / 64        |  LIVE: class 1..=7
/// +------+------+---------+-------+-------------+---------+----+--------+
/// |frozen|  0   | version |   0   |             0         | 0  |  life  |  EMPTY
/// |frozen|  0   | version |   0   |             0         | 1  |   0    |  DEAD (bit 17)
/// +------+------+---------+-------+-----------------------+----+--------+
/// ```
///
/// `version` counts the changes of this place in memory, over all lives of the segment. `pins`
/// counts the clients that hold the object for a compare-and-put; taking one is no change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotWord(u64);

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// Never used in this life: the search for a key ends here.
    Empty(Life),
    /// Its key was deleted; stays so for the rest of the life.
    Dead,
    /// Points to an object.
    Live,
}

/// Where an object is and how much of it to read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub(crate) addr: GlobalAddr,
    /// 1..=6: an object of at most `32 << class` bytes; 7: a larger one.
    class: u8,
}

impl SlotWord {
    const FROZEN: u64 = 1 << 63;
    const PINS_SHIFT: u32 = 61;
    const PINS_MASK: u64 = 3 << Self::PINS_SHIFT;
    const VERSION_SHIFT: u32 = 53;
    const VERSION_MASK: u64 = 0xff << Self::VERSION_SHIFT;
    const CLASS_SHIFT: u32 = 50;
    const CLASS_MASK: u64 = 7 << Self::CLASS_SHIFT;
    const FINGERPRINT_SHIFT: u32 = 42;
    const ADDR_MASK: u64 = (1 << 42) - 1;
    const DEAD: u64 = 1 << Life::BITS;

    /// As many clients as can hold one object at once.
    pub(crate) const MAX_PINS: u64 = 3;

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The empty slot of a new life, at a place whose word is `self`.
    pub(crate) const fn emptied(self, life: Life) -> Self {
        Self(self.next_version() | life.bits())
    }

    /// The slot after its key was deleted.
    pub(crate) const fn deleted(self) -> Self {
        Self(self.next_version() | Self::DEAD)
    }

    /// The slot after `object` was put in.
    pub(crate) const fn pointing(self, object: ObjectRef, hash: KeyHash) -> Self {
        Self(
            self.next_version()
                | (object.class as u64) << Self::CLASS_SHIFT
                | (hash.fingerprint() as u64) << Self::FINGERPRINT_SHIFT
                | (object.addr.raw() >> 6),
        )
    }

    /// The slot of a new life at a place whose word is `self`, for the object (and the pins) that
    /// `frozen` had in the old segment.
    pub(crate) const fn moved_here(self, frozen: Self) -> Self {
        let kept = Self::PINS_MASK | Self::CLASS_MASK | ((1 << Self::CLASS_SHIFT) - 1);
        Self(self.next_version() | (frozen.0 & kept))
    }

    const fn next_version(self) -> u64 {
        self.0.wrapping_add(1 << Self::VERSION_SHIFT) & Self::VERSION_MASK
    }

    /// How many changes lie between `earlier` and this, modulo 256.
    #[expect(clippy::cast_possible_truncation, reason = "the version has 8 bits")]
    pub(crate) const fn changes_since(self, earlier: Self) -> u8 {
        (self.0.wrapping_sub(earlier.0 & Self::VERSION_MASK) >> Self::VERSION_SHIFT) as u8
    }

    #[inline]
    pub(crate) const fn is_frozen(self) -> bool {
        self.0 & Self::FROZEN != 0
    }

    pub(crate) const fn frozen(self) -> Self {
        Self(self.0 | Self::FROZEN)
    }

    pub(crate) const fn pins(self) -> u64 {
        (self.0 & Self::PINS_MASK) >> Self::PINS_SHIFT
    }

    /// With one pin more, unless there are as many as fit.
    pub(crate) const fn pinned(self) -> Option<Self> {
        if self.pins() == Self::MAX_PINS {
            return None;
        }
        Some(Self(self.0 + (1 << Self::PINS_SHIFT)))
    }

    /// With one pin less; there must be one.
    pub(crate) const fn unpinned(self) -> Self {
        Self(self.0 - (1 << Self::PINS_SHIFT))
    }

    /// Whether nothing but pins and the frozen bit differs: the slot was not changed.
    #[inline]
    pub(crate) const fn is_unchanged(self, earlier: Self) -> bool {
        (self.0 ^ earlier.0) & !(Self::FROZEN | Self::PINS_MASK) == 0
    }

    #[inline]
    pub(crate) const fn kind(self) -> SlotKind {
        if self.0 & Self::CLASS_MASK != 0 {
            SlotKind::Live
        } else if self.0 & Self::DEAD != 0 {
            SlotKind::Dead
        } else {
            SlotKind::Empty(Life::from_bits(self.0))
        }
    }

    /// Whether this is a live slot whose key may have this hash.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fingerprint has 8 bits")]
    pub(crate) const fn may_hold(self, hash: KeyHash) -> bool {
        (self.0 >> Self::FINGERPRINT_SHIFT) as u8 == hash.fingerprint()
            && self.0 & Self::CLASS_MASK != 0
    }

    /// The object of a live slot.
    #[inline]
    pub(crate) const fn object(self) -> ObjectRef {
        ObjectRef {
            addr: GlobalAddr::from_raw((self.0 & Self::ADDR_MASK) << 6),
            class: ((self.0 & Self::CLASS_MASK) >> Self::CLASS_SHIFT) as u8,
        }
    }
}

impl std::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}({:#018x})", self.kind(), self.0)
    }
}

impl ObjectRef {
    /// The largest object that is read in one go.
    pub(crate) const MAX_WHOLE: usize = 2048;
    const LARGE: u8 = 7;

    /// `None` when a slot can't point to `addr`.
    pub(crate) fn new(addr: GlobalAddr, bytes: usize) -> Option<Self> {
        if addr.raw() == 0 || addr.raw() >> 48 != 0 || !addr.raw().is_multiple_of(64) {
            return None;
        }
        let class = (1..Self::LARGE).find(|class| bytes <= 32 << class).unwrap_or(Self::LARGE);
        Some(Self { addr, class })
    }

    /// How many bytes to read to have all of it, or `None` when its header must be read first.
    #[inline]
    pub(crate) const fn whole_bytes(self) -> Option<usize> {
        if self.class == Self::LARGE { None } else { Some(32 << self.class) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(raw: u64, bytes: usize) -> ObjectRef {
        ObjectRef::new(GlobalAddr::from_raw(raw), bytes).unwrap()
    }

    #[test]
    fn a_live_word_keeps_its_parts() {
        let hash = KeyHash::from_raw(0xab << 56);
        let place = SlotWord::from_raw(0).emptied(Life::FIRST);
        let word = place.pointing(object((1 << 48) - 64, 65), hash);
        assert_eq!(word.kind(), SlotKind::Live);
        assert_eq!(word.object().addr.raw(), (1 << 48) - 64);
        assert_eq!(word.object().whole_bytes(), Some(128));
        assert!(word.may_hold(hash) && !word.may_hold(KeyHash::from_raw(0)));
        assert_eq!(word.changes_since(place), 1);
        assert_eq!(object(64, 2049).whole_bytes(), None);
        assert_eq!(object(64, 2048).whole_bytes(), Some(2048));
    }

    #[test]
    fn freezing_and_pinning_are_no_changes() {
        let word = SlotWord::from_raw(0).pointing(object(4096, 40), KeyHash::from_raw(1));
        let pinned = word.pinned().unwrap().pinned().unwrap().pinned().unwrap();
        assert_eq!((pinned.pins(), pinned.pinned()), (3, None));
        assert!(pinned.frozen().is_unchanged(word));
        assert_eq!(pinned.unpinned().unpinned().unpinned(), word);
        assert!(!word.deleted().is_unchanged(word));
        assert_eq!(word.deleted().kind(), SlotKind::Dead);
    }

    #[test]
    fn versions_go_on_over_lives_and_wrap() {
        let mut word = SlotWord::from_raw(0);
        for _ in 0..255 {
            word = word.emptied(Life::FIRST);
        }
        let old = word.pointing(object(4096, 40), KeyHash::from_raw(1)).frozen();
        let moved = SlotWord::from_raw(0).moved_here(old);
        assert_eq!(old.changes_since(word), 1);
        assert_eq!((moved.object(), moved.is_frozen()), (old.object(), false));
        assert_eq!(moved.changes_since(SlotWord::from_raw(0)), 1);
    }

    #[test]
    fn addresses_that_do_not_fit_are_refused() {
        for raw in [0, 32, 1 << 48] {
            assert_eq!(ObjectRef::new(GlobalAddr::from_raw(raw), 64), None);
        }
    }
}
