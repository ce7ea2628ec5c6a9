use rackpool_client::GlobalAddr;

use crate::layout::hash::KeyHash;
use crate::layout::life::SegmentLife;

/// A slot: one aligned 64-bit word. Slots are the only words of a segment that change while it is
/// in the directory, always by compare-and-swap.
///
/// ```text
///  63     62     53 52   50 49         42 41                    0
/// +------+---------+-------+-------------+-----------------------+
/// |frozen| version | class | fingerprint |   address / 64        |  LIVE: class 1..=7
/// +------+---------+-------+-------------+---------+----+--------+
/// |frozen| version |   0   |             0         | 0  |  life  |  EMPTY
/// |frozen| version |   0   |      mark (32)        | 1  |   0    |  DEAD (bit 17)
/// +------+---------+-------+-----------------------+----+--------+
/// ```
///
/// `version` counts the changes of this place in memory, over all lives of the segment. `mark` has
/// random bits of the reservation that deleted the key, until that deletion is resolved; then it is
/// 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotWord(u64);

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// Never used in this life of the segment. A search for a key ends here. Left by an insert.
    Empty(SegmentLife),
    /// Its key was deleted. The slot stays dead for the rest of the segment's life.
    Dead,
    /// Points to an object. Left by a deletion; replacements keep it live.
    Live,
}

/// The address of an object, and how much of it to read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub(crate) addr: GlobalAddr,
    /// 1..=6: an object of at most `32 << class` bytes; 7: a larger one.
    class: u8,
}

impl SlotWord {
    const FROZEN: u64 = 1 << 63;
    const VERSION_SHIFT: u32 = 53;
    const VERSION_MASK: u64 = 0x3ff << Self::VERSION_SHIFT;
    const CLASS_SHIFT: u32 = 50;
    const CLASS_MASK: u64 = 7 << Self::CLASS_SHIFT;
    const FINGERPRINT_SHIFT: u32 = 42;
    const ADDR_MASK: u64 = (1 << 42) - 1;
    const DEAD: u64 = 1 << SegmentLife::BITS;
    const MARK_SHIFT: u32 = SegmentLife::BITS + 1;

    /// The bits that change when the slot does: all but the frozen bit.
    pub(crate) const CHANGES: u64 = !Self::FROZEN;

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The empty slot of a new life, at a place whose last word was `self`.
    pub(crate) const fn emptied(self, life: SegmentLife) -> Self {
        Self(self.next_version() | life.bits())
    }

    /// The slot after the deletion of its key, with the deleter's mark.
    pub(crate) const fn deleted(self, mark: u32) -> Self {
        Self(self.next_version() | (mark as u64) << Self::MARK_SHIFT | Self::DEAD)
    }

    /// The slot after `object` was stored in it.
    pub(crate) const fn pointing(self, object: ObjectRef, hash: KeyHash) -> Self {
        Self(
            self.next_version()
                | (object.class as u64) << Self::CLASS_SHIFT
                | (hash.fingerprint() as u64) << Self::FINGERPRINT_SHIFT
                | (object.addr.raw() >> 6),
        )
    }

    /// The word that follows `self` at this place and points to the object of `other`: the slot of
    /// the old segment when entries move, or the earlier word of this slot when an aborted object
    /// is unlinked.
    pub(crate) const fn pointing_like(self, other: Self) -> Self {
        let kept = Self::CLASS_MASK | ((1 << Self::CLASS_SHIFT) - 1);
        Self(self.next_version() | (other.0 & kept))
    }

    const fn next_version(self) -> u64 {
        self.0.wrapping_add(1 << Self::VERSION_SHIFT) & Self::VERSION_MASK
    }

    /// The number of changes from `earlier` to `self`, modulo 1024.
    pub(crate) const fn changes_since(self, earlier: Self) -> u64 {
        let versions = self.0.wrapping_sub(earlier.0 & Self::VERSION_MASK);
        (versions & Self::VERSION_MASK) >> Self::VERSION_SHIFT
    }

