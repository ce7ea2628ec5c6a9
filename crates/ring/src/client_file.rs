//! The layout of a client's file.
//!
//! ```text
//! +-----------------------------+ 0
//! | superblock                  |
//! +-----------------------------+ 4096
//! | thread slot 0 (16 KiB)      |  access slot, lines written in pages that move,
//! | thread slot 1 ...           |  inbox, outbox, magazines, reservation records,
//! |                             |  samples of the pages used, claims of locks
//! +-----------------------------+
//! | call cells, 16 per thread   |
//! +-----------------------------+
//! | request ring: in the rack   |  header, 1024 entries
//! | request ring: out of it     |  header, 1024 entries
//! +-----------------------------+ page-aligned
//! | data ring, 4 MiB            |
//! +-----------------------------+
//! | high-water marks, the beat  |
//! +-----------------------------+ the following takes memory as it is used
//! | owned array, 2^20 cells     |  fixed objects that the program has
//! | pin array, 2^20 cells       |  fixed objects whose memory it uses
//! +-----------------------------+
//! | line caches, 148 KiB for    |  lines of other racks that a thread has locked:
//! | each of 512 threads         |  the masks of all claims, then their lines
//! +-----------------------------+
//! ```

use std::sync::Arc;

use rackpool_model::{CLAIMS, LOCK_LINE_BYTES, MAX_LOCK_LINES};
use rackpool_shm::access::AccessSlot;
use rackpool_shm::access_samples::HeatSamples;
use rackpool_shm::dirty_log::DirtyLog;
use rackpool_shm::free_space::ON_DEMAND_BYTES;
use rackpool_shm::line_cache::{CopyingCell, LineMasks};
use rackpool_shm::lock_words::ClaimCell;
use rackpool_shm::superblock::{SUPERBLOCK_BYTES, Superblock};
use rackpool_shm::window::ThreadOffsets;
use rackpool_shm::{HeldView, Mapping, OutsideMapping, PopulateError, Shared};
use rackpool_sync::atomic::AtomicU64;

use crate::call::CallCell;
use crate::line_cache::LineCache;
use crate::request::{RequestRing, RingEntry, RingHeader};
use crate::reservation::{RESERVATIONS, ReservationRecord};
use crate::sparse_array::{ARRAY_CELLS, HighWater, SparseArray};

/// Upper bound of the threads of one client that use the pool at the same time.
pub const MAX_THREADS: u16 = 512;
/// Number of calls that a thread can have outstanding.
pub const CELLS_PER_THREAD: usize = 16;
/// Bytes of the data ring.
pub const DATA_BYTES: u64 = 4 << 20;
/// Number of objects that one request moves between a client's magazine and the daemon.
pub const EXCHANGE: usize = 64;
/// Largest number of objects in a magazine.
pub const MAGAZINE: usize = 64;
/// Number of size classes with a magazine: 16 B to 512 KiB.
pub const MAGAZINE_CLASSES: usize = 16;
const RING_ENTRIES: usize = 1024;
/// Bytes of the page with the high-water marks of the sparse arrays.
const MARKS_BYTES: u64 = 4096;
/// Bytes of the cells of a sparse array.
const ARRAY_BYTES: u64 = (ARRAY_CELLS * size_of::<AtomicU64>()) as u64;

/// Bytes of the lines of a claim's cache.
const LINES_BYTES: u64 = MAX_LOCK_LINES as u64 * LOCK_LINE_BYTES;
/// Bytes of the masks of a thread's line caches.
const MASKS_BYTES: u64 = 20 << 10;
/// Bytes of a thread's line caches.
const CACHES_BYTES: u64 = MASKS_BYTES + CLAIMS as u64 * LINES_BYTES;

const _: () = assert!(CLAIMS as u64 * size_of::<LineMasks>() as u64 <= MASKS_BYTES);
const _: () = assert!(2 * ARRAY_BYTES + MAX_THREADS as u64 * CACHES_BYTES == ON_DEMAND_BYTES);
const THREAD_SLOT_BYTES: u64 = 16 << 10;

