//! The superblock: the first 4 KiB of rack metadata and of client files, which describe the rest.

use std::path::{Path, PathBuf};

use rackpool_model::{ClientId, Incarnation, MemoryId, PageId, PageSize, RackId, StorePosition};
use rackpool_sync::SleepFlag;
use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

use crate::mapping::{Mapping, OutsideMapping, Shared};

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"rackpool");
/// The version of every layout in this crate and in `rackpool-ring`.
const FORMAT_VERSION: u32 = 11;
/// The value that states that the client has closed the pool. No single flipped bit turns 0 into it
/// or it into another valid value.
const CLOSED: u64 = u64::from_le_bytes(*b"closed\0\0");

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileKind {
    /// The rack's metadata.
    Metadata = 1,
    /// A client's file.
    Client = 2,
}

/// The description of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The kind of the file.
    pub kind: FileKind,
    /// The rack.
    pub rack: RackId,
    /// The identity of the rack's memory.
    pub memory: MemoryId,
    /// The pool's page size.
    pub page_size: PageSize,
    /// Frames in the rack.
    pub frames: u32,
    /// The client that owns the file; 0 in rack metadata.
    pub client: ClientId,
    /// Number of that client's thread slots; 0 in rack metadata.
    pub threads: u32,
}

/// The reason why a file's superblock is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// The file does not begin with rackpool's magic.
    #[error("{0} is no file of rackpool: choose another folder, or remove that file")]
    Foreign(PathBuf),
    /// Another release with another format wrote the file.
    #[error(
        "{path} has format {found}, this release reads {FORMAT_VERSION}: start the release that wrote it, or remove the rack's folder to start with an empty rack"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
    },
    /// A checksum does not match.
    #[error(
        "{0} is damaged (its superblock's checksum does not match): remove the rack's folder to start with an empty rack; pages of this rack are lost"
    )]
    Corrupt(PathBuf),
    /// The rack has pages that the superblock does not record.
    #[error(
        "{0} is damaged (it has pages of which its superblock says nothing): remove the rack's folder to start with an empty rack; pages of this rack are lost"
    )]
    UnknownPages(PathBuf),
    /// The superblock is valid but describes another configuration.
    #[error(
        "{path} was made with {found}, but {wanted} was asked for: start with the old settings, or remove the rack's folder to start with an empty rack"
    )]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The file's description.
        found: String,
        /// The expected description.
        wanted: String,
    },
}

/// The superblock as laid out in the file.
///
/// ```text
///    0  magic "rackpool"            8  kind (4), format version (4)
///   16  page bits (4), frames (4)  24  rack (4), threads (4)
///   32  memory id (16)             48  client id (8)
///   56  checksum of bytes 0..56, 80..96 and 104..112
///   64  first page id (4), its check (4)    72  incarnation
///   80  process id of the client   88  when that process started
///   96  "closed": the client has closed the pool   104  kind of memory   112  extra latency in ns
///  120  check of the incarnation before a change (4), after it (4)
///  128  1: the daemon sleeps, ring its event
///  192  1: the daemon's barrier reaches clients, which need no fence of their own
///  256  the last commit of the metadata server that the rack has acted on: store, server, boot,
///       commit (8 each), check of the four (8)
///  320  the commit before it; a new one overwrites the older of the two
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
    life_checks: AtomicU64,
    sleeping: SleepFlag,
    reserved_line: [AtomicU32; 15],
    heavy_barrier: AtomicU32,
    reserved_end: [AtomicU32; 15],
    seen: [SeenSlot; 2],
}

/// The process that owns a client file. A pid alone may name a later process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerProcess {
    /// The process id; 0 if it is unknown.
    pub pid: u64,
    /// When the process started, in kernel ticks.
    pub started: u64,
}

/// A noted position of the metadata server's store, on its own cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct SeenSlot {
    words: [AtomicU64; 5],
}

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for Superblock {}

