//! The owner of an extent, as the slab header of the extent's first page states it.

/// The head that an extent belongs to.
///
/// ```text
///  63               22 21            0
/// +-------------------+---------------+
/// | place of the head | number + 1    |
/// +-------------------+---------------+
/// ```
///
/// The place of a head is its offset in the rack's frames in units of 64 B. A head never moves, so
/// the place names it as its address does. It needs fewer bits: frames are mapped at once, so the
/// offset is less than 2^48, while an address may have 62 bits. 0 says that the run has no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentOwner {
    /// The offset of the head in the rack's frames, in bytes; a multiple of 64.
    head: u64,
    number: u32,
}

impl ExtentOwner {
    /// The smallest head in bytes, and the unit of its place.
    pub const HEAD_BYTES: u64 = 64;
    /// The most extents of a head.
    pub const MOST: u32 = (1 << Self::NUMBER_BITS) - 1;
    const NUMBER_BITS: u32 = 22;

    /// The owner of extent `number`, from 0, of the head at this offset in the rack's frames.
    /// Returns `None` if the offset is no place of a head, or if the number is too large.
    #[must_use]
    pub const fn new(head: u64, number: u32) -> Option<Self> {
        let is_place = head.is_multiple_of(Self::HEAD_BYTES) && head >> 48 == 0;
        if is_place && number < Self::MOST { Some(Self { head, number }) } else { None }
    }

    /// The offset of the head in the rack's frames, in bytes.
    #[must_use]
    pub const fn head(self) -> u64 {
        self.head
    }

    /// The number of the extent among those of its head, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Encodes the owner as the second word of a slab header.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        (self.head / Self::HEAD_BYTES) << Self::NUMBER_BITS | (self.number as u64 + 1)
    }

    /// Decodes the second word of a run's slab header. Words that no daemon writes name no owner.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "masked to 22 bits")]
        let number = (raw & Self::MOST as u64) as u32;
        if number == 0 {
            return None;
        }
        Some(Self { head: (raw >> Self::NUMBER_BITS) * Self::HEAD_BYTES, number: number - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of docs/design/rack-memory.md.
    #[test]
    fn owners_survive_their_word() {
        let last = (1 << 48) - 64;
        for (head, number) in [(0, 0), (64, 7), (last, ExtentOwner::MOST - 1)] {
            let owner = ExtentOwner::new(head, number).unwrap();
            assert_eq!(ExtentOwner::from_raw(owner.to_raw()), Some(owner));
            assert_eq!((owner.head(), owner.number()), (head, number));
        }
        assert_eq!(ExtentOwner::new(128, 4).unwrap().to_raw(), 2 << 22 | 5);
        assert_eq!(ExtentOwner::from_raw(0), None);
        assert_eq!(ExtentOwner::from_raw(9 << 22), None);
    }

    #[test]
    fn what_the_word_has_no_bits_for_is_no_owner() {
        assert_eq!(ExtentOwner::new(32, 0), None);
        assert_eq!(ExtentOwner::new(1 << 48, 0), None);
        assert_eq!(ExtentOwner::new(64, ExtentOwner::MOST), None);
    }
}
