//! Buffers on a node, as regions of a fabric.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_fabric::emulated::{ExportedRegion, Mapper};
use rackpool_fabric::{MemoryRegion, OutOfRange};
use rackpool_shm::Mapping;
use rackpool_shm::numa::NumaPolicy;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::StudyError;
use crate::placement::{PAGE, require_node};

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;

/// The part of the registered memory that one connection accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: u32,
}

/// The slices of `count` connections: adjacent, so connections of 8 B share cache lines. The
/// memory starts with a page, hence with a cache line.
pub(crate) fn slices(count: u32, len: u32) -> Vec<Slice> {
    (0..u64::from(count)).map(|at| Slice { offset: at * u64::from(len), len }).collect()
}

/// Memory in a file without a name, on a node if one is given. All its pages exist.
#[derive(Debug)]
pub(crate) struct Buffer {
    file: OwnedFd,
    pub(crate) mapping: Arc<Mapping>,
    node: Option<u32>,
}

impl Buffer {
    /// Allocates at least `bytes` bytes, in whole pages, of zeros.
    pub(crate) fn new(bytes: u64, node: Option<u32>) -> Result<Self, StudyError> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let step = StudyError::system;
        let file = memfd_create("rackpool-numa", MemfdFlags::CLOEXEC)
            .map_err(|error| step("create memory")(error.into()))?;
        ftruncate(&file, bytes).map_err(|error| step("size memory")(error.into()))?;
        let mapping = Mapping::new(&file, bytes).map_err(step("map memory"))?;
        if let Some(node) = node {
            let bound = mapping.bind_to_node(node, NumaPolicy::Bind);
            bound.map_err(step("bind memory to a NUMA node"))?;
        }
        for page in (0..bytes).step_by(4096) {
            let written = mapping.write(page, &[0]).map_err(io::Error::other);
            written.map_err(step("allocate memory"))?;
        }
        Ok(Self { file, mapping: Arc::new(mapping), node })
    }

    /// Checks that every page lies on the buffer's node.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), StudyError> {
        self.node.map_or(Ok(()), |node| require_node(&*self.mapping, what, node))
    }

    pub(crate) fn region(&self) -> Arc<dyn MemoryRegion> {
        Arc::new(Region(Arc::clone(&self.mapping)))
    }

    /// The buffer as the emulated fabric exports it.
    pub(crate) fn export(&self) -> Result<ExportedRegion, StudyError> {
        let fd = self.file.try_clone().map_err(StudyError::system("duplicate a descriptor"))?;
        Ok(ExportedRegion { fd, len: self.mapping.len() })
    }
}

/// A mapping as a region of a fabric.
#[derive(Debug)]
struct Region(Arc<Mapping>);

impl Region {
    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.0.len() }
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.0.view(offset).map_err(|_| self.outside(offset, 8))
    }
}

impl MemoryRegion for Region {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn base(&self) -> Option<NonNull<u8>> {
        Some(self.0.base())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.0.read(offset, into).map_err(|_| self.outside(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(offset, from).map_err(|_| self.outside(offset, from.len() as u64))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let word = self.word(offset)?;
        let found = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Maps what a peer of the emulated fabric exports, with all pages, so that no page fault is
/// measured.
#[derive(Debug)]
pub(crate) struct PageMapper;

impl Mapper for PageMapper {
    fn map(&self, fd: OwnedFd, len: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        let mapping = Mapping::new(&fd, len)?;
        for page in (0..len).step_by(4096) {
            mapping.read(page, &mut [0]).map_err(io::Error::other)?;
        }
        Ok(Arc::new(Region(Arc::new(mapping))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_adjacent_and_do_not_overlap() {
        for (count, len) in [(1, 8), (8, 8), (8, 64), (64, 4096), (3, 100)] {
            let all = slices(count, len);
            assert_eq!((all.len(), all[0].offset), (count as usize, 0));
            for pair in all.windows(2) {
                assert_eq!(pair[0].offset + u64::from(pair[0].len), pair[1].offset);
            }
        }
        let lines = |len| {
            let of = |slice: Slice| slice.offset / LINE;
            slices(8, len).into_iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((lines(8), lines(64)), (1, 8), "8 connections of 8 B share a line");
    }

    #[test]
    fn a_buffer_starts_with_a_line_and_its_pages_are_where_they_were_bound() {
        let anywhere = Buffer::new(100, None).unwrap();
        assert_eq!(anywhere.mapping.len(), PAGE);
        assert!((anywhere.mapping.base().as_ptr() as u64).is_multiple_of(LINE));
        anywhere.check("the buffer").unwrap();
        let nodes = rackpool_shm::host::HostFiles::here().nodes();
        let Some(node) = nodes.iter().find(|node| node.memory_bytes > 0) else {
            return rackpool_testing::skipped("this kernel knows no NUMA nodes");
        };
        let mut bound = Buffer::new(3 * PAGE, Some(node.id)).unwrap();
        bound.check("the buffer").unwrap();
        bound.node = Some(node.id + 1);
        assert!(matches!(bound.check("the buffer"), Err(StudyError::Elsewhere { .. })));
    }
}
