use core::fmt;

/// Racks a pool can have, numbered from 0: each has a record in every other's metadata, and the
/// pool's whole state fits one message.
pub const MAX_RACKS: u16 = 256;

/// A rack: the unit inside which memory is reached with loads and stores.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RackId(pub u16);

/// A page of the pool, the same in every rack. Page 0 does not exist, so that a zeroed
/// [`GlobalAddr`](crate::GlobalAddr) is never valid.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// A page-sized slot of a rack's CXL memory, counted from 0.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A compute node's connection to its rack daemon; unique within the rack's memory.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// How often a page has changed hands (allocated, moved): grows, wraps after 2^24.
#[cfg_attr(feature = "wire", derive(bincode::Encode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(u32);

/// A number that is no epoch is refused: it would spill into the other parts of a page word.
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

/// One life of a daemon process. A restarted daemon has a larger one.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// The identity of a rack's memory, drawn at random when it is formatted. It survives its daemon;
/// a rack that comes back with another one has lost its pages.
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(pub u128);

/// A run of page ids: `first`, `first + 1`, … (`count` of them).
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The lowest id of the run.
    pub first: PageId,
    /// How many ids there are.
    pub count: u32,
}

impl Epoch {
    /// Bits an epoch takes in a page word.
    pub const BITS: u32 = 24;

    /// The epoch of a page that was never used.
    pub const ZERO: Self = Self(0);

    /// Keeps the low [`Self::BITS`] bits.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & ((1 << Self::BITS) - 1))
    }

    /// The number itself.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

impl PageRange {
    /// Whether `page` lies in the run.
    #[must_use]
    pub const fn contains(&self, page: PageId) -> bool {
        page.0 >= self.first.0 && page.0 - self.first.0 < self.count
    }

    /// Where `page` stands in the run, from 0.
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
