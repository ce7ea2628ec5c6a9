//! Registered memory on a NUMA node, and the proof that it lies there.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_fabric::emulated::Mapper;
use rackpool_fabric::{MemoryRegion, OutOfRange};
use rackpool_shm::Mapping;
use rackpool_shm::numa::NumaPolicy;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 4096;

/// Memory that a fabric may access.
pub(crate) struct Memory {
    mapping: Mapping,
    fd: OwnedFd,
    /// Its node; `None` leaves it to the kernel.
    node: Option<u32>,
}

impl Memory {
    /// Allocates zeroed memory on a node.
    pub(crate) fn new(bytes: u64, node: Option<u32>) -> anyhow::Result<Arc<Self>> {
        let bytes = bytes.next_multiple_of(PAGE);
        let fd = memfd_create("rackpool-study", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes)?;
        let mapping = Mapping::new(&fd, bytes)?;
        if let Some(node) = node {
            mapping
                .bind_to_node(node, NumaPolicy::Bind)
                .with_context(|| format!("can't bind memory to NUMA node {node}"))?;
        }
        for page in (0..bytes).step_by(usize::try_from(PAGE)?) {
            mapping.write(page, &[0])?;
        }
        Ok(Arc::new(Self { mapping, fd, node }))
    }

    pub(crate) fn fd(&self) -> std::io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Fails unless each page lies on the node, as `move_pages(2)` says.
    pub(crate) fn check_node(&self) -> anyhow::Result<()> {
        let Some(wanted) = self.node else { return Ok(()) };
        let pages = (0..self.mapping.len()).step_by(usize::try_from(PAGE)?);
        let nodes: std::io::Result<Vec<u32>> =
            pages.map(|offset| self.mapping.node_at(offset)).collect();
        check_nodes(wanted, &nodes.context("the kernel does not say where pages lie")?)
    }

    /// A word of the memory, for threads of the server.
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.mapping.view(offset).ok()
    }

    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.mapping.len() }
    }

    fn cell(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.mapping.view(offset).map_err(|_| self.outside(offset, 8))
    }
}

fn check_nodes(wanted: u32, nodes: &[u32]) -> anyhow::Result<()> {
    let elsewhere: Vec<u32> = nodes.iter().copied().filter(|node| *node != wanted).collect();
    if let Some(found) = elsewhere.first() {
        bail!(
            "{} of {} pages are not on NUMA node {wanted}, the first of them on node {found}: \
             the measurement would not mean what it says",
            elsewhere.len(),
            nodes.len()
        );
    }
    Ok(())
}

impl MemoryRegion for Memory {
    fn len(&self) -> u64 {
        self.mapping.len()
    }

    fn base(&self) -> Option<NonNull<u8>> {
        Some(self.mapping.base())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.mapping.read(offset, into).map_err(|_| self.outside(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.mapping.write(offset, from).map_err(|_| self.outside(offset, from.len() as u64))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.cell(offset)?.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.cell(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let cell = self.cell(offset)?;
        let found = cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Maps what a peer of the emulated fabric exports.
pub(crate) struct Maps;

impl Mapper for Maps {
    fn map(&self, fd: OwnedFd, len: u64) -> std::io::Result<Arc<dyn MemoryRegion>> {
        let mapping = Mapping::new(&fd, len)?;
        // No access is the first one to a page.
        for page in (0..len).step_by(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
            mapping.read(page, &mut [0]).map_err(std::io::Error::other)?;
        }
        Ok(Arc::new(Memory { mapping, fd, node: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_lie_elsewhere_are_named() {
        check_nodes(1, &[1, 1]).unwrap();
        let error = check_nodes(1, &[1, 0, 2]).unwrap_err().to_string();
        assert!(error.starts_with("2 of 3 pages are not on NUMA node 1"), "{error}");
        assert!(error.contains("on node 0"), "{error}");
    }

    #[test]
    fn memory_is_whole_pages_and_zero() {
        let memory = Memory::new(10, None).unwrap();
        assert_eq!(MemoryRegion::len(&*memory), PAGE);
        assert_eq!(memory.word(0).unwrap().load(Ordering::Relaxed), 0);
        assert!(memory.word(PAGE).is_none());
        memory.check_node().unwrap();
    }
}
