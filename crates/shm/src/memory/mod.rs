//! The kinds of memory for the frames of a rack. The first daemon creates the memory; later ones
//! open it. The serving daemon locks it against other daemons and passes it to clients as a
//! descriptor.
//!
//! | kind | lies in | outlives the daemon | pages are there |
//! |---|---|---|---|
//! | `tmpfs` | `<pool>/rack-N/frames` | yes | when first used |
//! | `memfd` | nowhere | no | when first used |
//! | `huge:2M`, `huge:1G` | a hugetlbfs; `frames` links to it | yes | promised at the start |
//! | `numa:N` | `<pool>/rack-N/frames` | yes | at the start |
//! | `dax:/dev/daxX.Y` | the device; `frames` links to it | yes | always |
//!
//! `crates/shm/tests/memory_kinds.rs` tests the same guarantees for all kinds.

pub mod backing;
mod dax;
mod error;
mod frames_node;
mod huge;
mod kind;
mod load_latency;
mod memfd;
mod node;
mod scratch;
mod tmpfs;

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use rackpool_model::{ByteSize, MemoryId};

pub use dax::device_bytes;
pub use error::MemoryError;
pub use frames_node::{FramesNode, sampled_nodes};
pub use kind::{MemoryKind, MemoryKindError};
pub use load_latency::load_latency_ns;
pub use scratch::scratch;

use crate::directory::RackDirectory;
use crate::free_space::{self, Room};
use crate::host::{HostFiles, HugePage};
use crate::{Mapping, file};

/// The place of a rack's memory.
#[derive(Clone, Debug)]
pub struct MemoryPlace<'a> {
    /// The kind of memory.
    pub kind: &'a MemoryKind,
    /// The rack's folder.
    pub directory: &'a RackDirectory,
    /// Size of the memory in bytes.
    pub bytes: u64,
    /// The NUMA node of the pages, for kinds that have none of their own.
    pub node: FramesNode,
    /// The host.
    pub machine: &'a HostFiles,
}

/// The memory of a rack, as the daemon that serves it has it.
#[derive(Debug)]
pub struct RackMemory {
    /// The mapped memory.
    pub mapping: Mapping,
    /// The file whose descriptor is passed to clients.
    pub file: File,
    /// Excludes other daemons as long as it exists.
    pub lock: MemoryLock,
    /// The kernel's pages of the memory.
    pub pages: KernelPages,
    /// The NUMA node that the pages come from, if one was chosen.
    pub node: Option<u32>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// The kernel's pages of a memory. Shown as their size with the remark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelPages {
    /// The size of a page in bytes; 0 if it is unknown.
    pub bytes: u64,
    /// A remark for operators; for small pages, the reason.
    pub remark: String,
}

impl KernelPages {
    fn new(bytes: u64, remark: impl Into<String>) -> Self {
        Self { bytes, remark: remark.into() }
    }
}

impl fmt::Display for KernelPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            0 => write!(f, "unknown size: {}", self.remark),
            bytes => write!(f, "{}: {}", ByteSize(bytes), self.remark),
        }
    }
}

/// A lock on memory. It is released when it is dropped and when the process ends. It is not on the
/// descriptor that is passed to clients: their mappings would hold it after the daemon's death.
#[derive(Debug)]
#[must_use = "dropping it gives the lock back"]
pub struct MemoryLock {
    /// `None` for memory without a name, which no other daemon can open.
    _file: Option<File>,
}

impl MemoryLock {
    const fn none() -> Self {
        Self { _file: None }
    }

    /// Opens the file a second time, for the lock only.
    fn of(path: &Path) -> Result<Self, MemoryError> {
        let held = file::open_read_only(path)?;
        file::lock(&held, path)?;
        Ok(Self { _file: Some(held) })
    }
}

impl<'a> MemoryPlace<'a> {
    /// A place for memory whose NUMA node the kernel chooses.
    #[must_use]
    pub const fn new(
        kind: &'a MemoryKind,
        directory: &'a RackDirectory,
        bytes: u64,
        machine: &'a HostFiles,
    ) -> Self {
        Self { kind, directory, bytes, node: FramesNode::Anywhere, machine }
    }

    /// Creates the memory, all zero, or takes over the rest of an unfinished attempt. The caller
    /// must know that no metadata describes its contents yet. `memory` is its id.
    pub fn create(&self, memory: MemoryId) -> Result<RackMemory, MemoryError> {
        if !self.is_in_folder() {
            // The memory is elsewhere, but the rack's metadata is in the folder.
            self.require_room()?;
        }
        match self.kind {
            MemoryKind::Tmpfs => tmpfs::create(self)?.place(self),
            MemoryKind::Memfd => memfd::create(self),
            MemoryKind::Huge(page) => huge::create(self, *page),
            MemoryKind::Node(node) => node::create(self, *node),
            MemoryKind::Dax(device) => dax::create(self, device, memory),
        }
    }

    /// Opens memory that an earlier daemon created.
    pub fn open(&self, memory: MemoryId) -> Result<RackMemory, MemoryError> {
        match self.kind {
            MemoryKind::Tmpfs => tmpfs::open(self)?.place(self),
            MemoryKind::Memfd => Err(self.missing(Path::new("memory without a name"))),
            MemoryKind::Huge(page) => huge::open(self, *page),
            MemoryKind::Node(node) => node::open(self, *node),
            MemoryKind::Dax(device) => dax::open(self, device, memory),
        }
    }

    /// Returns true if the memory takes room on the file system of the rack's folder.
    const fn is_in_folder(&self) -> bool {
        matches!(self.kind, MemoryKind::Tmpfs | MemoryKind::Node(_))
    }

    /// Fails if the file system has no room for the memory. Call it when all its files exist.
    fn require_room(&self) -> Result<(), MemoryError> {
        let Some(room) = Room::of(self.directory.pool(), self.machine) else { return Ok(()) };
        if room.missing() == 0 {
            return Ok(());
        }
        let others = room.claimed.saturating_sub(free_space::claimed(self.directory.path()));
        let most = if self.is_in_folder() { most(room.free.saturating_sub(others)) } else { 0 };
        Err(MemoryError::NoRoom { bytes: self.bytes, room, most })
    }

    fn missing(&self, file: &Path) -> MemoryError {
        MemoryError::Missing {
            file: file.to_path_buf(),
            folder: self.directory.path().to_path_buf(),
        }
    }

    /// Fails unless the size is a multiple of `unit`.
    fn require_multiple(&self, unit: u64) -> Result<(), MemoryError> {
        if self.bytes.is_multiple_of(unit) {
            return Ok(());
        }
        Err(MemoryError::NotWhole { kind: self.kind.to_string(), bytes: self.bytes, unit })
    }

    /// Creates a link to memory elsewhere at the usual path of the frames.
    fn link(&self, target: &Path) -> Result<(), MemoryError> {
        let link = self.directory.frames();
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        std::os::unix::fs::symlink(target, &link)
            .map_err(error::system("link to the memory at", link.display()))
    }
}

/// Largest memory that fits together with its metadata, in whole huge pages. The metadata takes
/// less than a fiftieth and one MiB.
const fn most(bytes: u64) -> u64 {
    let memory = (bytes / 50 * 49).saturating_sub(1 << 20);
    memory - memory % HugePage::Size2M.bytes()
}

/// The part of a rack's memory that is outside its folder and would remain if the folder were
/// removed: a file on a hugetlbfs.
#[must_use]
pub fn outside(directory: &RackDirectory) -> Option<PathBuf> {
    let target = std::fs::read_link(directory.frames()).ok()?;
    huge::is_ours(&target).then_some(target)
}