impl Geometry {
    fn words(&self) -> [u64; 7] {
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

    /// Fails if the description differs from the wanted one. A caller that does not know the memory
    /// id yet passes the found one in `wanted`.
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

/// Indices of the words under the checksum: those that do not change after formatting.
const COVERED: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 10, 11, 13];
/// Index of the checksum word.
const CHECKSUM: usize = 7;
/// Number of bytes at the start that may be stored before the magic, including the magic.
const FORMATTED: usize = 128;

fn hash<const N: usize>(words: [u64; N]) -> u64 {
    xxh3_64(words.map(u64::to_le_bytes).as_flattened())
}

/// The two fields in a word.
struct Halves {
    low: u32,
    high: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are meant")]
const fn halves(word: u64) -> Halves {
    Halves { low: word as u32, high: (word >> 32) as u32 }
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | ((high as u64) << 32)
}

/// The check of a field that changes after formatting, from its offset and value.
fn check_of(offset: usize, value: u64) -> u32 {
    halves(hash([offset as u64, value])).high
}

/// The first page id and its check in one word, so that one store changes both. A rack without
/// pages has 0 with the check of 0; a word that was wiped to 0 is therefore damage.
fn first_page_word(first: u32) -> u64 {
    pair(first, check_of(std::mem::offset_of!(Superblock, first_page), u64::from(first)))
}

fn life_check(life: Incarnation) -> u32 {
    check_of(std::mem::offset_of!(Superblock, incarnation), life.0)
}

/// The incarnation fills a word, so its checks are in another one. This word holds the checks of
/// the incarnation before and of the new one, so it is valid before and after the new incarnation
/// is stored.
fn life_checks(before: Incarnation, after: Incarnation) -> u64 {
    pair(life_check(before), life_check(after))
}

impl Superblock {
    /// Writes the description of the file; owner and memory kind must have been noted before. The
    /// magic is stored last, so that a file after a crash before that store counts as
    /// [unformatted](Self::is_unformatted).
    pub fn format(&self, geometry: &Geometry) {
        let [magic, words @ ..] = geometry.words();
        for (cell, word) in self.geometry[1..].iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.first_page.store(first_page_word(0), Ordering::Relaxed);
        self.incarnation.store(0, Ordering::Relaxed);
        self.life_checks.store(life_checks(Incarnation(0), Incarnation(0)), Ordering::Relaxed);
        let covered = COVERED.map(|index| if index == 0 { magic } else { self.word(index) });
        self.checksum.store(hash(covered), Ordering::Relaxed);
        // SYNC: pairs with the loads in `read`.
        self.geometry[0].store(magic, Ordering::Release);
    }

    /// Returns true if a file was never formatted completely: its superblock is zero but for what
    /// [`Self::format`] stores before the magic.
    pub fn is_unformatted(file: &Mapping) -> Result<bool, OutsideMapping> {
        let mut bytes = [0; 4096];
        file.read(0, &mut bytes)?;
        bytes[8..FORMATTED].fill(0);
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// Reads and checks the description of the file.
    pub fn read(&self, path: &Path) -> Result<Geometry, SuperblockError> {
        Self::check(|index| self.word(index), path)
    }

    /// Reads and checks the description in a copy of a file's first bytes, for processes that may
    /// not map the file writable.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Geometry, SuperblockError> {
        let word = |i: usize| {
            let chunk = bytes.get(i * 8..i * 8 + 8).and_then(|chunk| chunk.try_into().ok());
            u64::from_le_bytes(chunk.unwrap_or_default())
        };
        Self::check(word, path)
    }

    /// Loads the word with this index, which must be the checksum's or one of [`COVERED`].
    fn word(&self, index: usize) -> u64 {
        let cell = match index {
            CHECKSUM => &self.checksum,
            10 => &self.owner[0],
            11 => &self.owner[1],
            13 => &self.memory_kind,
            index => &self.geometry[index],
        };
        cell.load(Ordering::Acquire)
    }

    fn check(word: impl Fn(usize) -> u64, path: &Path) -> Result<Geometry, SuperblockError> {
        let corrupt = || SuperblockError::Corrupt(path.to_path_buf());
        let words = COVERED.map(&word);
        if words[0] != MAGIC {
            return Err(SuperblockError::Foreign(path.to_path_buf()));
        }
        let Halves { low: kind, high: version } = halves(words[1]);
        if version != FORMAT_VERSION {
            return Err(SuperblockError::Version { path: path.to_path_buf(), found: version });
        }
        if hash(words) != word(CHECKSUM) {
            return Err(corrupt());
        }
        let Halves { low: page_bits, high: frames } = halves(words[2]);
        let Halves { low: rack, high: threads } = halves(words[3]);
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

    /// The id of the page that frame 0 had first; frame `f` had the id `f` higher. Returns `None`
    /// until the metadata server has given the rack its ids.
    pub fn first_page(&self, path: &Path) -> Result<Option<PageId>, SuperblockError> {
        let word = self.first_page.load(Ordering::Acquire);
        let first = halves(word).low;
        if word != first_page_word(first) {
            return Err(SuperblockError::Corrupt(path.to_path_buf()));
        }
        Ok((first != 0).then_some(PageId(first)))
    }

    /// Notes the first of the rack's page ids.
    pub fn set_first_page(&self, first: PageId) {
        self.first_page.store(first_page_word(first.0), Ordering::Release);
    }

    /// The incarnation of the daemon that serves the file.
    pub fn incarnation(&self, path: &Path) -> Result<Incarnation, SuperblockError> {
        let life = Incarnation(self.incarnation.load(Ordering::Acquire));
        let Halves { low: before, high: after } = halves(self.life_checks.load(Ordering::Acquire));
        if ![before, after].contains(&life_check(life)) {
            return Err(SuperblockError::Corrupt(path.to_path_buf()));
        }
        Ok(life)
    }

    /// Notes a new incarnation of the daemon. A crash in between leaves the old one or the new one,
    /// with a matching check.
    pub fn set_incarnation(&self, life: Incarnation) {
        let before = Incarnation(self.incarnation.load(Ordering::Relaxed));
        self.life_checks.store(life_checks(before, life), Ordering::Release);
        self.incarnation.store(life.0, Ordering::Release);
        self.life_checks.store(life_checks(life, life), Ordering::Release);
    }

    /// The process that owns a client file.
    #[must_use]
    pub fn owner(&self) -> OwnerProcess {
        OwnerProcess {
            pid: self.owner[0].load(Ordering::Acquire),
            started: self.owner[1].load(Ordering::Acquire),
        }
    }

    /// Notes the process that owns a client file. Call it before [`Self::format`].
    pub fn set_owner(&self, OwnerProcess { pid, started }: OwnerProcess) {
        self.owner[1].store(started, Ordering::Release);
        self.owner[0].store(pid, Ordering::Release);
    }

    /// Returns true if the client has closed the pool: the daemon then takes back what its file
    /// notes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) == CLOSED
    }

