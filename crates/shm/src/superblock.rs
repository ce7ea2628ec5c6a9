//! What the first 4 KiB of rack metadata and of client files say about the rest.

use std::path::{Path, PathBuf};

use rackpool_model::{ClientId, Incarnation, MemoryId, PageId, PageSize, RackId};
use rackpool_sync::SleepFlag;
use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

use crate::mapping::Shared;

/// Bytes a superblock takes.
pub const SUPERBLOCK_BYTES: u64 = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"rackpool");
/// The version of every layout in this crate and in `rackpool-ring`.
const FORMAT_VERSION: u32 = 4;

/// Which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileKind {
    /// The rack's metadata.
    Metadata = 1,
    /// A client's file.
    Client = 2,
}

/// What a superblock describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Which file it is.
    pub kind: FileKind,
    /// The rack.
    pub rack: RackId,
    /// The identity of the rack's memory.
    pub memory: MemoryId,
    /// The pool's page size.
    pub page_size: PageSize,
    /// Frames in the rack.
    pub frames: u32,
    /// The client whose file it is; 0 in rack metadata.
    pub client: ClientId,
    /// Threads of that client; 0 in rack metadata.
    pub threads: u32,
}

/// Why a file's superblock is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// It does not begin as a file of rackpool does.
    #[error("{0} is no file of rackpool: choose another folder, or remove that file")]
    Foreign(PathBuf),
    /// Another release wrote it.
    #[error(
        "{path} has format {found}, this release reads {FORMAT_VERSION}: start the release that wrote it, or remove the rack's folder to give its contents up"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
    },
    /// The checksum does not match.
    #[error(
        "{0} is damaged (its superblock's checksum does not match): remove the rack's folder to give its contents up; pages of this rack are lost"
    )]
    Corrupt(PathBuf),
    /// It is sound but not what was expected.
    #[error(
        "{path} was made with {found}, but {wanted} was asked for: start with the old settings, or remove the rack's folder to give its contents up"
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What the file says.
        found: String,
        /// What the caller wants.
        wanted: String,
    },
}

/// The superblock in memory.
///
/// ```text
///    0  magic "rackpool"            8  kind (4), format version (4)
///   16  page bits (4), frames (4)  24  rack (4), threads (4)
///   32  memory id (16)             48  client id (8)
///   56  checksum of bytes 0..56    64  first page id   72  incarnation
///   80  process id of the client   88  when that process started
///   96  1: the client has closed the pool   104  kind of memory   112  extra latency in ns
///  128  1: the daemon sleeps, ring its event
///  192  1: the daemon's barrier reaches clients, which need no fence of their own
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Superblock {
    geometry: [AtomicU64; 7],
    checksum: AtomicU64,
    first_page: AtomicU64,
    incarnation: AtomicU64,
    owner: [AtomicU64; 2],
    closed: AtomicU64,
    memory_kind: AtomicU64,
    extra_latency_ns: AtomicU64,
    reserved: AtomicU64,
    sleeping: SleepFlag,
    reserved_line: [AtomicU32; 15],
    heavy_barrier: AtomicU32,
}

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for Superblock {}

impl Geometry {
    fn words(&self) -> [u64; 7] {
        let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
        let memory = [self.memory.0 as u64, (self.memory.0 >> 64) as u64];
        [
            MAGIC,
            pair(self.kind as u32, FORMAT_VERSION),
            pair(u32::from(self.page_size.bits()), self.frames),
            pair(u32::from(self.rack.0), self.threads),
            memory[0],
            memory[1],
            u64::from(self.client.0),
        ]
    }

    fn describe(&self) -> String {
        let what = match self.kind {
            FileKind::Metadata => format!("metadata of {}", self.rack),
            FileKind::Client => format!("{} with {} threads", self.client, self.threads),
        };
        format!("{what}, {} frames, pages of {}", self.frames, self.page_size)
    }

    /// Refuses a file that is sound but describes something else. The memory id is not compared
    /// when the caller does not know it yet.
    pub fn require(&self, wanted: &Self, path: &Path) -> Result<(), SuperblockError> {
        if self == wanted {
            return Ok(());
        }
        Err(SuperblockError::Mismatch {
            path: path.to_path_buf(),
            found: self.describe(),
            wanted: wanted.describe(),
        })
    }
}

