use std::ptr::NonNull;

use crate::{OutOfRange, Transfer};

/// From this length on (bytes) what a transfer brings is stored as bulk: pages that move come in
/// pieces of it.
pub const BULK_BYTES: u32 = 64 << 10;

/// Memory that a fabric may read and write.
///
/// The owner of a mapping implements it, so that the fabric itself needs no unsafe code. Other
/// processes may change the bytes at any moment. An aligned 8-byte word is read or written whole,
/// by [`load`](Self::load) and [`store`](Self::store) and also as a part of a longer
/// [`read`](Self::read) or [`write`](Self::write).
pub trait MemoryRegion: Send + Sync {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Whether there is no memory at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where its first byte is mapped, for providers that hand the memory to hardware; all of its
    /// bytes stay mapped there, readable and writable, until it is dropped. `None`: nowhere.
    fn base(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Copies the bytes at `offset` out of the region.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies bytes to `offset` in the region.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange>;

    /// The same for a part of at least [`BULK_BYTES`] that a read brings. Memory that nobody is
    /// about to read takes it past the caches, where it would displace more than it is worth.
    fn write_bulk(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.write(offset, from)
    }

    /// The word at `offset`, a multiple of 8 (acquire: what its writer wrote before it is seen).
    fn load(&self, offset: u64) -> Result<u64, OutOfRange>;

    /// Writes the word at `offset`, a multiple of 8 (release: pairs with [`load`](Self::load)).
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange>;

    /// A sequentially consistent fence: of two threads that each write one word, fence, and read
    /// the other's word, at least one sees what the other wrote.
    fn full_fence(&self);
}

/// Stores what a read has brought, all of it or a part.
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

/// Whether `len` bytes at `offset` lie inside `region_len` bytes.
#[must_use]
pub(crate) const fn fits(offset: u64, len: u64, region_len: u64) -> bool {
    match offset.checked_add(len) {
        Some(end) => end <= region_len,
        None => false,
    }
}
