//! Memory in a file of the rack's folder whose pages are on one NUMA node. CXL memory that the
//! kernel manages is a node without processors.
//!
//! All pages are allocated at the start: if the node were full, the kernel would kill whichever
//! process touches the first missing page.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use super::error::system;
use super::frames_node::survey;
use super::tmpfs::{self, Untouched};
use super::{MemoryError, MemoryPlace, RackMemory};
use crate::host::NumaNode;
use crate::numa::NumaPolicy;

pub(super) fn create(place: &MemoryPlace<'_>, node: u32) -> Result<RackMemory, MemoryError> {
    let path = place.directory.frames();
    let is_new = !path.exists();
    require(place, node)?;
    let made = tmpfs::create(place).and_then(|memory| bind(place, memory, node));
    if is_new && made.is_err() {
        // The file would keep the node's memory, and the next attempt would find the wrong pages.
        let _ = std::fs::remove_file(&path);
    }
    made
}

pub(super) fn open(place: &MemoryPlace<'_>, node: u32) -> Result<RackMemory, MemoryError> {
    require(place, node)?;
    bind(place, tmpfs::open(place)?, node)
}

/// Returns the node, if it has memory.
fn require(place: &MemoryPlace<'_>, node: u32) -> Result<NumaNode, MemoryError> {
    let nodes = place.machine.nodes();
    let with_memory = nodes.iter().filter(|found| found.memory_bytes > 0);
    let there = with_memory.clone().map(|found| found.id).collect();
    let found = with_memory.clone().find(|found| found.id == node).cloned();
    found.ok_or(MemoryError::NoNode { node, there })
}

/// Binds the memory to the node and allocates it. Must run before the first page is touched: that
/// page would be allocated on the node of this thread.
fn bind(place: &MemoryPlace<'_>, memory: Untouched, node: u32) -> Result<RackMemory, MemoryError> {
    let path = place.directory.frames();
    let found = require(place, node)?;
    let missing = missing_bytes(&memory.file, &path, place.bytes)?;
    if missing > found.free_bytes {
        return Err(MemoryError::NodeFull { node, free: found.free_bytes, needed: missing });
    }
    memory
        .mapping
        .bind_to_node(node, NumaPolicy::Bind)
        .map_err(system("bind to its NUMA node", path.display()))?;
    allocate(&memory, &path)?;
    verify(&memory, node)?;
    let mut memory = memory.touch(place);
    memory.node = Some(node);
    if !found.cpus.is_empty() {
        memory.warnings.push(format!(
            "NUMA node {node} has processors: it is ordinary memory, not CXL memory; `rackpool doctor` shows the nodes"
        ));
    }
    Ok(memory)
}

/// Bytes of the file without a page.
fn missing_bytes(file: &File, path: &Path, bytes: u64) -> Result<u64, MemoryError> {
    let found = file.metadata().map_err(system("examine", path.display()))?;
    Ok(bytes.saturating_sub(found.blocks().saturating_mul(512)))
}

/// Allocates through the mapping, which can use huge pages. Kernels before 5.14 do not support
/// that; there it allocates the pages of the file.
fn allocate(memory: &Untouched, path: &Path) -> Result<(), MemoryError> {
    match memory.mapping.populate() {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        // The file system is full; an access would be killed by SIGBUS.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
            let full = io::Error::from_raw_os_error(libc::ENOSPC);
            return Err(system("allocate", path.display())(full));
        }
        Err(error) => return Err(system("allocate", path.display())(error)),
    }
    loop {
        match fallocate(&memory.file, FallocateFlags::empty(), 0, memory.mapping.len()) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("allocate", path.display())(error.into())),
        }
    }
}

/// Checks the nodes of a sample of the pages.
fn verify(memory: &Untouched, wanted: u32) -> Result<(), MemoryError> {
    let pages = survey(&memory.mapping, &memory.file)?;
    match pages.into_iter().find(|(_, found)| *found != wanted) {
        Some((offset, found)) => {
            let option = "--memory-kind numa:";
            Err(MemoryError::Elsewhere { offset, found, wanted, option })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::RackId;

    use super::*;
    use crate::directory::RackDirectory;
    use crate::host::HostFiles;
    use crate::memory::MemoryKind;

    #[test]
    fn pages_on_another_node_are_found() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let directory = RackDirectory::new(folder.path(), RackId(0));
        std::fs::create_dir(directory.path()).unwrap();
        let machine = HostFiles::here();
        let kind = MemoryKind::Tmpfs;
        let place = MemoryPlace::new(&kind, &directory, 1 << 20, &machine);
        let made = tmpfs::create(&place).unwrap();
        let here = made.mapping.node_at(0).unwrap();
        let elsewhere = verify(&made, here + 1).unwrap_err();
        assert!(
            matches!(elsewhere, MemoryError::Elsewhere { offset: 0, found, .. } if found == here),
            "{elsewhere}"
        );
    }

    /// On a machine with one node no other test shows that the first page was touched too early.
    #[test]
    fn no_page_is_there_before_memory_is_bound_to_its_node() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let directory = RackDirectory::new(folder.path(), RackId(0));
        std::fs::create_dir(directory.path()).unwrap();
        let machine = HostFiles::here();
        let kind = MemoryKind::Node(0);
        let place = MemoryPlace::new(&kind, &directory, 4 << 20, &machine);
        let made = tmpfs::create(&place).unwrap();
        assert_eq!(missing_bytes(&made.file, &directory.frames(), place.bytes).unwrap(), 4 << 20);
        let touched = made.touch(&place);
        assert!(missing_bytes(&touched.file, &directory.frames(), place.bytes).unwrap() < 4 << 20);
    }
}
