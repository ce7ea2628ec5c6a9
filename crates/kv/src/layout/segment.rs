use rackpool_client::GlobalAddr;

use crate::layout::bucket::{SegmentShape, word_at};
use crate::layout::hash::KeyHash;
use crate::layout::life::SegmentLife;

/// A directory entry: the segment with the keys whose hashes end in the bits of the entry's index.
///
/// ```text
///  63        47 46    42 41                    0
/// +------------+--------+-----------------------+
/// |    life    | depth  |  segment address / 64 |   0: no segment
/// +------------+--------+-----------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRef(u64);

/// The header of a segment, its first 64 bytes.
///
/// ```text
///  0       8       16    24    32       40                   64
/// +-------+-------+-----+-----+--------+----------------------+
/// | owner | claim |  0  | tag | origin |          0           |
/// +-------+-------+-----+-----+--------+----------------------+
/// tag: 63 magic 40 39 suffix 22 21 depth 17 16 life 0
/// ```
///
/// The tag changes only between two lives, before any slot does. `owner` is the reservation's token
/// until the segment is published, then 0. `origin` is the directory entry of the segment whose
/// entries this one took over.
pub(crate) struct SegmentHeader;

impl SegmentRef {
    pub(crate) const NONE: Self = Self(0);
    const DEPTH_SHIFT: u32 = 42;
    const LIFE_SHIFT: u32 = 47;
    const ADDR_MASK: u64 = (1 << Self::DEPTH_SHIFT) - 1;
    const REMOVED_DEPTH: u64 = 0x1f;

    /// `None` if the word cannot encode the address.
    pub(crate) const fn new(addr: GlobalAddr, depth: u8, life: SegmentLife) -> Option<Self> {
        if addr.raw() >> 48 != 0 || !addr.raw().is_multiple_of(64) || addr.is_null() {
            return None;
        }
        Some(Self(
            (addr.raw() >> 6)
                | (depth as u64) << Self::DEPTH_SHIFT
                | life.bits() << Self::LIFE_SHIFT,
        ))
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn addr(self) -> GlobalAddr {
        GlobalAddr::from_raw((self.0 & Self::ADDR_MASK) << 6)
    }

    #[inline]
    pub(crate) const fn depth(self) -> u8 {
        ((self.0 >> Self::DEPTH_SHIFT) & 0x1f) as u8
    }

    #[inline]
    pub(crate) const fn life(self) -> SegmentLife {
        SegmentLife::from_bits(self.0 >> Self::LIFE_SHIFT)
    }

    /// The entry while its segment is removed with the table, by the reservation with this token: a
    /// depth that no segment has, and the other bits of the token.
    pub(crate) const fn removed_by(token: u64) -> u64 {
        token | Self::REMOVED_DEPTH << Self::DEPTH_SHIFT
    }

    /// Whether this is such an entry.
    pub(crate) const fn is_removed(self) -> bool {
        self.depth() as u64 == Self::REMOVED_DEPTH
    }

    /// The segment's tag during this life; `hash` is that of any key that belongs to the segment.
    #[inline]
    pub(crate) const fn tag(self, hash: KeyHash) -> u64 {
        SegmentHeader::tag(self.life(), self.depth(), hash.suffix(self.depth()))
    }
}

impl std::fmt::Debug for SegmentRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/life {}", self.addr(), self.depth(), self.life().bits())
    }
}

impl SegmentHeader {
    pub(crate) const BYTES: usize = 64;
    const TAG: usize = 24;
    const ORIGIN: usize = 32;
    const MAGIC: u64 = 0x53_45_47 << 40;

    #[inline]
    pub(crate) const fn tag(life: SegmentLife, depth: u8, suffix: u64) -> u64 {
        Self::MAGIC | suffix << 22 | (depth as u64) << 17 | life.bits()
    }

    /// The life in a tag; `None` if `tag` is not a tag.
    pub(crate) const fn life_in(tag: u64) -> Option<SegmentLife> {
        if tag >> 40 != Self::MAGIC >> 40 {
            return None;
        }
        Some(SegmentLife::from_bits(tag))
    }

    /// The address of the owner word.
    pub(crate) const fn owner_addr(segment: GlobalAddr) -> GlobalAddr {
        segment
    }

    /// The address of the tag.
    pub(crate) const fn tag_addr(segment: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(segment.raw() + Self::TAG as u64)
    }

    /// The address of the claim word: 1 while a client replaces the segment. A hint, not a lock.
    pub(crate) const fn claim_addr(segment: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(segment.raw() + 8)
    }

    /// The header of a segment at the beginning of a life.
    pub(crate) fn bytes(tag: u64, origin: SegmentRef, owner: u64) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&owner.to_le_bytes());
        bytes[Self::TAG..Self::TAG + 8].copy_from_slice(&tag.to_le_bytes());
        bytes[Self::ORIGIN..Self::ORIGIN + 8].copy_from_slice(&origin.raw().to_le_bytes());
        bytes
    }

    /// The owner word in a header.
    pub(crate) fn owner_in(header: &[u8]) -> u64 {
        word_at(header, 0)
    }

    /// The directory entry of the segment whose entries this one took over.
    pub(crate) fn origin_in(header: &[u8]) -> SegmentRef {
        SegmentRef::from_raw(word_at(header, Self::ORIGIN / 8))
    }

    /// The tag in a header.
    pub(crate) fn tag_in(header: &[u8]) -> u64 {
        word_at(header, Self::TAG / 8)
    }
}

/// The immutable layout of a table, as its header says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableLayout {
    pub(crate) addr: GlobalAddr,
    pub(crate) directory: GlobalAddr,
    pub(crate) max_depth: u8,
    pub(crate) shape: SegmentShape,
}

impl TableLayout {
    /// The address of the directory entry `index`.
    pub(crate) const fn entry_addr(&self, index: u64) -> GlobalAddr {
        GlobalAddr::from_raw(self.directory.raw() + index * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_keeps_its_parts() {
        let addr = GlobalAddr::from_raw((1 << 48) - 64);
        let life = SegmentLife::from_bits((1 << 17) - 1);
        let segment = SegmentRef::new(addr, 18, life).unwrap();
        assert_eq!((segment.addr(), segment.depth(), segment.life()), (addr, 18, life));
        assert!(SegmentRef::new(GlobalAddr::from_raw(1 << 48), 0, life).is_none());
    }

    #[test]
    fn a_tag_names_life_depth_and_suffix() {
        let life = SegmentLife::FIRST.next();
        let tag = SegmentHeader::tag(life, 18, (1 << 18) - 1);
        assert_eq!(SegmentHeader::life_in(tag), Some(life));
        assert_ne!(tag, SegmentHeader::tag(life, 17, (1 << 18) - 1));
        assert_eq!(SegmentHeader::life_in(0), None);
    }
}
