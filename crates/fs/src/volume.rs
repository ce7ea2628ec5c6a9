use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_kv::{CasError, KeyChange, Table, TableOptions, Transactor};

use crate::attr::{Caller, FileType, Ino, StatFs, Timestamp};
use crate::directory::DirectoryNode;
use crate::error::{FsError, VolumeOpenError};
use crate::file::OpenFile;
use crate::heads::PageHints;
use crate::inode::Inode;
use crate::keys;
use crate::number_map::Numbered;
use crate::session::{Session, TakenSeat, take_seat};
use crate::superblock::{Foreign, VolumeSuperblock};
use crate::volume_memory::VolumeMemory;

/// A file system in the pool, as one mount uses it. Threads may share it.
///
/// Several mounts, in any rack, use the same file system. Each change of names takes effect
/// atomically for all of them. Bytes that one mount has written to a file are visible at once to
/// mounts that read them from the pool, but not to mounts that read a cached copy: see
/// `docs/SEMANTICS.md`.
///
/// Files are read and written while they are [`open`](Self::open); on other files each call opens
/// and releases the file itself. Dropping a volume ends the mount as [`close`](Self::close) does,
/// except that delayed times are lost.
///
/// ```no_run
/// use std::sync::Arc;
/// use rackpool_client::{ClientOptions, Pool, RackId};
/// use rackpool_fs::{Caller, Ino, NewNode, Volume};
///
/// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
/// let volume = Volume::open_or_create(Arc::new(pool), "home")?;
/// let root = Caller::new(0, 0);
/// let file = volume.create(Ino::ROOT, b"greeting", NewNode::File, 0o644, root)?.ino;
/// volume.write(file, 0, b"hello, racks")?;
/// assert_eq!(volume.lookup(Ino::ROOT, b"greeting")?.size, 12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Volume<M: VolumeMemory = Arc<Pool>> {
    pub(crate) memory: M,
    table: Table<M>,
    pub(crate) superblock: GlobalAddr,
    /// Seed of the name hashes.
    pub(crate) seed: u64,
    pub(crate) session: Session,
    seat: Mutex<Option<M::Seat>>,
    /// Set while this mount holds the reserve of memory for removing files.
    has_reserve: AtomicBool,
    /// Transactors that no thread uses.
    pub(crate) idle: Mutex<Vec<Transactor<M>>>,
    slots: AtomicU16,
    /// Inode numbers that this mount has reserved and not used yet.
    pub(crate) inos: Mutex<Range<u64>>,
    pub(crate) files: [Mutex<Numbered<Ino, Arc<OpenFile>>>; FILE_SHARDS],
    /// Nodes of directories that are known to be split.
    pub(crate) splits: RwLock<HashSet<DirectoryNode>>,
    pub(crate) heads: Mutex<PageHints>,
    /// Words that this mount has marked for a release of memory and could not settle, with their
    /// marks.
    pub(crate) marks: Mutex<Vec<(GlobalAddr, u64)>>,
    /// Inodes that a thread of this mount is freeing.
    pub(crate) purging: Mutex<HashSet<Ino>>,
    /// Whether directories, FIFOs, sockets and devices outlive their last name until they are
    /// forgotten.
    pub(crate) keeps_nameless: bool,
    /// Inodes without a name that count as open until they are forgotten.
    pub(crate) nameless: Mutex<HashSet<Ino>>,
    pub(crate) lock_wait: Duration,
}

/// Number of maps of open files: shards reduce contention between threads.
pub(crate) const FILE_SHARDS: usize = 16;
/// The most threads of a mount that may be in an operation at a time.
pub(crate) const MAX_SLOTS: u16 = 128;
/// How long an operation waits for another mount's claim on a file before it fails with `Busy`.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const MAX_NAME: usize = 200;
const MIN_PAGE: u64 = 64 << 10;

