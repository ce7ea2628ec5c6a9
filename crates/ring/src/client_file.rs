//! The layout of a client's file.
//!
//! ```text
//! +-----------------------------+ 0
//! | superblock                  |
//! +-----------------------------+ 4096
//! | thread slot 0 (16 KiB)      |  access slot, lines written in pages that move,
//! | thread slot 1 ...           |  inbox, outbox, magazines, reservation records,
//! |                             |  samples of the pages used
//! +-----------------------------+
//! | call cells, 16 per thread   |
//! +-----------------------------+
//! | request ring: in the rack   |  header, 1024 entries
//! | request ring: out of it     |  header, 1024 entries
//! +-----------------------------+ page-aligned
//! | data ring, 4 MiB            |
//! +-----------------------------+
//! ```

use std::sync::Arc;

use rackpool_shm::access::AccessSlot;
use rackpool_shm::dirty_log::DirtyLog;
use rackpool_shm::samples::HeatSamples;
use rackpool_shm::superblock::{SUPERBLOCK_BYTES, Superblock};
use rackpool_shm::window::ThreadOffsets;
use rackpool_shm::{Held, Mapping, OutOfBounds, Shared};
use rackpool_sync::atomic::AtomicU64;

use crate::call::CallCell;
use crate::request::{Entry, RequestRing, RingHeader};
use crate::reservation::{RESERVATIONS, ReservationRecord};

/// Threads of one client that can use the pool at the same time, at most.
pub const MAX_THREADS: u16 = 512;
/// Calls a thread can have outstanding.
pub const CELLS_PER_THREAD: usize = 16;
/// Bytes of the data ring.
pub const DATA_BYTES: u64 = 4 << 20;
/// Objects that one message moves between a client's cache and the daemon.
pub const EXCHANGE: usize = 64;
/// Objects of one size that a thread's cache holds.
pub const MAGAZINE: usize = 64;
/// Sizes that are cached: 16 B to 512 KiB.
pub const MAGAZINE_CLASSES: usize = 16;
const RING_ENTRIES: usize = 1024;
const THREAD_SLOT_BYTES: u64 = 16 << 10;

/// One thread's part of the client file. Every array holds global addresses of objects, 0 for
/// none; an object stands in one of them from the moment the daemon hands it out until `alloc`
/// returns it, and from `free` until the daemon takes it back. When the client dies, the daemon
/// takes back whatever stands here.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct ThreadSlot {
    /// The frame the thread is using.
    pub access: AccessSlot,
    /// What it writes in pages that move.
    pub lines: DirtyLog,
    /// Objects from the daemon. It writes here only while it owes an answer to the thread.
    pub inbox: [AtomicU64; EXCHANGE],
    /// Objects for the daemon to free. It clears what it has freed.
    pub outbox: [AtomicU64; EXCHANGE],
    /// Free objects for the next allocations, by size class.
    pub magazines: [[AtomicU64; MAGAZINE]; MAGAZINE_CLASSES],
    /// Objects that the program has and that nothing points to.
    pub reservations: [ReservationRecord; RESERVATIONS],
    /// Which pages of the rack the thread uses.
    pub samples: HeatSamples,
}

const _: () = assert!(size_of::<ThreadSlot>() as u64 <= THREAD_SLOT_BYTES);

// SAFETY: `repr(C)`, nothing but atomic integers, shared types and padding.
unsafe impl Shared for ThreadSlot {}

/// Which of a client's two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Requests that the rack's daemon answers by itself.
    Rack,
    /// Requests that another rack has a part in.
    Remote,
}

/// A request ring as it lies in the file.
#[derive(Debug)]
#[repr(C)]
struct RingArea {
    header: RingHeader,
    entries: [Entry; RING_ENTRIES],
}

// SAFETY: `repr(C)`, nothing but shared types.
unsafe impl Shared for RingArea {}

/// A client file mapped by the client or by its daemon.
#[derive(Debug)]
pub struct ClientFile {
    memory: Arc<Mapping>,
    threads: u16,
    /// Looked at all the time.
    rack_ring: Held<RingArea>,
    remote_ring: Held<RingArea>,
}

impl ClientFile {
    /// Bytes of a file for so many threads. It is sparse: unused threads take no memory.
    #[must_use]
    pub const fn bytes(threads: u16) -> u64 {
        Self::data_start(threads) + DATA_BYTES
    }

