use core::fmt;

use crate::ByteSize;

/// A page size: a power of two from 4 KiB to 1 GiB; 2 MiB by default.
///
/// ```
/// use rackpool_model::PageSize;
/// let size = PageSize::from_bytes(2 << 20)?;
/// assert_eq!((size.bits(), size.bytes()), (21, 2 << 20));
/// # Ok::<(), rackpool_model::PageSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageSize(u8);

/// The number is not a power of two from 4 KiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of {bytes} B: the page size must be a power of two from 4096 to 1073741824")]
pub struct PageSizeError {
    bytes: u64,
}

impl PageSize {
    /// 2 MiB, the paper's default (section 6.1): it balances metadata size and swap latency.
    pub const DEFAULT: Self = Self(21);
    const MIN_BITS: u8 = 12;
    const MAX_BITS: u8 = 30;

    /// Returns the page size of `bytes` bytes.
    ///
    /// # Errors
    /// When `bytes` is not a power of two from 4 KiB to 1 GiB.
    pub const fn from_bytes(bytes: u64) -> Result<Self, PageSizeError> {
        if bytes.is_power_of_two() && bytes >= 1 << Self::MIN_BITS && bytes <= 1 << Self::MAX_BITS {
            #[expect(clippy::cast_possible_truncation, reason = "at most 30, checked above")]
            return Ok(Self(bytes.trailing_zeros() as u8));
        }
        Err(PageSizeError { bytes })
    }

    /// Returns log2 of the size, which is also the number of offset bits in a global address.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// Returns the mask that selects the offset within a page.
    #[must_use]
    pub const fn offset_mask(self) -> u64 {
        self.bytes() - 1
    }

    /// Returns the number of pages that hold `bytes` bytes, rounded up.
    #[must_use]
    pub const fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.bytes())
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ByteSize(self.bytes()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_in_range() {
        for bytes in [0, 1, 2048, 4097, 3 << 20, 1 << 31] {
            assert_eq!(PageSize::from_bytes(bytes), Err(PageSizeError { bytes }));
        }
        assert_eq!(PageSize::from_bytes(4096).map(PageSize::bits), Ok(12));
        assert_eq!(PageSize::from_bytes(1 << 30).map(PageSize::bits), Ok(30));
    }

    #[test]
    fn pages_for_rounds_up() {
        assert_eq!(PageSize::DEFAULT.pages_for(1), 1);
        assert_eq!(PageSize::DEFAULT.pages_for((2 << 20) + 1), 2);
    }
}
