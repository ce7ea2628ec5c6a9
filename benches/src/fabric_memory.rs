//! Memory for fabrics that a benchmark starts itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_fabric::emulated::Mapper;
use rackpool_fabric::{MemoryRegion, OutOfRange};
use rackpool_shm::Mapping;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a page of the processor.
const PAGE: usize = 4096;

/// A mapping as a memory region of a fabric.
struct Mapped(Mapping);

impl Mapped {
    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.0.len() }
    }
}

impl MemoryRegion for Mapped {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.0.read(offset, into).map_err(|_| self.outside(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(offset, from).map_err(|_| self.outside(offset, from.len() as u64))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        let cell = self.0.view::<AtomicU64>(offset).map_err(|_| self.outside(offset, 8))?;
        Ok(cell.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        let cell = self.0.view::<AtomicU64>(offset).map_err(|_| self.outside(offset, 8))?;
        cell.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let cell = self.0.view::<AtomicU64>(offset).map_err(|_| self.outside(offset, 8))?;
        let found = cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Maps what a peer exports. All pages are mapped at once, so that none is a page fault later.
pub(crate) struct Maps;

impl Mapper for Maps {
    fn map(&self, fd: OwnedFd, len: u64) -> std::io::Result<Arc<dyn MemoryRegion>> {
        let mapping = Mapping::new(&fd, len)?;
        for page in (0..len).step_by(PAGE) {
            mapping.read(page, &mut [0]).map_err(std::io::Error::other)?;
        }
        Ok(Arc::new(Mapped(mapping)))
    }
}

/// Memory of a rack, for a fabric and for its peers.
pub(crate) fn memory(bytes: u64) -> anyhow::Result<(OwnedFd, Arc<dyn MemoryRegion>)> {
    let fd = nix::sys::memfd::memfd_create(c"rackpool-bench", nix::sys::memfd::MFdFlags::empty())?;
    nix::unistd::ftruncate(&fd, i64::try_from(bytes)?)?;
    let mapping = Mapping::new(&fd, bytes)?;
    mapping.write(0, &vec![7; usize::try_from(bytes)?])?;
    Ok((fd, Arc::new(Mapped(mapping))))
}
