use rackpool_client::GlobalAddr;

use crate::layout::bucket::word_at;

/// A block of the spare segments, which are the segments outside the directory.
///
/// ```text
///  0       8                       504    512
/// +-------+--------+-----+--------+------+
/// | owner | place  |  …  | place  | next |   62 places
/// +-------+--------+-----+--------+------+
/// ```
///
/// A place holds 0, the address of a segment, or the token of the reservation that has borrowed the
/// segment. The first block is in the table header. A client adds a block when all places are in
/// use; blocks are never removed.
pub(crate) struct SpareSegments {
    pub(crate) addr: GlobalAddr,
    pub(crate) bytes: [u8; Self::BYTES],
}

/// The content of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SparePlace {
    Empty,
    Segment(GlobalAddr),
    /// Borrowed: the place holds the token of the borrowing reservation.
    Taken,
}

impl SpareSegments {
    pub(crate) const BYTES: usize = 512;
    pub(crate) const NEXT: usize = Self::BYTES / 8 - 1;
    /// More blocks than there can be clients. A longer list is damaged and may be circular.
    pub(crate) const MAX_BLOCKS: usize = 1 << 12;

    pub(crate) const fn word_addr(block: GlobalAddr, index: usize) -> GlobalAddr {
        GlobalAddr::from_raw(block.raw() + index as u64 * 8)
    }

    /// The places and their addresses; `None` for a word that is no valid place.
    pub(crate) fn places(&self) -> impl Iterator<Item = (GlobalAddr, Option<SparePlace>)> {
        let place = |index| SparePlace::of(word_at(&self.bytes, index));
        (1..Self::NEXT).map(move |index| (Self::word_addr(self.addr, index), place(index)))
    }
}

impl SparePlace {
    const fn of(word: u64) -> Option<Self> {
        match (word >> 48, word) {
            (0, 0) => Some(Self::Empty),
            (0, _) if word.is_multiple_of(64) => Some(Self::Segment(GlobalAddr::from_raw(word))),
            (1..0x8000, _) => Some(Self::Taken),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_tokens_are_told_apart() {
        assert_eq!(SparePlace::of(0), Some(SparePlace::Empty));
        let last = (1 << 48) - 64;
        assert_eq!(SparePlace::of(last), Some(SparePlace::Segment(GlobalAddr::from_raw(last))));
        for token in [1 << 48, (1 << 63) - 1] {
            assert_eq!(SparePlace::of(token), Some(SparePlace::Taken));
        }
        assert_eq!((SparePlace::of(65), SparePlace::of(1 << 63)), (None, None));
    }

    #[test]
    fn a_block_has_62_places() {
        let mut bytes = [0; SpareSegments::BYTES];
        bytes[8] = 64;
        let block = SpareSegments { addr: GlobalAddr::from_raw(4096), bytes };
        let places: Vec<_> = block.places().collect();
        assert_eq!(places.len(), 62);
        let first = Some(SparePlace::Segment(GlobalAddr::from_raw(64)));
        assert_eq!(places[0], (GlobalAddr::from_raw(4104), first));
        assert_eq!(places[61], (GlobalAddr::from_raw(4096 + 62 * 8), Some(SparePlace::Empty)));
    }
}
