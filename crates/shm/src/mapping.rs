//! Memory shared with other processes. It is accessed through atomics and checked copies, never
//! through plain references to its bytes.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rackpool_sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::copy::{Stores, copy_by, copy_in, copy_out};

/// An access outside a mapping, or one that is not aligned for its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} B at offset {offset} do not lie (aligned) within the {mapped} B mapped")]
pub struct OutsideMapping {
    /// Offset of the first byte.
    pub offset: u64,
    /// Requested bytes.
    pub len: u64,
    /// Mapped bytes.
    pub mapped: u64,
}

/// The reason why a part of a mapping could not be populated with memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PopulateError {
    /// The mapping has no such part.
    #[error(transparent)]
    Bounds(#[from] OutsideMapping),
    /// The kernel refused.
    #[error(transparent)]
    System(std::io::Error),
}

impl PopulateError {
    /// Returns true if the kernel cannot populate mappings at all, because it is older than 5.14.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == std::io::ErrorKind::InvalidInput)
    }
}

/// A type that can be referenced in memory which other processes write at any time.
///
/// # Safety
/// The type is `repr(C)` (or transparent), consists of nothing but atomic integers and padding,
/// and every bit pattern is a value of it.
pub unsafe trait Shared {}

// SAFETY: an atomic integer; every bit pattern is a value.
unsafe impl Shared for AtomicU16 {}
// SAFETY: an atomic integer; every bit pattern is a value.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic integer; every bit pattern is a value.
unsafe impl Shared for AtomicU64 {}
// SAFETY: `repr(C)` around one atomic integer.
unsafe impl Shared for crate::access::AccessSlot {}
// SAFETY: an array of shared types is shared.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A part of a file, to be mapped beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Offset of the first byte in the file; a multiple of the kernel's page size.
    pub offset: u64,
    /// Length in bytes; a multiple of the kernel's page size.
    pub len: u64,
}

/// A file mapped for reading and writing.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that exists until drop. It is accessed only through atomics
// and raw copies, which may race with other processes anyway.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

/// A file mapped for reading.
#[derive(Debug)]
pub struct ReadOnlyMapping(Mapping);

