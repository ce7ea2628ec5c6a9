//! The daemon's memory as regions of its fabric.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_fabric::emulated::Mapper;
use rackpool_fabric::{MemoryRegion, OutOfRange};
use rackpool_ring::client_file::ClientFile;
use rackpool_shm::{Mapping, Stores};
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

/// A mapping that the fabric may read and write.
#[derive(Debug)]
pub(crate) struct Region<M>(pub(crate) M);

/// A mapping, or a type that has one.
pub(crate) trait HasMapping: Send + Sync {
    fn mapping(&self) -> &Mapping;

    /// The bytes of the mapping, from its start, that are the region.
    fn bytes(&self) -> u64 {
        self.mapping().len()
    }

    /// How a read's bulk data is stored. `Cached` by default, because a thread usually waits for
    /// the data.
    fn bulk(&self) -> Stores {
        Stores::Cached
    }
}

impl HasMapping for Mapping {
    fn mapping(&self) -> &Mapping {
        self
    }
}

/// The frames of the rack. Reads into them bring pages that move here; programs use only a part of
/// such a page at a time, so the stores bypass the cache.
impl HasMapping for Arc<Mapping> {
    fn mapping(&self) -> &Mapping {
        self
    }

    fn bulk(&self) -> Stores {
        Stores::Past
    }
}

impl HasMapping for Arc<ClientFile> {
    fn mapping(&self) -> &Mapping {
        self.memory()
    }

    /// A device allocates and pins all memory of a region, so the sparse arrays stay outside.
    fn bytes(&self) -> u64 {
        ClientFile::transfer_bytes(self.threads())
    }
}

impl<M: HasMapping> Region<M> {
    fn out_of_range(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.0.bytes() }
    }

    fn cell(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.0.mapping().view(offset).map_err(|_| self.out_of_range(offset, 8))
    }
}

impl<M: HasMapping> MemoryRegion for Region<M> {
    fn len(&self) -> u64 {
        self.0.bytes()
    }

    fn base(&self) -> Option<NonNull<u8>> {
        Some(self.0.mapping().base())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.0.mapping().read(offset, into).map_err(|_| self.out_of_range(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let len = from.len() as u64;
        self.0.mapping().write(offset, from).map_err(|_| self.out_of_range(offset, len))
    }

    fn write_bulk(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let len = from.len() as u64;
        let written = self.0.mapping().write_by(offset, from, self.0.bulk());
        written.map_err(|_| self.out_of_range(offset, len))
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

/// Maps the regions that peers of the emulated fabric pass.
#[derive(Debug)]
pub(crate) struct PeerMapper;

impl Mapper for PeerMapper {
    fn map(&self, fd: OwnedFd, len: u64) -> std::io::Result<Arc<dyn MemoryRegion>> {
        let mapping = Mapping::new(&fd, len)?;
        mapping.advise_huge();
        Ok(Arc::new(Region(mapping)))
    }
}
