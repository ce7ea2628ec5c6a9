//! Memory for measurements: like a rack's memory, but private and freed when it is dropped.

use rustix::fs::{MemfdFlags, memfd_create};

use super::MemoryError;
use super::error::system;
use crate::Mapping;
use crate::host::{HostFiles, HugePage};
use crate::numa::NumaPolicy;

/// Allocates `bytes` bytes without a name: in small pages, or in huge pages of the kernel's pool;
/// on NUMA node `node` if given.
///
/// Huge pages are reserved when this returns; small ones are allocated at the first touch. Memory
/// that a node does not have is refused: the kernel would kill the process that touches it.
pub fn scratch(
    bytes: u64,
    page: Option<HugePage>,
    node: Option<u32>,
) -> Result<Mapping, MemoryError> {
    const WHAT: &str = "memory to measure";
    let size = match page {
        None => MemfdFlags::empty(),
        Some(HugePage::Size2M) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Some(HugePage::Size1G) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let made = memfd_create("rackpool-scratch", MemfdFlags::CLOEXEC | size)
        .map_err(|error| system("make", WHAT)(error.into()))?;
    let file = std::fs::File::from(made);
    file.set_len(bytes).map_err(system("size", WHAT))?;
    let mapping = Mapping::new(&file, bytes).map_err(system("map", WHAT))?;
    if page.is_none() {
        mapping.refuse_huge();
    }
    if let Some(node) = node {
        let found = HostFiles::here().nodes().into_iter().find(|found| found.id == node);
        let free = found.map(|found| found.free_bytes).filter(|free| *free < bytes);
        // Huge pages are not among the free bytes; mapping them has reserved them.
        if let (Some(free), None) = (free, page) {
            return Err(MemoryError::NodeFull { node, free, needed: bytes });
        }
        mapping
            .bind_to_node(node, NumaPolicy::Bind)
            .map_err(system("bind to a NUMA node", WHAT))?;
    }
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_node_has_is_refused() {
        let Some(node) = HostFiles::here().nodes().into_iter().find(|node| node.free_bytes > 0)
        else {
            return rackpool_testing::skipped("this kernel knows no NUMA nodes");
        };
        scratch(4096, None, Some(node.id)).unwrap();
        let refused = scratch(1 << 46, None, Some(node.id)).unwrap_err().to_string();
        assert!(refused.contains(&format!("NUMA node {} has", node.id)), "{refused}");
    }
}