impl Mapping {
    /// Maps `len` bytes of the file from its start. The file must be at least that long and never
    /// become shorter.
    pub fn new(file: impl AsFd, len: u64) -> std::io::Result<Self> {
        Self::map(file, 0, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of the file from `start` on; `start` must be a multiple of its page size.
    pub(crate) fn from(file: impl AsFd, start: u64, len: u64) -> std::io::Result<Self> {
        Self::map(file, start, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map(file: impl AsFd, start: u64, len: u64, protection: ProtFlags) -> std::io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), start)
        }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Maps parts of a file side by side, in their order. The file must contain them and never
    /// become shorter.
    pub(crate) fn side_by_side(file: impl AsFd, parts: &[FilePart]) -> std::io::Result<Self> {
        Self::map_parts(file, parts, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_parts(
        file: impl AsFd,
        parts: &[FilePart],
        protection: ProtFlags,
    ) -> std::io::Result<Self> {
        let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let whole = parts.iter().try_fold(0_u64, |whole, part| whole.checked_add(part.len));
        let whole = whole.and_then(|whole| usize::try_from(whole).ok()).ok_or_else(invalid)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        // From here on the whole range is unmapped if a part fails.
        let mapping = Self { base, len: whole };
        let mut start = 0;
        for part in parts {
            let len = usize::try_from(part.len).map_err(|_| invalid())?;
            let at = mapping.at(start).as_ptr().cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: the parts together are as long as `mapping`, which nothing uses yet, so each
            // replaces a part of that mapping alone.
            unsafe { mmap(at, len, protection, flags, file.as_fd(), part.offset) }?;
            start += len;
        }
        Ok(mapping)
    }

    /// Mapped bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns true if nothing is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Advises the kernel to back the mapping with huge pages.
    pub fn advise_huge(&self) {
        // SAFETY: the range is exactly this mapping.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Advises the kernel to back the mapping with small pages.
    pub(crate) fn refuse_huge(&self) {
        // SAFETY: the range is exactly this mapping.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxNoHugepage) };
    }

    /// Allocates every missing page; contents are kept. Fails with `InvalidInput` on kernels before
    /// 5.14 and with `EFAULT` if the file system is full.
    pub fn populate(&self) -> std::io::Result<()> {
        // SAFETY: the range is exactly this mapping; populating changes no byte of it.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) }?;
        Ok(())
    }

    /// [`Self::populate`] for a part, rounded outwards to 4 KiB pages.
    pub fn populate_part(&self, offset: u64, len: u64) -> Result<(), PopulateError> {
        let start = offset & !4095;
        let len = (offset + len - start).min(self.len() - start.min(self.len()));
        let at = self.check(start, len, 1)?;
        #[expect(clippy::cast_possible_truncation, reason = "checked to lie in the mapping")]
        let len = len as usize;
        // SAFETY: the range lies in this mapping (checked); populating changes no byte of it.
        unsafe { madvise(self.at(at).as_ptr().cast(), len, Advice::LinuxPopulateWrite) }
            .map_err(|error| PopulateError::System(error.into()))
    }

    #[inline]
    const fn check(&self, offset: u64, len: u64, align: u64) -> Result<usize, OutsideMapping> {
        let mapped = self.len as u64;
        if offset <= mapped && len <= mapped - offset && offset.is_multiple_of(align) {
            #[expect(clippy::cast_possible_truncation, reason = "not above `self.len`, a usize")]
            return Ok(offset as usize);
        }
        Err(OutsideMapping { offset, len, mapped })
    }

    /// The address of a byte; [`Self::check`] must have accepted its offset.
    #[inline]
    const fn at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: `offset` is at most `len`, so the result stays within (or one past) the mapping.
        unsafe { self.base.add(offset) }
    }

    /// A view of the `T` at `offset` (bytes).
    #[inline]
    pub fn view<T: Shared>(&self, offset: u64) -> Result<&T, OutsideMapping> {
        let at = self.check(offset, size_of::<T>() as u64, align_of::<T>() as u64)?;
        // SAFETY: in bounds and aligned (checked, the base is page-aligned); `Shared` makes a
        // reference to memory that other processes write sound; it can't outlive the mapping.
        Ok(unsafe { self.at(at).cast::<T>().as_ref() })
    }

    /// A view of `count` values of `T` from `offset` on.
    #[inline]
    pub fn view_slice<T: Shared>(&self, offset: u64, count: usize) -> Result<&[T], OutsideMapping> {
        let bytes = (size_of::<T>() as u64).saturating_mul(count as u64);
        let at = self.check(offset, bytes, align_of::<T>() as u64)?;
        // SAFETY: as in `view`, for all `count` elements.
        Ok(unsafe { std::slice::from_raw_parts(self.at(at).cast::<T>().as_ptr(), count) })
    }

    /// The address of the first of `len` bytes at `offset`.
    #[inline]
    pub(crate) const fn bytes(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutsideMapping> {
        match self.check(offset, len, 1) {
            Ok(at) => Ok(self.at(at)),
            Err(error) => Err(error),
        }
    }

    /// The address of the first byte. All bytes stay mapped until the mapping is dropped.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies bytes out of the mapping. 1, 2, 4 and 8 aligned bytes are read atomically.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutsideMapping> {
        let at = self.check(offset, into.len() as u64, 1)?;
        // SAFETY: the bytes lie in the mapping (checked).
        unsafe { copy_out(self.at(at), into) };
        Ok(())
    }

    /// Copies bytes into the mapping. 1, 2, 4 and 8 aligned bytes are written atomically.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutsideMapping> {
        let at = self.check(offset, from.len() as u64, 1)?;
        // SAFETY: the bytes lie in the mapping (checked).
        unsafe { copy_in(self.at(at), from) };
        Ok(())
    }

    /// Copies bytes out of the mapping with the given kind of stores.
    pub fn read_by(&self, offset: u64, into: &mut [u8], by: Stores) -> Result<(), OutsideMapping> {
        let at = self.check(offset, into.len() as u64, 1)?;
        // SAFETY: the bytes lie in the mapping (checked); no slice of it is ever made.
        unsafe { copy_by(self.at(at).as_ptr(), into.as_mut_ptr(), into.len(), by) };
        Ok(())
    }

    /// Copies bytes into the mapping with the given kind of stores.
    pub fn write_by(&self, offset: u64, from: &[u8], by: Stores) -> Result<(), OutsideMapping> {
        let at = self.check(offset, from.len() as u64, 1)?;
        // SAFETY: the bytes lie in the mapping (checked); no slice of it is ever made.
        unsafe { copy_by(from.as_ptr(), self.at(at).as_ptr(), from.len(), by) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` returned, and no view outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl ReadOnlyMapping {
    /// Maps `len` bytes of the file from its start.
    pub fn new(file: impl AsFd, len: u64) -> std::io::Result<Self> {
        Mapping::map(file, 0, len, ProtFlags::READ).map(Self)
    }

    /// Maps parts of a file side by side, as [`Mapping::side_by_side`] does.
    pub(crate) fn side_by_side(file: impl AsFd, parts: &[FilePart]) -> std::io::Result<Self> {
        Mapping::map_parts(file, parts, ProtFlags::READ).map(Self)
    }

    /// The address of the first of `len` bytes at `offset`.
    #[inline]
    pub(crate) const fn bytes(&self, offset: u64, len: u64) -> Result<NonNull<u8>, OutsideMapping> {
        self.0.bytes(offset, len)
    }

    /// Mapped bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if nothing is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The address of `count` words from `offset` on.
    pub(crate) fn words(
        &self,
        offset: u64,
        count: usize,
    ) -> Result<NonNull<AtomicU64>, OutsideMapping> {
        Ok(NonNull::from(self.0.view_slice::<AtomicU64>(offset, count)?).cast())
    }

    /// The page word at `offset`.
    #[inline]
    pub fn page_word(&self, offset: u64) -> Result<crate::access::PageWordRef<'_>, OutsideMapping> {
        self.0.view::<AtomicU64>(offset).map(crate::access::PageWordRef::new)
    }

    /// Loads the 8 aligned bytes at `offset`.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, OutsideMapping> {
        Ok(self.0.view::<AtomicU64>(offset)?.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mapping(len: u64) -> Mapping {
        crate::memory::scratch(len, None, None).unwrap()
    }

    #[test]
    fn nothing_outside_is_touched() {
        let memory = mapping(4096);
        let mut byte = [0];
        assert!(memory.read(4096, &mut byte).is_err());
        assert!(memory.read(u64::MAX, &mut byte).is_err());
        assert!(memory.write(4090, &[0; 8]).is_err());
        assert!(memory.view::<AtomicU64>(4).is_err(), "not aligned");
        assert!(memory.view_slice::<AtomicU64>(8, usize::MAX).is_err());
        assert!(memory.view_slice::<AtomicU64>(0, 512).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(offset in 0_u64..4000, bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let memory = mapping(4096);
            memory.write(offset, &bytes).unwrap();
            let mut found = vec![0; bytes.len()];
            memory.read(offset, &mut found).unwrap();
            prop_assert_eq!(found, bytes);
        }
    }
}
