//! What this mount keeps of a file that it has open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::attr::{Ino, Timestamp};
use crate::format::inode::Inode;
use crate::volume::number_map::Numbered;
use crate::volume::own_locks::OwnLocks;

/// Changes of an inode that this mount delays until flush, release or the next sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lazy {
    pub(crate) mtime: Option<Timestamp>,
    /// The inode's modification time as seen by the last of the delayed writes.
    pub(crate) mtime_before: Timestamp,
    pub(crate) atime: Option<Timestamp>,
    /// Change of the count of allocated bytes.
    pub(crate) allocated: i64,
}

impl Lazy {
    /// Records a write. `inode` is the inode as the write read it.
    pub(crate) fn note_write(&mut self, inode: &Inode, now: Timestamp) {
        (self.mtime, self.mtime_before) = (Some(now), inode.mtime);
    }

    pub(crate) const fn mtime(&self) -> Option<Timestamp> {
        self.mtime
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mtime.is_none() && self.atime.is_none() && self.allocated == 0
    }

    /// Applies the delayed changes to an inode. A time that another mount has set after the read or
    /// write stays.
    pub(crate) fn apply(&self, inode: &mut Inode) {
        let changed = inode.ctime;
        if let Some(now) = self.mtime {
            if inode.mtime == self.mtime_before || changed <= now {
                inode.mtime = now;
            }
            inode.ctime = changed.max(now);
        }
        if let Some(now) = self.atime.filter(|now| changed <= *now) {
            inode.atime = now;
        }
        inode.allocated = inode.allocated.saturating_add_signed(self.allocated);
    }
}

/// Words of a file's tree that this mount has read. They stay valid while this mount has the file
/// open.
#[derive(Debug, Default)]
pub(crate) struct TreeCache {
    /// Nodes of the lowest level, by tree level and index.
    pub(crate) nodes: Numbered<(u32, u64), u64>,
    pub(crate) clusters: Numbered<u64, u64>,
    pub(crate) blocks: Numbered<u64, u64>,
}

/// A file that is open in this mount, shared by all its users.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    /// Number of opens. Incremented, and lowered to 0, only while the file's map is locked. At 0,
    /// this mount's session may still be listed in the inode, until a sweep removes it.
    pub(crate) count: AtomicU32,
    /// Held for writing by an operation that releases memory, for reading by reads and writes.
    pub(crate) gate: RwLock<()>,
    pub(crate) seen: RwLock<TreeCache>,
    pub(crate) lazy: Mutex<Lazy>,
    /// Held while delayed changes are being stored, until they are in the pool.
    pub(crate) writing_down: Mutex<()>,
    /// Number of writes that have stored bytes. Incremented before the gate is released.
    pub(crate) writes: AtomicU64,
    /// Set while a claim of this mount may be stored in the inode.
    pub(crate) claimed: AtomicBool,
    /// This mount's locks of the file. Held during a change of them, until it is in the pool.
    pub(crate) locks: Mutex<OwnLocks>,
}

impl OpenFile {
    /// A file that is open `count` times.
    pub(crate) fn new(ino: Ino, count: u32) -> Self {
        Self {
            ino,
            count: AtomicU32::new(count),
            gate: RwLock::default(),
            seen: RwLock::default(),
            lazy: Mutex::default(),
            writing_down: Mutex::default(),
            writes: AtomicU64::new(0),
            claimed: AtomicBool::new(false),
            locks: Mutex::default(),
        }
    }

    /// Whether this mount has the file open. The caller holds the lock of the file's map.
    pub(crate) fn is_open(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Locks the gate for a read or write.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the gate for an operation that releases memory.
    pub(crate) fn exclude(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decrements the count and returns true, if it is above 1. Otherwise returns false, and the
    /// caller must do the last release.
    pub(crate) fn leave(&self) -> bool {
        let less = |count: u32| (count > 1).then(|| count - 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Forgets the cached words of the tree.
    pub(crate) fn forget(&self) {
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = TreeCache::default();
    }
}
