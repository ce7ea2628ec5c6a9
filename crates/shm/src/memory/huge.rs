//! Memory in a file on a hugetlbfs. Mapping the file reserves all its huge pages, so that none can
//! be missing later.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, fstatfs};

use super::error::system;
use super::frames_node::survey;
use super::{FramesNode, KernelPages, MemoryError, MemoryLock, MemoryPlace, RackMemory};
use crate::host::HugePage;
use crate::numa::NumaPolicy;
use crate::{Mapping, file};

/// Prefix of the names of our files on a hugetlbfs; the escaped path of the rack's folder follows.
const PREFIX: &str = "rackpool-";
/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Longest file name in bytes.
const NAME_BYTES: usize = 255;

/// Creates the file. An existing file of that name is the rest of an attempt that was killed, or
/// was left when the rack's folder was removed; its contents are not recorded anywhere. It is
/// removed and not truncated, because programs of that time may still have it mapped.
pub(super) fn create(place: &MemoryPlace<'_>, page: HugePage) -> Result<RackMemory, MemoryError> {
    place.require_multiple(page.bytes())?;
    let path = choose(place, page)?;
    if path.exists() {
        // Fails if a daemon still serves it.
        let _lock = MemoryLock::of(&path)?;
        std::fs::remove_file(&path).map_err(system("remove", path.display()))?;
    }
    let found = file::create(&path, 0)?;
    let lock = MemoryLock::of(&path)?;
    let made = fill(place, found, &path, page, lock);
    match made {
        Ok(memory) => {
            place.link(&path)?;
            Ok(memory)
        }
        Err(error) => {
            // The file is empty; the error that made it unusable is the one to report.
            let _ = std::fs::remove_file(&path);
            Err(error)
        }
    }
}

fn fill(
    place: &MemoryPlace<'_>,
    file: File,
    path: &Path,
    page: HugePage,
    lock: MemoryLock,
) -> Result<RackMemory, MemoryError> {
    check(&file, path, page)?;
    file.set_len(place.bytes).map_err(system("size", path.display()))?;
    map(place, file, path, page, lock)
}

pub(super) fn open(place: &MemoryPlace<'_>, page: HugePage) -> Result<RackMemory, MemoryError> {
    place.require_multiple(page.bytes())?;
    let link = place.directory.frames();
    let path = std::fs::read_link(&link).map_err(|_| place.missing(&link))?;
    let found = file::open(&path)?.ok_or_else(|| place.missing(&path))?;
    // A hugetlbfs may be writable for all users.
    file::require_own(&found, &path)?;
    let lock = MemoryLock::of(&path)?;
    check(&found, &path, page)?;
    file::check_len(&found, &path, place.bytes)?;
    map(place, found, &path, page, lock)
}

fn map(
    place: &MemoryPlace<'_>,
    file: File,
    path: &Path,
    page: HugePage,
    lock: MemoryLock,
) -> Result<RackMemory, MemoryError> {
    match Mapping::new(&file, place.bytes) {
        Ok(mapping) => {
            let pages = KernelPages::new(page.bytes(), "all of them promised");
            let warnings = Vec::new();
            let mut memory = RackMemory { mapping, file, lock, pages, warnings, node: None };
            allocate_on_node(place, page, &mut memory)?;
            Ok(memory)
        }
        Err(error)
            if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull) =>
        {
            let pool = place.machine.huge_pool(page);
            let needed = place.bytes / page.bytes();
            if pool.available() >= needed {
                return Err(system("map", path.display())(error));
            }
            let (available, total) = (pool.available(), pool.total);
            Err(MemoryError::TooFewHugePages { page, needed, available, total })
        }
        Err(error) => Err(system("map", path.display())(error)),
    }
}

