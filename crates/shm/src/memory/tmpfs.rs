//! Memory in a file of the rack's folder.

use std::fs::File;
use std::path::Path;

use super::error::system;
use super::{KernelPages, MemoryError, MemoryLock, MemoryPlace, RackMemory, backing};
use crate::host::{HostFiles, HugePage};
use crate::{Mapping, file};

/// The mapped file. This process has touched no page of it, so the caller can still choose the NUMA
/// node of its pages.
pub(super) struct Untouched {
    pub(super) mapping: Mapping,
    pub(super) file: File,
    lock: MemoryLock,
    warnings: Vec<String>,
}

impl Untouched {
    /// Touches the memory to find out the size of its pages.
    pub(super) fn touch(self, place: &MemoryPlace<'_>) -> RackMemory {
        let Self { mapping, file, lock, warnings } = self;
        let pages = pages_behind(&mapping, || why_small(place));
        RackMemory { mapping, file, lock, pages, warnings, node: None }
    }

    /// Places the memory, then touches it.
    pub(super) fn place(mut self, place: &MemoryPlace<'_>) -> Result<RackMemory, MemoryError> {
        let preferred = place.prefer(&self.mapping, &self.file, &mut self.warnings)?;
        let mut memory = self.touch(place);
        place.check_node(&mut memory, preferred.as_ref())?;
        Ok(memory)
    }
}

/// Fails for a folder whose files the kernel writes to a disk.
fn require_memory(place: &MemoryPlace<'_>) -> Result<(), MemoryError> {
    let folder = place.directory.path();
    match place.machine.mount_of(folder) {
        Some(mount) if !matches!(mount.kind.as_str(), "tmpfs" | "ramfs") => {
            Err(MemoryError::NotMemory { folder: folder.into(), file_system: mount.kind })
        }
        _ => Ok(()),
    }
}

/// Creates the file, or takes over the file that a killed daemon has just created.
pub(super) fn create(place: &MemoryPlace<'_>) -> Result<Untouched, MemoryError> {
    require_memory(place)?;
    let path = place.directory.frames();
    let (found, is_new) = match file::open(&path)? {
        Some(found) => (found, false),
        None => (file::create(&path, place.bytes)?, true),
    };
    let made = use_file(place, found, &path);
    let made = made.and_then(|memory| place.require_room().map(|()| memory));
    if is_new && made.is_err() {
        // The file would claim room, and its length would prevent an attempt with less memory.
        let _ = std::fs::remove_file(&path);
    }
    made
}

/// Opens the file that an earlier daemon created.
pub(super) fn open(place: &MemoryPlace<'_>) -> Result<Untouched, MemoryError> {
    let path = place.directory.frames();
    let found = file::open(&path)?.ok_or_else(|| place.missing(&path))?;
    file::check_len(&found, &path, place.bytes)?;
    let mut memory = use_file(place, found, &path)?;
    // The pages in use exist. The rack is served even if other files have taken the remaining room.
    if let Err(error) = place.require_room() {
        memory.warnings.push(format!("{error}, before the rack is full: then the kernel ends who uses memory that is not there (SIGBUS)"));
    }
    Ok(memory)
}

fn use_file(place: &MemoryPlace<'_>, found: File, path: &Path) -> Result<Untouched, MemoryError> {
    if let Ok(target) = std::fs::read_link(path) {
        return Err(MemoryError::Linked { link: path.to_path_buf(), target });
    }
    let lock = MemoryLock::of(path)?;
    if found.metadata().map_err(system("examine", path.display()))?.len() == 0 {
        // A daemon was killed right after it created the file.
        found.set_len(place.bytes).map_err(system("size", path.display()))?;
    }
    file::check_len(&found, path, place.bytes)?;
    let mapping = Mapping::new(&found, place.bytes).map_err(system("map", path.display()))?;
    mapping.advise_huge();
    Ok(Untouched { mapping, file: found, lock, warnings: Vec::new() })
}

/// Checks whether the kernel gave the requested huge pages.
pub(super) fn pages_behind(mapping: &Mapping, why_small: impl FnOnce() -> String) -> KernelPages {
    const SMALL: u64 = 4096;
    let huge = HugePage::Size2M.bytes();
    if mapping.len() < huge {
        return KernelPages::new(SMALL, "it is less than a huge page");
    }
    match backing::touched(mapping) {
        Ok(pages) if pages.huge_bytes > 0 => {
            KernelPages::new(huge, "given by the kernel as it finds them")
        }
        Ok(_) => KernelPages::new(SMALL, why_small()),
        Err(error) => KernelPages::new(0, format!("/proc/self/smaps can't be read: {error}")),
    }
}

/// The reason why the kernel uses small pages for a file in this place.
fn why_small(place: &MemoryPlace<'_>) -> String {
    let folder = place.directory.path();
    let mount = place.machine.mount_of(folder);
    let mounted = mount.as_ref().map_or(folder, |mount| mount.folder.as_path()).display();
    match mount.as_ref().and_then(|mount| mount.option("huge")) {
        None | Some("never") => format!("{mounted} has no huge pages"),
        Some(setting) => format!(
            "{mounted} has huge={setting}, but memory made before stays as it is, and the kernel may find no 2 MiB in one piece or be set against it ({})",
            shared_setting(place.machine)
        ),
    }
}

/// The kernel's setting for shared memory, in words.
pub(super) fn shared_setting(machine: &HostFiles) -> String {
    let setting = machine.transparent_huge().shared;
    format!(
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled is {}",
        setting.as_deref().unwrap_or("not there")
    )
}