    const fn cells_start(threads: u16) -> u64 {
        SUPERBLOCK_BYTES + threads as u64 * THREAD_SLOT_BYTES
    }

    const fn ring_start(threads: u16, route: Route) -> u64 {
        let cells = (threads as usize * CELLS_PER_THREAD * size_of::<CallCell>()) as u64;
        let ring = size_of::<RingArea>() as u64;
        match route {
            Route::Rack => Self::cells_start(threads) + cells,
            Route::Remote => Self::cells_start(threads) + cells + ring,
        }
    }

    const fn data_start(threads: u16) -> u64 {
        let ring = size_of::<RingArea>() as u64;
        (Self::ring_start(threads, Route::Remote) + ring).next_multiple_of(4096)
    }

    /// The layout over a mapping that is long enough for it.
    pub fn new(memory: Mapping, threads: u16) -> Result<Self, OutOfBounds> {
        let needed = Self::bytes(threads);
        if memory.len() < needed {
            return Err(OutOfBounds { offset: 0, len: needed, mapped: memory.len() });
        }
        let memory = Arc::new(memory);
        let ring = |route| Held::new(&memory, Self::ring_start(threads, route));
        let (rack_ring, remote_ring) = (ring(Route::Rack)?, ring(Route::Remote)?);
        Ok(Self { memory, threads, rack_ring, remote_ring })
    }

    /// Threads there is room for.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// The superblock.
    pub fn superblock(&self) -> Result<&Superblock, OutOfBounds> {
        self.memory.view(0)
    }

    #[inline]
    fn check(&self, thread: u16) -> Result<u64, OutOfBounds> {
        if thread < self.threads {
            return Ok(u64::from(thread));
        }
        let offset = SUPERBLOCK_BYTES + u64::from(thread) * THREAD_SLOT_BYTES;
        Err(OutOfBounds { offset, len: THREAD_SLOT_BYTES, mapped: self.memory.len() })
    }

    /// A thread's slot.
    #[inline]
    pub fn thread(&self, thread: u16) -> Result<&ThreadSlot, OutOfBounds> {
        self.memory.view(SUPERBLOCK_BYTES + self.check(thread)? * THREAD_SLOT_BYTES)
    }

    /// A thread's call cells.
    #[inline]
    pub fn cells(&self, thread: u16) -> Result<&[CallCell], OutOfBounds> {
        let each = (CELLS_PER_THREAD * size_of::<CallCell>()) as u64;
        let offset = Self::cells_start(self.threads) + self.check(thread)? * each;
        self.memory.view_slice(offset, CELLS_PER_THREAD)
    }

    /// One of the two request rings.
    #[inline]
    #[must_use]
    pub fn ring(&self, route: Route) -> RequestRing<'_> {
        let ring = match route {
            Route::Rack => &self.rack_ring,
            Route::Remote => &self.remote_ring,
        };
        RequestRing::new(&ring.header, &ring.entries)
    }

    /// Where the data ring starts in the file; it has [`DATA_BYTES`].
    #[must_use]
    pub const fn data_offset(&self) -> u64 {
        Self::data_start(self.threads)
    }

    /// The mapping, to copy bytes of the data ring.
    #[must_use]
    pub const fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Where a thread's things that an access needs lie in the file.
    pub fn offsets(&self, thread: u16) -> Result<ThreadOffsets, OutOfBounds> {
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
            let rack = ClientFile::ring_start(threads, Route::Rack);
            let remote = ClientFile::ring_start(threads, Route::Remote);
            let ring = size_of::<RingArea>() as u64;
            assert!(ClientFile::cells_start(threads) + u64::from(threads) * 2048 <= rack);
            assert_eq!(rack + ring, remote);
            assert!(remote + ring <= ClientFile::data_start(threads));
            assert_eq!(rack % 64, 0);
        }
    }

    /// The numbers and offsets of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        assert_eq!(ClientFile::cells_start(64), 1_052_672);
        assert_eq!(ClientFile::ring_start(64, Route::Rack), 1_183_744);
        assert_eq!(ClientFile::ring_start(64, Route::Remote), 1_249_408);
        assert_eq!(ClientFile::data_start(64), 1_318_912);
        assert_eq!(ClientFile::bytes(64), 5_513_216);
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
    }
}