/// Allocates all pages on the node that was chosen, if one was. A policy on a hugetlbfs holds for
/// the mapping that sets it and not for the clients', so no page is left for them to allocate.
fn allocate_on_node(
    place: &MemoryPlace<'_>,
    page: HugePage,
    memory: &mut RackMemory,
) -> Result<(), MemoryError> {
    // Every part of a file on a hugetlbfs looks as if it existed: only its blocks tell.
    let found = memory.file.metadata().map_err(system("examine", "the memory"))?;
    let needed = place.bytes.saturating_sub(found.blocks().saturating_mul(512)) / page.bytes();
    let is_whole = needed == 0;
    let pages = if is_whole { survey(&memory.mapping, &memory.file)? } else { Vec::new() };
    let Some(preferred) = place.preferred(&pages) else { return Ok(()) };
    let node = preferred.node;
    let free = place.machine.node_huge_pages(node, page);
    if free < needed {
        let error = MemoryError::TooFewHugePagesOfNode { node, page, needed, free };
        if place.node == FramesNode::Asked(node) {
            return Err(error);
        }
        memory.warnings.push(format!("{error}; until then the kernel chooses"));
        return Ok(());
    }
    memory
        .mapping
        .bind_to_node(node, NumaPolicy::Bind)
        .and_then(|()| memory.mapping.populate())
        .map_err(system("allocate on its NUMA node", place.directory.frames().display()))?;
    memory.pages = KernelPages::new(page.bytes(), "all of them allocated");
    place.check_node(memory, Some(&preferred))
}

/// Fails unless the file is on a hugetlbfs of this page size.
fn check(file: &File, path: &Path, page: HugePage) -> Result<(), MemoryError> {
    let found = fstatfs(file).map_err(|error| system("examine", path.display())(error.into()))?;
    let is_huge = u64::try_from(found.f_type).is_ok_and(|kind| kind == HUGETLBFS_MAGIC);
    if is_huge && u64::try_from(found.f_bsize).is_ok_and(|bytes| bytes == page.bytes()) {
        return Ok(());
    }
    Err(MemoryError::NotHugetlbfs { folder: path.to_path_buf(), page })
}

/// The path of this rack's file on the first hugetlbfs of this page size that the user can write
/// to.
fn choose(place: &MemoryPlace<'_>, page: HugePage) -> Result<PathBuf, MemoryError> {
    let mount = place
        .machine
        .mounts()
        .into_iter()
        .find(|mount| {
            mount.huge_page() == Some(page) && access(&mount.folder, Access::WRITE_OK).is_ok()
        })
        .ok_or(MemoryError::NoHugeMount(page))?;
    let folder = place.directory.path();
    let folder = folder.canonicalize().map_err(system("find", folder.display()))?;
    let name = file_name(&folder).ok_or(MemoryError::LongPath(folder))?;
    Ok(mount.folder.join(name))
}

/// The name of the file with the memory of the rack in this folder. The folder can be read from the
/// name, so each folder has its own file and an operator sees whose it is.
fn file_name(folder: &Path) -> Option<String> {
    let escaped = folder.to_str()?.replace('%', "%25").replace('/', "%2F");
    let name = format!("{PREFIX}{escaped}");
    (name.len() <= NAME_BYTES).then_some(name)
}

/// Returns true if this is the file of a rack's memory on a hugetlbfs.
pub(super) fn is_ours(path: &Path) -> bool {
    let named = path.file_name().and_then(|name| name.to_str());
    named.is_some_and(|name| name.starts_with(PREFIX) && name.contains("%2F"))
        && rustix::fs::statfs(path)
            .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|t| t == HUGETLBFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_has_a_file_of_its_own() {
        let name = |folder: &str| file_name(Path::new(folder));
        assert_eq!(
            name("/dev/shm/rackpool/rack-0").unwrap(),
            "rackpool-%2Fdev%2Fshm%2Frackpool%2Frack-0"
        );
        assert_ne!(name("/a/b"), name("/a%2Fb"));
        assert_eq!(name(&format!("/{}", "x".repeat(250))), None);
    }

    #[test]
    fn a_file_elsewhere_is_never_taken_for_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rackpool-%2Fdev%2Fshm%2Frackpool%2Frack-0");
        std::fs::write(&path, "precious").unwrap();
        assert!(!is_ours(&path));
    }
}