/// One thread's part of the client file. The arrays hold global addresses of objects, 0 for none.
/// An object is noted in one of them from the time the daemon hands it out until `alloc` returns
/// it, and from `free` until the daemon takes it back. When the client dies, the daemon takes back
/// every object noted here.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct ThreadSlot {
    /// The frame that the thread accesses.
    pub access: AccessSlot,
    /// The lines that the thread writes in dirty-logged pages.
    pub lines: DirtyLog,
    /// Objects from the daemon. The daemon writes here only while it owes the thread an answer.
    pub inbox: [AtomicU64; EXCHANGE],
    /// Objects for the daemon to free. The daemon clears each cell after it has freed the object.
    pub outbox: [AtomicU64; EXCHANGE],
    /// Free objects for the next allocations, one magazine per size class.
    pub magazines: [[AtomicU64; MAGAZINE]; MAGAZINE_CLASSES],
    /// Records of the thread's reservations.
    pub reservations: [ReservationRecord; RESERVATIONS],
    /// Samples of the thread's accesses to pages of the rack.
    pub samples: HeatSamples,
    /// The locks that the thread holds or is acquiring.
    pub claims: [ClaimCell; CLAIMS as usize],
    /// Number of leading claims that the thread has ever used. The daemon reads no others.
    pub claims_used: AtomicU64,
    /// A bit for each claim: the daemon sets it when the thread has lost the lock, the thread
    /// clears it when it unlocks.
    pub lost_claims: AtomicU64,
    /// The claim in whose line cache the thread stores bytes.
    pub copying: CopyingCell,
    /// For each claim the daemon's number of the lock whose lines are in its line cache, 0 for
    /// none. While it is 0, the cache may have no memory, and the daemon does not look at it.
    pub cached_locks: [AtomicU64; CLAIMS as usize],
}

const _: () = assert!(size_of::<ThreadSlot>() as u64 <= THREAD_SLOT_BYTES);

// SAFETY: `repr(C)`, nothing but atomic integers, shared types and padding.
unsafe impl Shared for ThreadSlot {}

/// Selects one of a client's two request rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Requests that the rack's daemon answers alone.
    Rack,
    /// Requests that involve another rack.
    Remote,
}

/// Selects one of a client's two sparse arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayKind {
    /// Fixed objects that the program has and has published nowhere. When the client dies, the
    /// daemon frees them.
    Owned,
    /// Fixed objects whose memory must not be reused.
    Pins,
}

/// The high-water marks of the sparse arrays, and the beat.
#[derive(Debug)]
#[repr(C)]
struct ClientWords {
    high_waters: [HighWater; 2],
    /// The client's process counts it up at least each second.
    beat: AtomicU64,
}

// SAFETY: `repr(C)`, nothing but shared types.
unsafe impl Shared for ClientWords {}

/// The cells of a sparse array.
#[derive(Debug)]
#[repr(C)]
struct ArrayCells([AtomicU64; ARRAY_CELLS]);

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for ArrayCells {}

/// A request ring as laid out in the file.
#[derive(Debug)]
#[repr(C)]
struct RingArea {
    header: RingHeader,
    entries: [RingEntry; RING_ENTRIES],
}

// SAFETY: `repr(C)`, nothing but shared types.
unsafe impl Shared for RingArea {}

/// A client file, mapped by the client or by its daemon.
#[derive(Debug)]
pub struct ClientFile {
    memory: Arc<Mapping>,
    threads: u16,
    /// Both rings are resolved once, because they are polled all the time.
    rack_ring: HeldView<RingArea>,
    remote_ring: HeldView<RingArea>,
    words: HeldView<ClientWords>,
    arrays: [HeldView<ArrayCells>; 2],
}

