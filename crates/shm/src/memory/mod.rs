//! The kinds of memory that the frames of a rack can lie in: each made at first, opened by the
//! next daemon, locked against another one, and passed to clients as a descriptor.
//!
//! | kind | lies in | outlives the daemon | pages are there |
//! |---|---|---|---|
//! | `tmpfs` | `<pool>/rack-N/frames` | yes | when first used |
//! | `memfd` | nowhere | no | when first used |
//! | `huge:2M`, `huge:1G` | a hugetlbfs; `frames` links to it | yes | promised at the start |
//! | `numa:N` | `<pool>/rack-N/frames` | yes | at the start |
//! | `dax:/dev/daxX.Y` | the device; `frames` links to it | yes | always |
//!
//! `crates/shm/tests/memory_kinds.rs` holds all of them to the same promises.

pub mod backing;
mod dax;
mod error;
mod huge;
mod kind;
mod memfd;
mod node;
mod scratch;
mod tmpfs;

use std::fs::File;
use std::path::{Path, PathBuf};

use rackpool_model::MemoryId;

pub use dax::device_bytes;
pub use error::MemoryError;
pub use kind::{MemoryKind, MemoryKindError};
pub use scratch::scratch;

use crate::directory::RackDirectory;
use crate::host::{HostFiles, HugePage};
use crate::room::{self, Room};
use crate::{Mapping, file};

/// Where the memory of a rack is to lie.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    /// The kind.
    pub kind: &'a MemoryKind,
    /// The rack's folder.
    pub directory: &'a RackDirectory,
    /// Bytes of memory.
    pub bytes: u64,
    /// The computer.
    pub machine: &'a HostFiles,
}

/// The memory of a rack, for the daemon that serves it.
#[derive(Debug)]
pub struct RackMemory {
    /// The memory.
    pub mapping: Mapping,
    /// What is passed to those who map it too.
    pub file: File,
    /// Keeps other daemons out for as long as it exists.
    pub lock: MemoryLock,
    /// The pages the memory lies in, in words; for small ones, why.
    pub pages: String,
    /// What whoever runs the daemon should know.
    pub warnings: Vec<String>,
}

/// A lock on memory, given back when it is dropped and when the process ends. It is not on the
/// descriptor that is passed: who maps that one would hold the lock after the daemon's death.
#[derive(Debug)]
#[must_use = "dropping it gives the lock back"]
pub struct MemoryLock {
    /// Memory without a name needs none: nobody else can open it.
    _file: Option<File>,
}

impl MemoryLock {
    const fn none() -> Self {
        Self { _file: None }
    }

    /// Opens the file once more, only for the lock.
    fn of(path: &Path) -> Result<Self, MemoryError> {
        let held = file::open_read_only(path)?;
        file::lock(&held, path)?;
        Ok(Self { _file: Some(held) })
    }
}

impl Place<'_> {
    /// Makes the memory, all zero, or takes over what an unfinished attempt left: the caller knows
    /// that nothing has been noted of its contents yet. `memory` is its identity.
    pub fn create(&self, memory: MemoryId) -> Result<RackMemory, MemoryError> {
        if !self.is_in_folder() {
            // The rack's metadata is.
            self.require_room()?;
        }
        match self.kind {
            MemoryKind::Tmpfs => Ok(tmpfs::create(self)?.touch(self)),
            MemoryKind::Memfd => memfd::create(self),
            MemoryKind::Huge(page) => huge::create(self, *page),
            MemoryKind::Node(node) => node::create(self, *node),
            MemoryKind::Dax(device) => dax::create(self, device, memory),
        }
    }

    /// Opens the memory that an earlier daemon made.
    pub fn open(&self, memory: MemoryId) -> Result<RackMemory, MemoryError> {
        match self.kind {
            MemoryKind::Tmpfs => Ok(tmpfs::open(self)?.touch(self)),
            MemoryKind::Memfd => Err(self.missing(Path::new("memory without a name"))),
            MemoryKind::Huge(page) => huge::open(self, *page),
            MemoryKind::Node(node) => node::open(self, *node),
            MemoryKind::Dax(device) => dax::open(self, device, memory),
        }
    }

    /// Whether the memory takes room on the file system of the rack's folder.
    const fn is_in_folder(&self) -> bool {
        matches!(self.kind, MemoryKind::Tmpfs | MemoryKind::Node(_))
    }

    /// Refuses memory that its file system can't give, once all of its files are there.
    fn require_room(&self) -> Result<(), MemoryError> {
        let Some(room) = Room::of(self.directory.pool(), self.machine) else { return Ok(()) };
        if room.missing() == 0 {
            return Ok(());
        }
        let others = room.claimed.saturating_sub(room::claimed(self.directory.path()));
        let most = if self.is_in_folder() { most(room.free.saturating_sub(others)) } else { 0 };
        Err(MemoryError::NoRoom { bytes: self.bytes, room, most })
    }

    fn missing(&self, file: &Path) -> MemoryError {
        MemoryError::Missing {
            file: file.to_path_buf(),
            folder: self.directory.path().to_path_buf(),
        }
    }

    /// Refuses a size that is no whole number of units.
    fn require_multiple(&self, unit: u64) -> Result<(), MemoryError> {
        if self.bytes.is_multiple_of(unit) {
            return Ok(());
        }
        Err(MemoryError::NotWhole { kind: self.kind.to_string(), bytes: self.bytes, unit })
    }

    /// Leaves a link to memory that lies elsewhere where memory usually is.
    fn link(&self, target: &Path) -> Result<(), MemoryError> {
        let link = self.directory.frames();
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        std::os::unix::fs::symlink(target, &link)
            .map_err(error::system("link to the memory at", link.display()))
    }
}

/// How much memory fits with its metadata, which takes less than a fiftieth and a MiB, in whole
/// huge pages.
const fn most(bytes: u64) -> u64 {
    let memory = (bytes / 50 * 49).saturating_sub(1 << 20);
    memory - memory % HugePage::Size2M.bytes()
}

/// What of a rack's memory lies outside of its folder and would stay when that is removed: a file
/// on a hugetlbfs.
#[must_use]
pub fn outside(directory: &RackDirectory) -> Option<PathBuf> {
    let target = std::fs::read_link(directory.frames()).ok()?;
    huge::is_ours(&target).then_some(target)
}
