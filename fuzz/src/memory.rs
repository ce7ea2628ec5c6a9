//! Memory to be parsed.

use rackpool_shm::Mapping;
use rackpool_shm::memory::scratch;

/// Zeroed memory, mapped as the files of a rack are.
pub(crate) fn zeroes(bytes: u64) -> Mapping {
    scratch(bytes, None, None).expect("memory can be had")
}
