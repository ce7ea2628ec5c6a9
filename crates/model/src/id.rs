use core::fmt;

/// The most racks of a pool; ids go from 0 to one less. Each rack keeps a peer record for every
/// other, and the state of the whole pool fits one message.
pub const MAX_RACKS: u16 = 256;

/// A rack: the hosts that reach one CXL memory with loads and stores.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RackId(pub u16);

/// A page of the pool; its id is the same in every rack. Page 0 does not exist, so a zeroed
/// [`GlobalAddr`](crate::GlobalAddr) is never valid.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// A page-sized slot of a rack's CXL memory, numbered from 0.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A client (compute node) of a rack daemon. The id is unique within the rack's memory.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Counts how often a page was allocated or moved; it distinguishes successive uses of a page id.
/// Wraps around after 2^24.
#[cfg_attr(feature = "wire", derive(bincode::Encode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u32);

/// Refuses numbers of more than 24 bits: they would change other fields of a page word.
#[cfg(feature = "wire")]
impl<Context> bincode::Decode<Context> for Epoch {
    fn decode<D: bincode::de::Decoder<Context = Context>>(
        decoder: &mut D,
    ) -> Result<Self, bincode::error::DecodeError> {
        let raw = u32::decode(decoder)?;
        if Self::new(raw).0 == raw {
            return Ok(Self(raw));
        }
        Err(bincode::error::DecodeError::Other("an epoch has 24 bits"))
    }
}

#[cfg(feature = "wire")]
bincode::impl_borrow_decode!(Epoch);

/// One lifetime of a daemon process. A restarted daemon has a larger incarnation.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The identity of a rack's memory, drawn at random when the memory is formatted. It survives
/// restarts of the daemon. A rack that returns with another `MemoryId` has lost its pages.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u128);

/// Consecutive page ids: `first`, `first + 1`, … (`count` of them).
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The lowest id.
    pub first: PageId,
    /// The number of ids.
    pub count: u32,
}

impl Epoch {
    /// Bits of an epoch in a page word.
    pub const BITS: u32 = 24;

    /// The epoch of a page that was never used.
    pub const ZERO: Self = Self(0);

    /// Makes an epoch of the low [`Self::BITS`] bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & ((1 << Self::BITS) - 1))
    }

    /// Returns the number.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Returns the next epoch; 0 follows the largest.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

impl PageRange {
    /// Returns true if `page` is one of the ids.
    #[must_use]
    pub const fn contains(&self, page: PageId) -> bool {
        page.0 >= self.first.0 && page.0 - self.first.0 < self.count
    }

    /// Returns the index of `page` in the range, from 0.
    #[must_use]
    pub const fn index_of(&self, page: PageId) -> Option<u32> {
        if self.contains(page) { Some(page.0 - self.first.0) } else { None }
    }
}

impl fmt::Display for RackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rack {}", self.0)
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

impl fmt::Display for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {}", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_wraps_within_its_bits() {
        assert_eq!(Epoch::new((1 << 24) - 1).next(), Epoch::ZERO);
        assert_eq!(Epoch::new(u32::MAX).raw(), (1 << 24) - 1);
    }

    #[test]
    fn range_knows_its_pages() {
        let range = PageRange { first: PageId(10), count: 3 };
        assert_eq!(range.index_of(PageId(12)), Some(2));
        assert_eq!(range.index_of(PageId(13)), None);
        assert_eq!(range.index_of(PageId(9)), None);
    }
}
