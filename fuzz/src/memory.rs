//! Memory to be parsed.

use rackpool_shm::Mapping;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Zeroed memory, mapped as the files of a rack are.
pub(crate) fn zeroes(bytes: u64) -> Mapping {
    let file = memfd_create("rackpool-fuzz", MemfdFlags::CLOEXEC).expect("memory can be had");
    ftruncate(&file, bytes).expect("memory can be had");
    Mapping::new(&file, bytes).expect("memory can be mapped")
}