    /// Notes that the client has closed the pool.
    pub fn set_closed(&self) {
        self.closed.store(CLOSED, Ordering::Release);
    }

    /// Code of the kind of memory that holds the frames:
    /// [`MemoryKind::code`](crate::memory::MemoryKind::code).
    #[must_use]
    pub fn memory_kind(&self) -> u64 {
        self.memory_kind.load(Ordering::Acquire)
    }

    /// Notes the kind of memory. Call it before [`Self::format`].
    pub fn set_memory_kind(&self, code: u64) {
        self.memory_kind.store(code, Ordering::Release);
    }

    /// Notes the emulated extra latency of each access to the frames, in nanoseconds; 0 for none.
    pub fn set_extra_latency_ns(&self, ns: u32) {
        self.extra_latency_ns.store(u64::from(ns), Ordering::Release);
    }

    /// The last commit of the metadata server that the rack has acted on. Returns `None` before the
    /// first one.
    pub fn seen(&self, path: &Path) -> Result<Option<StorePosition>, SuperblockError> {
        let [one, other] = self.seen.each_ref().map(SeenSlot::read);
        match (one, other) {
            (Some(one), Some(other)) => Ok(one.max(other)),
            // A crash damages only the slot that was being written; the rack has not acted on that
            // commit.
            (Some(whole), None) | (None, Some(whole)) => Ok(whole),
            (None, None) => Err(SuperblockError::Corrupt(path.to_path_buf())),
        }
    }

    /// Notes a commit that the rack is about to act on. The last noted one stays intact until then.
    /// An older commit changes nothing.
    pub fn set_seen(&self, position: StorePosition) {
        let [one, other] = self.seen.each_ref().map(SeenSlot::read);
        if one.max(other).flatten() >= Some(position) {
            return;
        }
        self.seen[usize::from(one > other)].write(position);
    }

    /// The flag by which the daemon announces that it sleeps.
    #[must_use]
    pub const fn sleeping(&self) -> &SleepFlag {
        &self.sleeping
    }

    /// Notes whether the daemon's heavy barrier reaches the processes of clients.
    pub fn set_heavy_barrier(&self, reaches: bool) {
        self.heavy_barrier.store(u32::from(reaches), Ordering::Release);
    }

    /// Offset in the file of the field that [`Self::set_heavy_barrier`] writes.
    pub const HEAVY_BARRIER_OFFSET: u64 = std::mem::offset_of!(Self, heavy_barrier) as u64;
    /// Offset of [`Self::sleeping`] in the file, for processes that may only read it.
    pub const SLEEPING_OFFSET: u64 = std::mem::offset_of!(Self, sleeping) as u64;
    /// Offset of [`Self::memory_kind`] in the file.
    pub const MEMORY_KIND_OFFSET: u64 = std::mem::offset_of!(Self, memory_kind) as u64;
    /// Offset in the file of the field that [`Self::set_extra_latency_ns`] writes.
    pub const EXTRA_LATENCY_OFFSET: u64 = std::mem::offset_of!(Self, extra_latency_ns) as u64;
    /// Offset of the incarnation in the file.
    pub const INCARNATION_OFFSET: u64 = std::mem::offset_of!(Self, incarnation) as u64;
}

impl SeenSlot {
    /// The noted position: `Some(None)` if none was noted yet, `None` if the slot is damaged.
    fn read(&self) -> Option<Option<StorePosition>> {
        let [store, server, boot, commit, check] =
            self.words.each_ref().map(|word| word.load(Ordering::Acquire));
        if [store, server, boot, commit, check] == [0; 5] {
            return Some(None);
        }
        let boot = u32::try_from(boot).ok()?;
        let position = StorePosition { store, boot, server, commit };
        (check == Self::check(position)).then_some(Some(position))
    }

    fn write(&self, position: StorePosition) {
        let StorePosition { store, boot, server, commit } = position;
        let words = [store, server, u64::from(boot), commit, Self::check(position)];
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Ordering::Release);
        }
    }

    fn check(position: StorePosition) -> u64 {
        let StorePosition { store, boot, server, commit } = position;
        let offset = std::mem::offset_of!(Superblock, seen) as u64;
        hash([offset, store, server, u64::from(boot), commit])
    }
}

#[cfg(test)]
mod tests;
