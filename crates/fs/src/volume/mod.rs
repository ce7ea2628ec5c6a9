//! A mount's access to a volume, and what it keeps in its own memory.

pub(crate) mod number_map;
pub(crate) mod open_file;
pub(crate) mod own_locks;
pub(crate) mod page_hints;
pub(crate) mod session;
pub(crate) mod transaction;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_kv::{Table, Transactor};

use crate::attr::{Ino, StatFs};
use crate::error::FsError;
use crate::format::directory_node::DirectoryNode;
use crate::format::session::Session;
use crate::volume::number_map::Numbered;
use crate::volume::open_file::OpenFile;
use crate::volume::page_hints::PageHints;
use crate::volume_memory::VolumeMemory;

/// A file system in the pool, as one mount uses it. Threads may share it.
///
/// Several mounts, in any rack, use the same file system. Each change of names takes effect
/// atomically for all of them. Bytes that one mount has written to a file are visible at once to
/// mounts that read them from the pool, but not to mounts that read a cached copy: see
/// `docs/semantics/mount.md`.
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
    pub(crate) table: Table<M>,
    pub(crate) superblock: GlobalAddr,
    /// Seed of the name hashes.
    pub(crate) seed: u64,
    pub(crate) session: Session,
    pub(crate) seat: Mutex<Option<M::Seat>>,
    /// Set while this mount holds the reserve of memory for removing files.
    pub(crate) has_reserve: AtomicBool,
    /// Transactors that no thread uses.
    pub(crate) idle: Mutex<Vec<Transactor<M>>>,
    pub(crate) slots: AtomicU16,
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

/// Locks a mutex and ignores poisoning: no guard is held across a call that can fail half-way, so a
/// thread that panicked left a consistent value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: VolumeMemory> Volume<M> {
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