    #[inline]
    pub(crate) const fn is_frozen(self) -> bool {
        self.0 & Self::FROZEN != 0
    }

    pub(crate) const fn frozen(self) -> Self {
        Self(self.0 | Self::FROZEN)
    }

    /// Whether `self` and `earlier` differ at most in the frozen bit.
    #[inline]
    pub(crate) const fn is_unchanged(self, earlier: Self) -> bool {
        (self.0 ^ earlier.0) & Self::CHANGES == 0
    }

    #[inline]
    pub(crate) const fn kind(self) -> SlotKind {
        if self.0 & Self::CLASS_MASK != 0 {
            SlotKind::Live
        } else if self.0 & Self::DEAD != 0 {
            SlotKind::Dead
        } else {
            SlotKind::Empty(SegmentLife::from_bits(self.0))
        }
    }

    /// Whether the key was deleted and its deletion is not yet resolved.
    pub(crate) fn is_marked(self) -> bool {
        self.kind() == SlotKind::Dead && self.0 & !Self::FROZEN != self.deleted_alike()
    }

    const fn deleted_alike(self) -> u64 {
        (self.0 & Self::VERSION_MASK) | Self::DEAD
    }

    /// The dead slot once its deletion is resolved: without the mark.
    pub(crate) const fn settled(self) -> Self {
        Self((self.0 & Self::FROZEN) | self.deleted_alike())
    }

    /// Whether this is a live slot whose key can have this hash.
    #[inline]
    pub(crate) const fn may_hold(self, hash: KeyHash) -> bool {
        self.fingerprint() == hash.fingerprint() && self.0 & Self::CLASS_MASK != 0
    }

    /// The fingerprint of a live slot.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fingerprint has 8 bits")]
    pub(crate) const fn fingerprint(self) -> u8 {
        (self.0 >> Self::FINGERPRINT_SHIFT) as u8
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
    /// The alignment of objects in bytes, and so their least size.
    pub(crate) const ALIGN: u64 = 64;
    /// The largest object, in bytes, that one read fetches.
    pub(crate) const MAX_WHOLE: usize = 2048;
    const LARGE: u8 = 7;

    /// `None` if a slot cannot encode `addr`.
    pub(crate) fn new(addr: GlobalAddr, bytes: usize) -> Option<Self> {
        if addr.raw() == 0 || addr.raw() >> 48 != 0 || !addr.raw().is_multiple_of(Self::ALIGN) {
            return None;
        }
        let class = (1..Self::LARGE).find(|class| bytes <= 32 << class).unwrap_or(Self::LARGE);
        Some(Self { addr, class })
    }

    /// The same object, of a size that only its header tells.
    pub(crate) const fn of_any_size(self) -> Self {
        Self { class: Self::LARGE, ..self }
    }

    /// The number of bytes to read for the whole object; `None` if its header must be read first.
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
        let place = SlotWord::from_raw(0).emptied(SegmentLife::FIRST);
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
    fn freezing_is_no_change_and_a_mark_goes_when_it_is_settled() {
        let word = SlotWord::from_raw(0).pointing(object(4096, 40), KeyHash::from_raw(1));
        assert!(word.frozen().is_unchanged(word) && !word.is_marked());
        for mark in [0, 1, u32::MAX] {
            let dead = word.deleted(mark);
            assert!(!dead.is_unchanged(word) && !dead.is_unchanged(word.deleted(mark ^ 2)));
            assert_eq!((dead.kind(), dead.changes_since(word)), (SlotKind::Dead, 1));
            assert_eq!((dead.is_marked(), dead.frozen().is_marked()), (mark != 0, mark != 0));
            assert_eq!(dead.frozen().settled(), word.deleted(0).frozen());
        }
    }

    #[test]
    fn versions_go_on_over_lives_and_wrap() {
        let mut word = SlotWord::from_raw(0);
        for _ in 0..1023 {
            word = word.emptied(SegmentLife::FIRST);
        }
        let old = word.pointing(object(4096, 40), KeyHash::from_raw(1)).frozen();
        let moved = SlotWord::from_raw(0).pointing_like(old);
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
