use std::sync::Arc;

use rackpool_client::{AllocError, Extent, GlobalAddr, Pin, PinnedBytes, Pool, Reservation};
use rackpool_sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::head::{Head, at};
use super::{LargeStrings, accessed, allocated, mapped, pinned};
use crate::failure::{Failure, said};

/// Memory grows at most by this number of bytes at once, so that what a client only announced is
/// not taken from others.
const LARGEST_STEP: u64 = 64 << 20;

/// Fixed memory of the own rack that this process owns: a head, and extents that grow while a
/// string arrives. Freed when it is dropped; the rack's daemon frees it if this process is killed.
#[derive(Debug)]
pub(super) struct StringMemory {
    pool: Arc<Pool>,
    arriving: Arc<AtomicU64>,
    head: GlobalAddr,
    /// Whether `head` belongs to a reservation by now.
    is_reserved: bool,
    /// The size of the head in bytes.
    head_bytes: u64,
    pub(super) extents: Vec<Extent>,
    /// The most extents for which the head has words.
    most: u64,
    /// The bytes of all extents.
    room: u64,
}

impl StringMemory {
    /// Memory for a string of at most `len` bytes of a key with `key_len` bytes. It has only the
    /// head so far.
    pub(super) fn new(strings: &LargeStrings, key_len: usize, len: u64) -> Result<Self, Failure> {
        let pool = Arc::clone(&strings.pool);
        let words = pool.page_bytes().saturating_sub(Head::words_at(key_len)) / 8;
        let most = len.div_ceil(pool.page_bytes()).clamp(1, words.max(1));
        let head_bytes = (Head::words_at(key_len) + 8 * most).next_power_of_two();
        let head = pool.alloc_fixed(head_bytes).map_err(allocated)?;
        let arriving = Arc::clone(&strings.arriving);
        let extents = Vec::new();
        let is_reserved = false;
        Ok(Self { pool, arriving, head, is_reserved, head_bytes, extents, most, room: 0 })
    }

    /// The size of head and extents together, in bytes.
    pub(super) const fn size(&self) -> u64 {
        self.head_bytes + self.room
    }

    /// The bytes for which there is room.
    pub(super) const fn room(&self) -> u64 {
        self.room
    }

    /// Makes room for `wanted` bytes, or for more, but at most for `len`: each step doubles the
    /// memory, so that the extents are few.
    pub(super) fn grow(&mut self, wanted: u64, len: u64) -> Result<(), Failure> {
        while self.room < wanted.min(len) {
            let step = self.room.min(LARGEST_STEP).max(self.pool.page_bytes());
            let goal = (self.room + step).max(wanted).min(len);
            let found = match self.pool.alloc_extents(self.head, goal) {
                Ok(extents) => extents,
                // A full rack may have room for less.
                Err(AllocError::RackFull { .. }) if goal > wanted => {
                    self.pool.alloc_extents(self.head, wanted.min(len)).map_err(allocated)?
                }
                Err(error) => return Err(allocated(error)),
            };
            let room = found.iter().map(|extent| extent.bytes).sum::<u64>();
            if found.len() as u64 > self.most || room <= self.room {
                return Err(said(
                    "OOM command not allowed: the free memory of the rack is in too many pieces",
                ));
            }
            self.arriving.fetch_add(room - self.room, Relaxed);
            (self.extents, self.room) = (found, room);
        }
        Ok(())
    }

    /// Stores bytes at an offset for which there is room.
    pub(super) fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Failure> {
        for extent in &self.extents {
            if bytes.is_empty() {
                return Ok(());
            }
            if offset >= extent.bytes {
                offset -= extent.bytes;
                continue;
            }
            let fits = usize::try_from(extent.bytes - offset).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at(bytes.len().min(fits));
            self.pool.write(at(extent.addr, offset), part).map_err(accessed)?;
            (bytes, offset) = (rest, 0);
        }
        if bytes.is_empty() { Ok(()) } else { Err(said("ERR a string is longer than its memory")) }
    }

    /// Fills the first `len` bytes, for which there is room, by `fill`, which gets them in place.
    pub(super) fn fill(
        &self,
        len: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let pin = Pin::new(&*self.pool, self.head).map_err(pinned)?;
        fill(&mut pin.map_extents_mut(&self.extents, len).map_err(mapped)?)
    }

    /// Pins the memory, and maps its first `len` bytes for reading.
    pub(super) fn map(&self, len: u64) -> Result<PinnedBytes<Arc<Pool>>, Failure> {
        let pin = Pin::new(Arc::clone(&self.pool), self.head).map_err(pinned)?;
        pin.map_extents(&self.extents, len).map_err(mapped)
    }

    /// Writes the words of the extents behind the entry, which begins the head, and gives the
    /// memory to a reservation, whose end decides about it.
    pub(super) fn reserve(mut self, key_len: usize) -> Result<Reservation, Failure> {
        let mut words = Vec::with_capacity(8 * self.extents.len());
        for extent in &self.extents {
            let word = Head::encode_extent(extent, self.pool.page_bytes());
            let word = word.ok_or(said("ERR the pool has more pages than a string can name"))?;
            words.extend_from_slice(&word.to_le_bytes());
        }
        let words_at = Head::words_at(key_len);
        if words_at + words.len() as u64 > self.head_bytes {
            return Err(said("ERR the head of a string is too small: report this as a defect"));
        }
        self.pool.write(at(self.head, words_at), &words).map_err(accessed)?;
        let reservation = self.pool.reserve_owned(self.head).map_err(allocated)?;
        self.is_reserved = true;
        Ok(reservation)
    }
}

impl Drop for StringMemory {
    fn drop(&mut self) {
        self.arriving.fetch_sub(self.room, Relaxed);
        if !self.is_reserved {
            // The daemon takes it back when the process ends if this fails.
            let _ = self.pool.free(self.head);
        }
    }
}