impl ClientFile {
    /// Length in bytes of the file for `threads` threads. The file is sparse: unused slots take no
    /// memory.
    #[must_use]
    pub const fn bytes(threads: u16) -> u64 {
        Self::caches_start(threads) + MAX_THREADS as u64 * CACHES_BYTES
    }

    /// Length in bytes of the part that the fabric may access: all but the sparse arrays.
    #[must_use]
    pub const fn transfer_bytes(threads: u16) -> u64 {
        Self::data_start(threads) + DATA_BYTES
    }

    const fn array_start(threads: u16, kind: ArrayKind) -> u64 {
        Self::transfer_bytes(threads) + MARKS_BYTES + kind as u64 * ARRAY_BYTES
    }

    /// The line caches are as long for each number of threads, so that the part that is allocated
    /// on demand is.
    const fn caches_start(threads: u16) -> u64 {
        Self::array_start(threads, ArrayKind::Pins) + ARRAY_BYTES
    }

    const fn cells_start(threads: u16) -> u64 {
        SUPERBLOCK_BYTES + threads as u64 * THREAD_SLOT_BYTES
    }

    const fn ring_start(threads: u16, route: RingKind) -> u64 {
        let cells = (threads as usize * CELLS_PER_THREAD * size_of::<CallCell>()) as u64;
        let ring = size_of::<RingArea>() as u64;
        match route {
            RingKind::Rack => Self::cells_start(threads) + cells,
            RingKind::Remote => Self::cells_start(threads) + cells + ring,
        }
    }

    const fn data_start(threads: u16) -> u64 {
        let ring = size_of::<RingArea>() as u64;
        (Self::ring_start(threads, RingKind::Remote) + ring).next_multiple_of(4096)
    }

    /// Lays the structures over a mapping. Fails if the mapping is too short.
    pub fn new(memory: Mapping, threads: u16) -> Result<Self, OutsideMapping> {
        let needed = Self::bytes(threads);
        if memory.len() < needed {
            return Err(OutsideMapping { offset: 0, len: needed, mapped: memory.len() });
        }
        let memory = Arc::new(memory);
        let ring = |route| HeldView::new(&memory, Self::ring_start(threads, route));
        let (rack_ring, remote_ring) = (ring(RingKind::Rack)?, ring(RingKind::Remote)?);
        let words = HeldView::new(&memory, Self::transfer_bytes(threads))?;
        let array = |kind| HeldView::new(&memory, Self::array_start(threads, kind));
        let arrays = [array(ArrayKind::Owned)?, array(ArrayKind::Pins)?];
        Ok(Self { memory, threads, rack_ring, remote_ring, words, arrays })
    }

    /// Number of thread slots.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// The superblock.
    pub fn superblock(&self) -> Result<&Superblock, OutsideMapping> {
        self.memory.view(0)
    }

    #[inline]
    fn check(&self, thread: u16) -> Result<u64, OutsideMapping> {
        if thread < self.threads {
            return Ok(u64::from(thread));
        }
        let offset = SUPERBLOCK_BYTES + u64::from(thread) * THREAD_SLOT_BYTES;
        Err(OutsideMapping { offset, len: THREAD_SLOT_BYTES, mapped: self.memory.len() })
    }

    /// A thread's slot.
    #[inline]
    pub fn thread(&self, thread: u16) -> Result<&ThreadSlot, OutsideMapping> {
        self.memory.view(SUPERBLOCK_BYTES + self.check(thread)? * THREAD_SLOT_BYTES)
    }

    /// A thread's call cells.
    #[inline]
    pub fn cells(&self, thread: u16) -> Result<&[CallCell], OutsideMapping> {
        let each = (CELLS_PER_THREAD * size_of::<CallCell>()) as u64;
        let offset = Self::cells_start(self.threads) + self.check(thread)? * each;
        self.memory.view_slice(offset, CELLS_PER_THREAD)
    }

