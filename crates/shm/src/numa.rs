//! NUMA nodes of memory: binding memory to a node, and finding a page's node.
//!
//! The system calls `mbind(2)` and `move_pages(2)` have no wrapper in the crates of this project,
//! so they are made raw, here and nowhere else.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::io;

use crate::Mapping;

/// Number of nodes in the masks of this module: the most that a Linux kernel can be built for
/// (`CONFIG_NODES_SHIFT` is at most 10).
pub const MAX_NODES: u32 = 1024;

/// How strictly memory is bound to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaPolicy {
    /// Pages come from that node only. If the node is full, the kernel kills a process that touches
    /// a missing page, so the caller must first check that there is room.
    Bind,
    /// Pages come from that node while it has room, then from the nearest one.
    Prefer,
}

impl NumaPolicy {
    /// The values of `linux/mempolicy.h`.
    const fn mode(self) -> c_ulong {
        match self {
            Self::Prefer => 1,
            Self::Bind => 2,
        }
    }
}

/// Converts the result of a system call, which returns -1 and sets `errno` on failure.
fn checked(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Mapping {
    /// Sets the node of the pages of this mapping that do not exist yet. Memory of tmpfs, memfd and
    /// hugetlbfs keeps the policy with the file: it applies to every process.
    ///
    /// Fails with `InvalidInput` if there is no such node, with `Unsupported` if the kernel has no
    /// NUMA support.
    pub fn bind_to_node(&self, node: u32, policy: NumaPolicy) -> io::Result<()> {
        const BITS: u32 = c_ulong::BITS;
        let mut mask: [c_ulong; (MAX_NODES / BITS) as usize] = [0; _];
        let word = mask.get_mut((node / BITS) as usize).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % BITS);
        // The kernel uses one bit less than the given number.
        let bits = c_ulong::from(MAX_NODES) + 1;
        // Each argument fills a register, because the kernel reads all its bits.
        let (mode, flags): (c_ulong, c_ulong) = (policy.mode(), 0);
        // SAFETY: the range is exactly this mapping, the mask has `MAX_NODES` bits and is only
        // read; a policy changes no byte of any memory.
        checked(unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base().as_ptr().cast::<c_void>(),
                self.len(),
                mode,
                mask.as_ptr(),
                bits,
                flags,
            )
        })
    }

    /// The node of the page at `offset`. Touches the page first, so that it exists.
    pub fn node_at(&self, offset: u64) -> io::Result<u32> {
        let mut byte = [0];
        self.read(offset, &mut byte)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        std::hint::black_box(byte);
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let page: *const c_void = self.base().as_ptr().wrapping_add(offset).cast();
        let pages = [page];
        let mut status: [c_int; 1] = [c_int::MIN];
        let (own_process, flags): (c_ulong, c_ulong) = (0, 0);
        // SAFETY: without target nodes nothing is moved: the kernel reads one address and writes
        // one status.
        checked(unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                own_process,
                pages.len() as c_ulong,
                pages.as_ptr(),
                std::ptr::null::<c_int>(),
                status.as_mut_ptr(),
                flags,
            )
        })?;
        u32::try_from(status[0]).map_err(|_| io::Error::from_raw_os_error(status[0].wrapping_neg()))
    }
}

#[cfg(test)]
mod tests {
    use rackpool_testing::skipped;

    use super::*;
    use crate::host::HostFiles;

    fn memory(len: u64) -> Mapping {
        crate::memory::scratch(len, None, None).unwrap()
    }

    #[test]
    fn bound_memory_lies_on_its_node() {
        let Some(node) = HostFiles::here().nodes().into_iter().find(|node| node.memory_bytes > 0)
        else {
            return skipped("this kernel knows no NUMA nodes");
        };
        let memory = memory(1 << 20);
        for policy in [NumaPolicy::Prefer, NumaPolicy::Bind] {
            memory.bind_to_node(node.id, policy).unwrap();
            for offset in [0, 5000, (1 << 20) - 1] {
                assert_eq!(memory.node_at(offset).unwrap(), node.id);
            }
        }
    }

    #[test]
    fn nodes_that_are_not_there_and_bytes_outside_are_refused() {
        let memory = memory(4096);
        assert!(memory.bind_to_node(MAX_NODES - 1, NumaPolicy::Bind).is_err());
        assert!(memory.bind_to_node(MAX_NODES, NumaPolicy::Bind).is_err());
        assert!(memory.bind_to_node(u32::MAX, NumaPolicy::Prefer).is_err());
        assert!(memory.node_at(4096).is_err());
        assert!(memory.node_at(u64::MAX).is_err());
    }
}
