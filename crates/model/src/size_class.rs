use crate::PageSize;

/// A size class of slab objects: 16 B times a power of two, up to the page size.
///
/// Class 0 holds objects of 16 B, class 1 of 32 B, and so on.
///
/// ```
/// use rackpool_model::{PageSize, SizeClass};
/// let class = SizeClass::for_bytes(100, PageSize::DEFAULT).unwrap();
/// assert_eq!(class.bytes(), 128);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// log2 of the smallest object's size in bytes.
    pub const MIN_BITS: u8 = 4;

    /// Returns the smallest class whose objects hold `bytes` bytes; `None` for 0 and for more than
    /// a page.
    #[must_use]
    pub const fn for_bytes(bytes: u64, page: PageSize) -> Option<Self> {
        if bytes == 0 || bytes > page.bytes() {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the page's 30 bits")]
        Some(Self(Self::index_for(bytes) as u8))
    }

    /// Returns the [index](Self::index) of the smallest class whose objects hold `bytes` bytes,
    /// without regard to the page size. For 0 the index is larger than any page size allows.
    #[inline]
    #[must_use]
    pub const fn index_for(bytes: u64) -> usize {
        let smallest = (1 << Self::MIN_BITS) - 1;
        let bits = (bytes.wrapping_sub(1) | smallest).ilog2() + 1;
        (bits - Self::MIN_BITS as u32) as usize
    }

    /// Returns the class with this index, or `None` if its objects do not fit a page.
    #[must_use]
    pub const fn from_index(index: u8, page: PageSize) -> Option<Self> {
        if index <= page.bits() - Self::MIN_BITS { Some(Self(index)) } else { None }
    }

    /// Returns the index of the class, from 0.
    #[inline]
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0
    }

    /// Returns log2 of an object's size in bytes.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0 + Self::MIN_BITS
    }

    /// Returns the size of an object in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.bits()
    }

    /// Returns the number of objects in a page.
    #[must_use]
    pub const fn objects_per_page(self, page: PageSize) -> u32 {
        1 << (page.bits() - self.bits())
    }

    /// Returns the number of classes for pages of this size.
    #[must_use]
    pub const fn count(page: PageSize) -> u8 {
        page.bits() - Self::MIN_BITS + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_to_their_class() {
        let page = PageSize::DEFAULT;
        let class = |bytes| SizeClass::for_bytes(bytes, page).map(SizeClass::bytes);
        assert_eq!(class(0), None);
        assert_eq!(class(1), Some(16));
        assert_eq!(class(16), Some(16));
        assert_eq!(class(17), Some(32));
        assert_eq!(class(2 << 20), Some(2 << 20));
        assert_eq!(class((2 << 20) + 1), None);
        assert_eq!(SizeClass::index_for(0), 60);
        assert_eq!(SizeClass::index_for((2 << 20) + 1), 18);
        assert_eq!(SizeClass::index_for(u64::MAX), 60);
    }

    #[test]
    fn every_index_below_count_exists() {
        let page = PageSize::DEFAULT;
        assert_eq!(SizeClass::count(page), 18);
        assert_eq!(SizeClass::from_index(17, page).map(|c| c.objects_per_page(page)), Some(1));
        assert_eq!(SizeClass::from_index(18, page), None);
    }
}