    /// One of the two request rings.
    #[inline]
    #[must_use]
    pub fn ring(&self, route: RingKind) -> RequestRing<'_> {
        let ring = match route {
            RingKind::Rack => &self.rack_ring,
            RingKind::Remote => &self.remote_ring,
        };
        RequestRing::new(&ring.header, &ring.entries)
    }

    /// One of the two sparse arrays.
    #[inline]
    #[must_use]
    pub fn array(&self, kind: ArrayKind) -> SparseArray<'_> {
        let [owned, pins] = &self.words.high_waters;
        let [owned_cells, pin_cells] = &self.arrays;
        match kind {
            ArrayKind::Owned => SparseArray::new(owned, &owned_cells.0),
            ArrayKind::Pins => SparseArray::new(pins, &pin_cells.0),
        }
    }

    /// The number that the client's process counts up at least each second. The daemon takes
    /// locks from a process that stands still.
    #[must_use]
    pub fn beat(&self) -> &AtomicU64 {
        &self.words.beat
    }

    /// Allocates the memory of a cell. Must be called before the cell is first written: where the
    /// file system is full, the kernel would kill the process that writes.
    pub fn reserve_cell(&self, kind: ArrayKind, index: usize) -> Result<(), PopulateError> {
        let cell = Self::array_start(self.threads, kind) + index as u64 * 8;
        self.memory.populate_part(cell, 8)
    }

    fn line_cache_start(&self, thread: u16, claim: u8) -> Result<[u64; 2], OutsideMapping> {
        let start = Self::caches_start(self.threads) + self.check(thread)? * CACHES_BYTES;
        // A claim that does not exist would have the next thread's memory.
        let claim = u64::from(claim.min(CLAIMS - 1));
        let masks = start + claim * size_of::<LineMasks>() as u64;
        Ok([masks, start + MASKS_BYTES + claim * LINES_BYTES])
    }

    /// The line cache of a thread's claim.
    #[inline]
    pub fn line_cache(&self, thread: u16, claim: u8) -> Result<LineCache<'_>, OutsideMapping> {
        let [masks, lines] = self.line_cache_start(thread, claim)?;
        let numbers = &self.thread(thread)?.cached_locks;
        let number = &numbers[usize::from(claim.min(CLAIMS - 1))];
        Ok(LineCache::new(number, self.memory.view(masks)?, &self.memory, lines))
    }

    /// Allocates the memory of a claim's line cache. Must be called before the cache is first used,
    /// as [`Self::reserve_cell`].
    pub fn reserve_line_cache(&self, thread: u16, claim: u8) -> Result<(), PopulateError> {
        let [masks, lines] = self.line_cache_start(thread, claim)?;
        self.memory.populate_part(masks, size_of::<LineMasks>() as u64)?;
        self.memory.populate_part(lines, LINES_BYTES)
    }

    /// Offset of the data ring in the file; its length is [`DATA_BYTES`].
    #[must_use]
    pub const fn data_offset(&self) -> u64 {
        Self::data_start(self.threads)
    }

    /// The mapping, through which the bytes of the data ring are copied.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// The offsets in the file of the parts of a thread slot that a local access uses.
    pub fn offsets(&self, thread: u16) -> Result<ThreadOffsets, OutsideMapping> {
        let slot = SUPERBLOCK_BYTES + self.check(thread)? * THREAD_SLOT_BYTES;
        Ok(ThreadOffsets {
            access: slot + std::mem::offset_of!(ThreadSlot, access) as u64,
            samples: slot + std::mem::offset_of!(ThreadSlot, samples) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_without_overlap() {
        for threads in [1, 3, 64, MAX_THREADS] {
            let rack = ClientFile::ring_start(threads, RingKind::Rack);
            let remote = ClientFile::ring_start(threads, RingKind::Remote);
            let ring = size_of::<RingArea>() as u64;
            assert!(ClientFile::cells_start(threads) + u64::from(threads) * 2048 <= rack);
            assert_eq!(rack + ring, remote);
            assert!(remote + ring <= ClientFile::data_start(threads));
            assert_eq!(rack % 64, 0);
            let owned = ClientFile::array_start(threads, ArrayKind::Owned);
            let pins = ClientFile::array_start(threads, ArrayKind::Pins);
            assert!(ClientFile::data_start(threads) + DATA_BYTES < owned);
            assert_eq!((owned % 4096, pins - owned), (0, 8 << 20));
            assert_eq!(pins + (8 << 20), ClientFile::caches_start(threads));
            assert_eq!(ClientFile::bytes(threads) - owned, ON_DEMAND_BYTES);
        }
    }

    /// Regression: the daemon looked at the masks of each writer's cache. Where the file system was
    /// full, the kernel killed it.
    #[test]
    fn a_cache_that_is_not_in_use_is_not_looked_at() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(ClientFile::bytes(1)).unwrap();
        let mapped = Mapping::new(&file, ClientFile::bytes(1)).unwrap();
        let client = ClientFile::new(mapped, 1).unwrap();
        assert_eq!(client.thread(0).unwrap().copying.claim(), None);
        let blocks = || file.metadata().unwrap().blocks();
        let before = blocks();
        assert!(!client.line_cache(0, 3).unwrap().is_of(7));
        assert_eq!(blocks(), before);
        client.reserve_line_cache(0, 3).unwrap();
        assert_eq!(blocks() - before, 2 * 8, "a page of masks and one of lines");
        client.line_cache(0, 3).unwrap().begin(7);
        assert!(client.line_cache(0, 3).unwrap().is_of(7));
        assert!(!client.line_cache(0, 2).unwrap().is_of(7));
    }

    /// The offsets of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        assert_eq!(ClientFile::cells_start(64), 1_052_672);
        assert_eq!(ClientFile::ring_start(64, RingKind::Rack), 1_183_744);
        assert_eq!(ClientFile::ring_start(64, RingKind::Remote), 1_249_408);
        assert_eq!(ClientFile::data_start(64), 1_318_912);
        assert_eq!(ClientFile::transfer_bytes(64), 5_513_216);
        assert_eq!(ClientFile::array_start(64, ArrayKind::Owned), 5_517_312);
        assert_eq!(ClientFile::array_start(64, ArrayKind::Pins), 13_905_920);
        assert_eq!(ClientFile::caches_start(64), 22_294_528);
        assert_eq!((MASKS_BYTES, CACHES_BYTES), (20_480, 151_552));
        assert_eq!(size_of::<LineMasks>(), 576);
        assert_eq!(ClientFile::bytes(64), 99_889_152);
        assert_eq!(offset_of!(ClientWords, beat), 128);
        assert_eq!(offset_of!(RingArea, entries), size_of::<RingHeader>());
        assert_eq!(size_of::<RingArea>(), 128 + 1024 * 64);
        assert_eq!(THREAD_SLOT_BYTES, 16_384);
        assert_eq!(offset_of!(ThreadSlot, access), 0);
        assert_eq!(offset_of!(ThreadSlot, lines), 64);
        assert_eq!(offset_of!(ThreadSlot, inbox), 320);
        assert_eq!(offset_of!(ThreadSlot, outbox), 832);
        assert_eq!(offset_of!(ThreadSlot, magazines), 1344);
        assert_eq!(offset_of!(ThreadSlot, reservations), 9536);
        assert_eq!(offset_of!(ThreadSlot, samples), 10_560);
        assert_eq!(offset_of!(ThreadSlot, samples) + size_of::<HeatSamples>(), 11_584);
        assert_eq!(offset_of!(ThreadSlot, claims), 11_584);
        assert_eq!(offset_of!(ThreadSlot, claims_used), 11_840);
        assert_eq!(offset_of!(ThreadSlot, lost_claims), 11_848);
        assert_eq!(offset_of!(ThreadSlot, copying), 11_856);
        assert_eq!(offset_of!(ThreadSlot, cached_locks), 11_864);
    }
}
