use core::fmt;

use crate::{PageId, PageSize};

/// An address in the pool: a page id and an offset, packed into 64 bits. The bits name the same
/// memory in every rack, so a program can store an address in the pool and pass it to other
/// programs.
///
/// ```text
///  63                      page bits     0
/// +-------------------------+-------------+
/// |         page id         |   offset    |
/// +-------------------------+-------------+
/// ```
///
/// The value 0 is [`GlobalAddr::NULL`] and never names memory.
///
/// ```
/// use rackpool_model::{GlobalAddr, PageId, PageSize};
/// let size = PageSize::DEFAULT;
/// let addr = GlobalAddr::new(PageId(3), 64, size)?;
/// assert_eq!(addr.page(size), Some(PageId(3)));
/// assert_eq!(addr.offset(size), 64);
/// assert_eq!(addr.add(8)?.offset(size), 72);
/// # Ok::<(), rackpool_model::AddressError>(())
/// ```
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GlobalAddr(u64);

/// Why an address can't be formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The offset does not lie inside a page.
    #[error("offset {offset} is past the end of a page of {page_size}")]
    OffsetPastPage {
        /// The offset that the caller passed, in bytes.
        offset: u64,
        /// The pool's page size.
        page_size: PageSize,
    },
    /// The sum does not fit 64 bits.
    #[error("adding {bytes} B to {addr} leaves the address space")]
    Overflow {
        /// The address added to.
        addr: GlobalAddr,
        /// The number added, in bytes.
        bytes: u64,
    },
}

impl GlobalAddr {
    /// The null address; it names no memory.
    pub const NULL: Self = Self(0);

    /// Returns the address `offset` bytes into `page`.
    ///
    /// # Errors
    /// [`AddressError::OffsetPastPage`] when `offset` is not less than the page size.
    pub const fn new(page: PageId, offset: u64, size: PageSize) -> Result<Self, AddressError> {
        if offset > size.offset_mask() {
            return Err(AddressError::OffsetPastPage { offset, page_size: size });
        }
        Ok(Self(((page.0 as u64) << size.bits()) | offset))
    }

    /// Interprets 64 bits read from the pool as an address. Every value is accepted; an operation
    /// on an address that names no memory returns an error.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the 64 bits.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns true for [`GlobalAddr::NULL`].
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the page, or `None` if the bits name none (page 0, or a page id of more than 32
    /// bits).
    #[inline]
    #[must_use]
    pub const fn page(self, size: PageSize) -> Option<PageId> {
        let page = self.0 >> size.bits();
        if page == 0 || page > u32::MAX as u64 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "compared with u32::MAX above")]
        Some(PageId(page as u32))
    }

    /// Returns the offset within the page, in bytes.
    #[inline]
    #[must_use]
    pub const fn offset(self, size: PageSize) -> u64 {
        self.0 & size.offset_mask()
    }

    /// Returns the address `bytes` further on, which may lie in a later page of the same object.
    ///
    /// # Errors
    /// [`AddressError::Overflow`] when the sum does not fit 64 bits.
    pub const fn add(self, bytes: u64) -> Result<Self, AddressError> {
        match self.0.checked_add(bytes) {
            Some(raw) => Ok(Self(raw)),
            None => Err(AddressError::Overflow { addr: self, bytes }),
        }
    }
}

impl fmt::Debug for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_huge_pages_name_no_page() {
        let size = PageSize::DEFAULT;
        assert_eq!(GlobalAddr::NULL.page(size), None);
        assert_eq!(GlobalAddr::from_raw(u64::MAX).page(size), None);
        assert_eq!(GlobalAddr::from_raw(64).page(size), None);
    }

    #[test]
    fn offset_must_fit_the_page() {
        let size = PageSize::DEFAULT;
        assert_eq!(
            GlobalAddr::new(PageId(1), 2 << 20, size),
            Err(AddressError::OffsetPastPage { offset: 2 << 20, page_size: size })
        );
        assert!(GlobalAddr::from_raw(u64::MAX).add(1).is_err());
    }
}
