//! Memory for measurements: like a rack's memory, but private and freed when it is dropped.

use rustix::fs::{MemfdFlags, memfd_create};

use super::MemoryError;
use super::error::system;
use crate::Mapping;
use crate::host::HugePage;
use crate::numa::NumaPolicy;

/// Allocates `bytes` bytes without a name: in small pages, or in huge pages of the kernel's pool;
/// on NUMA node `node` if given.
///
/// Huge pages are reserved when this returns; small ones are allocated at the first touch.
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
        mapping
            .bind_to_node(node, NumaPolicy::Bind)
            .map_err(system("bind to a NUMA node", WHAT))?;
    }
    Ok(mapping)
}
