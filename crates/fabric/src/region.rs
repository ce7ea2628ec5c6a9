use std::ptr::NonNull;

use crate::{OutOfRange, Transfer};

/// Length in bytes from which the data of a read is stored by [`MemoryRegion::write_bulk`]: that of
/// the smallest page that may move.
pub(crate) const BULK_BYTES: u32 = 4 << 10;

/// Memory that a fabric may read and write.
///
/// The owner of the mapping implements this trait, so that the fabric needs no unsafe code. Other
/// processes may change the bytes at any time. An aligned 8-byte word is read or written whole,
/// both by [`load`](Self::load) and [`store`](Self::store) and within a longer [`read`](Self::read)
/// or [`write`](Self::write).
pub trait MemoryRegion: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Returns true if the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte, for providers that pass the memory to hardware. The whole region
    /// must stay mapped there, readable and writable, until the region is dropped. `None` if the
    /// region is not mapped at a fixed address.
    fn base(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Copies bytes at `offset` of the region into `into`.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies `from` to `offset` of the region.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange>;

    /// Like [`write`](Self::write), for data of a read of 4 KiB or more. A region whose
    /// contents are not about to be read may store the data past the caches, so that other data is
    /// not displaced.
    fn write_bulk(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.write(offset, from)
    }

    /// Loads the word at `offset`, a multiple of 8, with acquire ordering.
    fn load(&self, offset: u64) -> Result<u64, OutOfRange>;

    /// Stores the word at `offset`, a multiple of 8, with release ordering; pairs with
    /// [`load`](Self::load).
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange>;

    /// Replaces the word at `offset`, a multiple of 8, with `new` if it is `current`. Returns the
    /// word found. The step is atomic for every process that maps the memory, with acquire and
    /// release ordering.
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange>;

    /// A sequentially consistent fence: if two threads each write one word, execute the fence and
    /// read the other's word, at least one of them sees the other's write.
    fn full_fence(&self);
}

/// Stores a part of the data of `read` at `offset`; the length of the whole read decides whether as
/// bulk.
pub(crate) fn store_read(
    read: &Transfer,
    memory: &dyn MemoryRegion,
    offset: u64,
    bytes: &[u8],
) -> Result<(), OutOfRange> {
    if read.len < BULK_BYTES {
        memory.write(offset, bytes)
    } else {
        memory.write_bulk(offset, bytes)
    }
}

/// Returns true if `len` bytes at `offset` lie inside `region_len` bytes.
#[must_use]
pub(crate) const fn fits(offset: u64, len: u64, region_len: u64) -> bool {
    match offset.checked_add(len) {
        Some(end) => end <= region_len,
        None => false,
    }
}