fn checksum(words: &[u64; 7]) -> u64 {
    let mut bytes = [0; 56];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are meant")]
const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Superblock {
    /// Describes the file. The checksum comes last, so that a crash before leaves a file that is
    /// refused instead of one that lies.
    pub fn format(&self, geometry: &Geometry) {
        let words = geometry.words();
        for (cell, word) in self.geometry.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        // SYNC: pairs with the loads in `read`.
        self.checksum.store(checksum(&words), Ordering::Release);
    }

    /// What the file says of itself.
    pub fn read(&self, path: &Path) -> Result<Geometry, SuperblockError> {
        let checksum = self.checksum.load(Ordering::Acquire);
        let words: [u64; 7] = std::array::from_fn(|i| self.geometry[i].load(Ordering::Acquire));
        Self::check(words, checksum, path)
    }

    /// What a copy of a file's first bytes says of it, for those who may not map it writable.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Geometry, SuperblockError> {
        let word = |i: usize| {
            let chunk = bytes.get(i * 8..i * 8 + 8).and_then(|chunk| chunk.try_into().ok());
            u64::from_le_bytes(chunk.unwrap_or_default())
        };
        Self::check(std::array::from_fn(word), word(7), path)
    }

    fn check(
        words: [u64; 7],
        found_checksum: u64,
        path: &Path,
    ) -> Result<Geometry, SuperblockError> {
        let corrupt = || SuperblockError::Corrupt(path.to_path_buf());
        if words[0] != MAGIC {
            return Err(SuperblockError::Foreign(path.to_path_buf()));
        }
        let (kind, version) = halves(words[1]);
        if version != FORMAT_VERSION {
            return Err(SuperblockError::Version { path: path.to_path_buf(), found: version });
        }
        if checksum(&words) != found_checksum {
            return Err(corrupt());
        }
        let (page_bits, frames) = halves(words[2]);
        let (rack, threads) = halves(words[3]);
        let page_bytes = 1_u64.checked_shl(page_bits).ok_or_else(corrupt)?;
        Ok(Geometry {
            kind: match kind {
                1 => FileKind::Metadata,
                2 => FileKind::Client,
                _ => return Err(corrupt()),
            },
            rack: RackId(u16::try_from(rack).map_err(|_| corrupt())?),
            memory: MemoryId(u128::from(words[4]) | (u128::from(words[5]) << 64)),
            page_size: PageSize::from_bytes(page_bytes).map_err(|_| corrupt())?,
            frames,
            client: ClientId(u32::try_from(words[6]).map_err(|_| corrupt())?),
            threads,
        })
    }

    /// The id of the page that frame 0 was born with; frame `f` was born with the id `f` further
    /// on. `None` until the metadata server has given the rack its ids.
    #[must_use]
    pub fn first_page(&self) -> Option<PageId> {
        match u32::try_from(self.first_page.load(Ordering::Acquire)) {
            Ok(0) | Err(_) => None,
            Ok(first) => Some(PageId(first)),
        }
    }

    /// Notes the rack's page ids.
    pub fn set_first_page(&self, first: PageId) {
        self.first_page.store(u64::from(first.0), Ordering::Release);
    }

    /// The life of the daemon that serves the file.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// Notes a new life of the daemon.
    pub fn set_incarnation(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.0, Ordering::Release);
    }

    /// The process that owns a client file: its id, and when it started in the kernel's ticks.
    #[must_use]
    pub fn owner(&self) -> (u64, u64) {
        (self.owner[0].load(Ordering::Acquire), self.owner[1].load(Ordering::Acquire))
    }

    /// Notes the process that owns a client file.
    pub fn set_owner(&self, pid: u64, started: u64) {
        self.owner[1].store(started, Ordering::Release);
        self.owner[0].store(pid, Ordering::Release);
    }

    /// Whether the client has closed the pool: what its file holds can go back.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }

    /// The client says that it has closed the pool.
    pub fn set_closed(&self) {
        self.closed.store(1, Ordering::Release);
    }

    /// The kind of memory the frames lie in: [`MemoryKind::code`](crate::memory::MemoryKind::code).
    #[must_use]
    pub fn memory_kind(&self) -> u64 {
        self.memory_kind.load(Ordering::Acquire)
    }

    /// Notes the kind of memory, before [`Self::format`].
    pub fn set_memory_kind(&self, code: u64) {
        self.memory_kind.store(code, Ordering::Release);
    }

    /// Notes how much longer each access to the frames is to take, in nanoseconds; 0 for no longer
    /// than it does.
    pub fn set_extra_latency_ns(&self, ns: u32) {
        self.extra_latency_ns.store(u64::from(ns), Ordering::Release);
    }

    /// Where the daemon says that it sleeps.
    #[must_use]
    pub const fn sleeping(&self) -> &SleepFlag {
        &self.sleeping
    }

    /// Notes whether the daemon's barrier reaches the processes of clients.
    pub fn set_heavy_barrier(&self, reaches: bool) {
        self.heavy_barrier.store(u32::from(reaches), Ordering::Release);
    }

    /// Offset of the note of [`Self::set_heavy_barrier`] in the file.
    pub const HEAVY_BARRIER_OFFSET: u64 = std::mem::offset_of!(Self, heavy_barrier) as u64;
    /// Offset of [`Self::sleeping`] in the file, for those who may only read it.
    pub const SLEEPING_OFFSET: u64 = std::mem::offset_of!(Self, sleeping) as u64;
    /// Offset of [`Self::memory_kind`] in the file.
    pub const MEMORY_KIND_OFFSET: u64 = std::mem::offset_of!(Self, memory_kind) as u64;
    /// Offset of the note of [`Self::set_extra_latency_ns`] in the file.
    pub const EXTRA_LATENCY_OFFSET: u64 = std::mem::offset_of!(Self, extra_latency_ns) as u64;
    /// Offset of the incarnation in the file.
    pub const INCARNATION_OFFSET: u64 = std::mem::offset_of!(Self, incarnation) as u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, file};

    fn geometry() -> Geometry {
        Geometry {
            kind: FileKind::Client,
            rack: RackId(7),
            memory: MemoryId(u128::MAX - 5),
            page_size: PageSize::DEFAULT,
            frames: 512,
            client: ClientId(9),
            threads: 64,
        }
    }

    fn with_block(test: impl FnOnce(&Mapping, &Superblock)) {
        let folder = tempfile::tempdir().unwrap();
        let file = file::create(&folder.path().join("file"), SUPERBLOCK_BYTES).unwrap();
        let memory = Mapping::new(&file, SUPERBLOCK_BYTES).unwrap();
        test(&memory, memory.view(0).unwrap());
    }

    #[test]
    fn what_is_formatted_is_read() {
        with_block(|memory, block| {
            block.format(&geometry());
            assert_eq!(block.read(Path::new("x")), Ok(geometry()));
            let mut bytes = vec![0; 4096];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!(Superblock::parse(&bytes, Path::new("x")), Ok(geometry()));
            assert!(Superblock::parse(&bytes[..30], Path::new("x")).is_err());
            assert_eq!(block.first_page(), None);
            block.set_first_page(PageId(3));
            assert_eq!(block.first_page(), Some(PageId(3)));
            assert_eq!(block.read(Path::new("x")), Ok(geometry()));
        });
    }

    #[test]
    fn what_changes_lies_where_clients_look_for_it() {
        with_block(|memory, block| {
            block.format(&geometry());
            block.set_memory_kind(0x104);
            block.set_extra_latency_ns(50);
            assert_eq!(block.memory_kind(), 0x104);
            let at = |offset| memory.view::<AtomicU64>(offset).unwrap().load(Ordering::Relaxed);
            assert_eq!((at(104), at(112)), (0x104, 50));
            assert_eq!(Superblock::EXTRA_LATENCY_OFFSET, 112);
            assert_eq!(Superblock::HEAVY_BARRIER_OFFSET, 192, "nothing else has moved");
            assert_eq!(block.read(Path::new("x")), Ok(geometry()));
        });
    }

    #[test]
    fn every_flipped_bit_is_found() {
        with_block(|memory, block| {
            block.format(&geometry());
            for bit in 0..64 * 8 {
                let mut byte = [0];
                memory.read(bit / 8, &mut byte).unwrap();
                memory.write(bit / 8, &[byte[0] ^ (1 << (bit % 8))]).unwrap();
                assert!(block.read(Path::new("x")).is_err(), "bit {bit}");
                memory.write(bit / 8, &byte).unwrap();
            }
        });
    }

    #[test]
    fn an_unfinished_format_is_refused() {
        with_block(|_, block| {
            assert!(matches!(block.read(Path::new("x")), Err(SuperblockError::Foreign(_))));
            block.format(&geometry());
            block.checksum.store(0, Ordering::Relaxed);
            assert!(matches!(block.read(Path::new("x")), Err(SuperblockError::Corrupt(_))));
        });
    }

    /// The offsets of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        assert_eq!(size_of::<Superblock>(), 256);
        assert_eq!(offset_of!(Superblock, checksum), 56);
        assert_eq!(offset_of!(Superblock, first_page), 64);
        assert_eq!(offset_of!(Superblock, incarnation), 72);
        assert_eq!(offset_of!(Superblock, owner), 80);
        assert_eq!(offset_of!(Superblock, closed), 96);
        assert_eq!(offset_of!(Superblock, memory_kind), 104);
        assert_eq!(offset_of!(Superblock, extra_latency_ns), 112);
        assert_eq!(offset_of!(Superblock, sleeping), 128);
        assert_eq!(offset_of!(Superblock, heavy_barrier), 192);
        with_block(|memory, block| {
            block.format(&geometry());
            let mut bytes = [0; 64];
            memory.read(0, &mut bytes).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(&bytes[..8], b"rackpool");
            assert_eq!((word(8), word(12)), (2, FORMAT_VERSION));
            assert_eq!((word(16), word(20)), (21, 512));
            assert_eq!((word(24), word(28)), (7, 64));
            assert_eq!((long(32), long(40)), (u64::MAX - 5, u64::MAX));
            assert_eq!((long(48), long(56)), (9, xxh3_64(&bytes[..56])));
        });
    }
}
