//! Checks whether a file system has room for the memory that a pool's files may still take.
//!
//! These files are sparse: a page is allocated when it is first used. If the file system has no
//! room then, the kernel kills the process that uses the page (SIGBUS). The files are therefore
//! created first, and then the file system must have room for all that is missing in any of them.
//! Two racks that are created at the same time both see each other's files.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rackpool_model::ByteSize;
use rustix::fs::statvfs;

use crate::directory::RackDirectory;
use crate::host::HostFiles;

/// Bytes at the end of a client's file that the client allocates as it uses them, with an error
/// where there is no room. They are not claimed in advance.
pub const ON_DEMAND_BYTES: u64 = 90 << 20;

/// The room on the file system of a pool's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The pool's folder.
    pub pool: PathBuf,
    /// The mount point of the file system.
    pub mount: PathBuf,
    /// True for a tmpfs, whose limit can be changed while it is in use.
    pub is_tmpfs: bool,
    /// Size of the file system in bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that the files of the pool's racks have not allocated yet, out of their lengths.
    pub claimed: u64,
}

impl Room {
    /// Examines the file system. Returns `None` if it has no limit or cannot be examined.
    #[must_use]
    pub fn of(pool: &Path, machine: &HostFiles) -> Option<Self> {
        let found = statvfs(pool).ok().filter(|found| found.f_blocks > 0)?;
        let mount = machine.mount_of(pool);
        Some(Self {
            pool: pool.to_path_buf(),
            is_tmpfs: mount.as_ref().is_some_and(|mount| mount.kind == "tmpfs"),
            mount: mount.map_or_else(|| pool.to_path_buf(), |mount| mount.folder),
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            claimed: RackDirectory::all(pool)
                .map(|rack| claimed(rack.path()))
                .fold(0, u64::saturating_add),
        })
    }

    /// Claimed bytes for which there is no room.
    #[must_use]
    pub const fn missing(&self) -> u64 {
        self.claimed.saturating_sub(self.free)
    }

    /// The remedy that gives the file system `bytes` more bytes, as text for the operator.
    #[must_use]
    pub fn fix(&self, bytes: u64) -> String {
        const MIB: u64 = 1 << 20;
        let mount = self.mount.display();
        if self.is_tmpfs {
            let wanted = self.total.saturating_add(bytes).div_ceil(MIB);
            format!("`mount -o remount,size={wanted}M {mount}`")
        } else {
            format!("free {} on {mount}", ByteSize(bytes.next_multiple_of(MIB)))
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has {}, {} of it free, and the files of the racks in {} may still take {}",
            self.mount.display(),
            ByteSize(self.total),
            ByteSize(self.free),
            self.pool.display(),
            ByteSize(self.claimed)
        )
    }
}

/// Total length in bytes of the files of all racks of a pool.
#[must_use]
pub fn bytes_of(pool: &Path) -> u64 {
    let racks = RackDirectory::all(pool);
    racks.flat_map(|rack| files(rack.path())).fold(0, |all, file| all.saturating_add(file.bytes))
}

/// Bytes that the files of a rack have not allocated yet, out of their lengths. A link to memory
/// elsewhere counts as nothing.
pub(crate) fn claimed(rack: &Path) -> u64 {
    let claim = |file: RackFile| file.bytes.saturating_sub(file.allocated);
    files(rack).map(claim).fold(0, u64::saturating_add)
}

/// A file of a rack.
struct RackFile {
    /// Its length, less what it allocates on demand.
    bytes: u64,
    allocated: u64,
}

/// The files of a rack. A file that was removed meanwhile is skipped.
fn files(rack: &Path) -> impl Iterator<Item = RackFile> + use<> {
    let entries = std::fs::read_dir(rack).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let file = entry.metadata().ok().filter(Metadata::is_file)?;
        let is_client = entry.file_name().to_str().and_then(RackDirectory::client_of).is_some();
        let on_demand = if is_client { ON_DEMAND_BYTES } else { 0 };
        let bytes = file.len().saturating_sub(on_demand);
        Some(RackFile { bytes, allocated: file.blocks().saturating_mul(512) })
    })
}

#[cfg(test)]
mod tests {
    use rackpool_model::{ClientId, RackId};

    use super::*;

    #[test]
    fn what_is_missing_in_the_files_of_all_racks_counts() {
        let pool = tempfile::tempdir().unwrap();
        let room = || Room::of(pool.path(), &HostFiles::here()).unwrap();
        assert_eq!(room().claimed, 0);
        for rack in [0, 200] {
            let folder = RackDirectory::new(pool.path(), RackId(rack));
            std::fs::create_dir(folder.path()).unwrap();
            std::fs::File::create(folder.frames()).unwrap().set_len(1 << 40).unwrap();
            std::fs::write(folder.metadata(), [1; 8192]).unwrap();
            std::os::unix::fs::symlink("/dev/zero", folder.path().join("link")).unwrap();
        }
        let client = RackDirectory::new(pool.path(), RackId(0)).client(ClientId(7));
        std::fs::File::create(client).unwrap().set_len(ON_DEMAND_BYTES).unwrap();
        std::fs::create_dir(pool.path().join("rack-x")).unwrap();
        std::fs::File::create(pool.path().join("rack-x/file")).unwrap().set_len(1 << 40).unwrap();
        let found = room();
        assert_eq!(found.claimed, 2 << 40);
        assert_eq!(bytes_of(pool.path()), (2 << 40) + 2 * 8192);
        assert_eq!(found.missing(), (2 << 40) - found.free);
        assert!(found.total >= found.free);
    }

    #[test]
    fn the_fix_is_for_the_file_system() {
        let room = Room {
            pool: "/dev/shm/pool".into(),
            mount: "/dev/shm".into(),
            is_tmpfs: true,
            total: 64 << 20,
            free: 60 << 20,
            claimed: 61 << 20,
        };
        assert_eq!(room.missing(), 1 << 20);
        assert_eq!(room.fix(room.missing()), "`mount -o remount,size=65M /dev/shm`");
        assert_eq!(
            room.to_string(),
            "/dev/shm has 64 MiB, 60 MiB of it free, and the files of the racks in /dev/shm/pool may still take 61 MiB"
        );
        let on_disk = Room { is_tmpfs: false, ..room };
        assert_eq!(on_disk.fix(1), "free 1 MiB on /dev/shm");
    }
}