/// Locks a mutex and ignores poisoning: no guard is held across a call that can fail half-way, so a
/// thread that panicked left a consistent value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: VolumeMemory> Volume<M> {
    /// Opens the file system called `name` (1 to 200 bytes). If there is none, creates it, with a
    /// root directory that belongs to root.
    ///
    /// A program may be killed during creation: the next mount that opens the volume completes it.
    /// Only a kill before the name is stored leaks memory, the superblock of 4 KiB.
    pub fn open_or_create(memory: M, name: &str) -> Result<Self, VolumeOpenError> {
        Self::open_or_create_for(memory, name, Caller::new(0, 0))
    }

    /// As [`open_or_create`](Self::open_or_create), but a new root directory belongs to `owner`.
    pub fn open_or_create_for(
        memory: M,
        name: &str,
        owner: Caller,
    ) -> Result<Self, VolumeOpenError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(VolumeOpenError::Name);
        }
        if memory.page_bytes() < MIN_PAGE {
            return Err(VolumeOpenError::PageSize(memory.page_bytes()));
        }
        let root = format!("fs:{name}");
        let addr = match memory.root(&root)? {
            Some(addr) => addr,
            None => Self::begin_volume(&memory, &root)?,
        };
        let mut superblock = Self::read_superblock(&memory, addr, name)?;
        if superblock.table.is_null() {
            superblock = Self::complete_volume(&memory, addr, superblock, owner)?;
        }
        let table =
            Table::open(memory.clone(), superblock.table).map_err(FsError::of_table::<M>)?;
        let TakenSeat { session, seat } = take_seat(&memory, addr)?;
        let volume = Self::new(memory, table, addr, superblock.seed, session, seat);
        volume.register_mount()?;
        volume.keep_reserve();
        Ok(volume)
    }

    fn new(
        memory: M,
        table: Table<M>,
        superblock: GlobalAddr,
        seed: u64,
        session: Session,
        seat: M::Seat,
    ) -> Self {
        Self {
            memory,
            table,
            superblock,
            seed,
            session,
            seat: Mutex::new(Some(seat)),
            has_reserve: AtomicBool::new(false),
            idle: Mutex::default(),
            slots: AtomicU16::new(0),
            inos: Mutex::new(0..0),
            files: std::array::from_fn(|_| Mutex::default()),
            splits: RwLock::default(),
            heads: Mutex::default(),
            marks: Mutex::default(),
            purging: Mutex::default(),
            keeps_nameless: false,
            nameless: Mutex::default(),
            lock_wait: LOCK_WAIT,
        }
    }

    /// Stores a superblock without a table under the root `root`, unless another mount stores one
    /// first. Returns the address of the volume that has the name afterwards.
    fn begin_volume(memory: &M, root: &str) -> Result<GlobalAddr, VolumeOpenError> {
        let failed = FsError::of_memory::<M>;
        let addr = memory.allocate(VolumeSuperblock::BYTES as u64).map_err(failed)?;
        // `RandomState`'s hash keys are the standard library's only source of randomness.
        let seed = RandomState::new().build_hasher().finish();
        let superblock = VolumeSuperblock { table: GlobalAddr::NULL, seed };
        memory.write(addr, &superblock.encode(addr)).map_err(failed)?;
        match memory.set_root(root, addr)? {
            Some(now) if now == addr => Ok(addr),
            Some(other) => {
                memory.free(addr).map_err(failed)?;
                Ok(other)
            }
            None => Err(VolumeOpenError::NotAVolume { name: root.into() }),
        }
    }

    fn read_superblock(
        memory: &M,
        addr: GlobalAddr,
        name: &str,
    ) -> Result<VolumeSuperblock, VolumeOpenError> {
        let read = || {
            let mut fixed = [0; VolumeSuperblock::FIXED];
            memory.read(addr, &mut fixed).map_err(FsError::of_memory::<M>)?;
            Ok::<_, VolumeOpenError>(VolumeSuperblock::decode(&fixed))
        };
        let decoded = match read()? {
            // Another mount may have stored the table after this read its word and before it read
            // the checksum.
            Err(Foreign::NotAVolume) => read()?,
            decoded => decoded,
        };
        decoded.map_err(|foreign| match foreign {
            Foreign::NotAVolume => VolumeOpenError::NotAVolume { name: name.into() },
            Foreign::Version(found) => {
                let supported = VolumeSuperblock::VERSION;
                VolumeOpenError::Version { name: name.into(), found, supported }
            }
        })
    }

    /// Completes a volume whose creation was interrupted or is in progress. Any number of mounts
    /// may do so at once.
    fn complete_volume(
        memory: &M,
        addr: GlobalAddr,
        begun: VolumeSuperblock,
        owner: Caller,
    ) -> Result<VolumeSuperblock, VolumeOpenError> {
        let place = VolumeSuperblock::place_addr(addr);
        let options = TableOptions::for_pages(memory.page_bytes());
        let table = Table::open_or_create_at(memory.clone(), place, &options);
        let table = table.map_err(FsError::of_table::<M>)?;
        let mut directory = Inode::new(FileType::Directory, 0o755, owner, Timestamp::now());
        directory.parent = Ino::ROOT;
        let first = (Ino::ROOT.0 + 1).to_le_bytes();
        for (key, value) in [
            (&keys::inode(Ino::ROOT)[..], &directory.encode()[..]),
            (keys::INOS, &first),
            (keys::MOUNTS, &[]),
            (keys::MOVES, &[0; 8]),
        ] {
            let change = KeyChange { key, expected: None, new: Some(value) };
            // A change of one key needs no owner. If the key exists, another mount has created it.
            let mut access = Transactor::new(&table, 0, 0);
            access.commit(&[change]).map_err(FsError::of_table::<M>)?;
        }
        let whole = VolumeSuperblock { table: table.addr(), ..begun };
        for (at, from, to) in [
            (VolumeSuperblock::table_addr(addr), 0, whole.table.raw()),
            (VolumeSuperblock::check_addr(addr), begun.check(), whole.check()),
        ] {
            Self::swap_surely(memory, at, from, to)?;
        }
        Ok(whole)
    }

    /// Swaps a word that never holds `from` again, unless another mount has swapped it. Retries
    /// while the outcome is indeterminate.
    fn swap_surely(memory: &M, at: GlobalAddr, from: u64, to: u64) -> Result<(), FsError> {
        loop {
            match memory.compare_and_swap(at, from, to) {
                Ok(_) => return Ok(()),
                Err(CasError::Indeterminate) => {}
                Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                    return Err(FsError::of_memory::<M>(error));
                }
            }
        }
    }

    /// Sets how long operations wait for another mount that holds a file before they fail with
    /// [`FsError::Busy`]. The default is 5 s.
    #[must_use]
    pub fn with_lock_wait(mut self, lock_wait: Duration) -> Self {
        self.lock_wait = lock_wait;
        lock(&self.idle).clear();
        self
    }

    /// The memory that holds the volume.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns a transactor for one more thread.
    ///
    /// Fails with [`FsError::Busy`] if `MAX_SLOTS` threads have one.
    pub(crate) fn new_access(&self) -> Result<Transactor<M>, FsError> {
        let slot = self.slots.fetch_add(1, Ordering::Relaxed);
        if slot >= MAX_SLOTS {
            self.slots.fetch_sub(1, Ordering::Relaxed);
            return Err(FsError::Busy);
        }
        let access = Transactor::new(&self.table, self.session.token, slot);
        Ok(if self.lock_wait.is_zero() { access.with_lock_wait(Duration::ZERO) } else { access })
    }

    /// Refills the reserve if memory is available. Returns whether the reserve is whole.
    pub(crate) fn keep_reserve(&self) -> bool {
        if self.has_reserve.load(Ordering::Relaxed) {
            return true;
        }
        let seat = lock(&self.seat);
        let kept = seat.as_ref().is_some_and(|seat| self.memory.keep_reserve(seat));
        self.has_reserve.store(kept, Ordering::Relaxed);
        kept
    }

    /// Fails with [`FsError::NoSpace`] if the reserve is not whole: the memory that is left is for
    /// removing files.
    pub(crate) fn expect_room(&self) -> Result<(), FsError> {
        if self.keep_reserve() { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Gives the reserve back to the pool. Returns whether there was one.
    pub(crate) fn release_reserve(&self) -> bool {
        let seat = lock(&self.seat);
        self.has_reserve.store(false, Ordering::Relaxed);
        seat.as_ref().is_some_and(|seat| self.memory.release_reserve(seat))
    }

    /// Returns the size and free space of the pool's memory.
    pub fn stat_fs(&self) -> Result<StatFs, FsError> {
        const BLOCK: u32 = 4096;
        let capacity = self.memory.capacity().map_err(FsError::of_memory::<M>)?;
        Ok(StatFs {
            block_bytes: BLOCK,
            blocks: capacity.total / u64::from(BLOCK),
            free_blocks: capacity.free / u64::from(BLOCK),
            max_name_bytes: 255,
        })
    }

    /// Ends the mount: releases all open files and stores delayed times.
    ///
    /// # Errors
    /// Times that could not be stored are lost. Files that could not be released are released by
    /// other mounts' [`sweep`](Self::sweep).
    pub fn close(self) -> Result<(), FsError> {
        let released = self.release_all();
        let left = self.unregister_mount();
        drop(self);
        released.and(left)
    }
}

impl<M: VolumeMemory> Drop for Volume<M> {
    fn drop(&mut self) {
        if let Some(seat) = lock(&self.seat).take() {
            self.memory.leave(seat);
        }
    }
}
