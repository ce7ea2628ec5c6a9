use std::sync::Arc;

use anyhow::Context;
use rackpool_model::{FrameId, GlobalAddr, PageId, PageSize, PageWord};
use rackpool_shm::marks::{Marks, ObjectHolder};
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::{Mapping, OutsideMapping};
use rackpool_sync::atomic::Ordering;

use crate::slab::Slab;

/// The allocator over metadata that may be damaged.
#[derive(Debug)]
pub struct SlabUnderTest {
    memory: Mapping,
    metadata: Arc<RackMetadata>,
    marks: Marks,
    first: PageId,
    slab: Slab,
}

impl SlabUnderTest {
    /// Creates an empty rack whose frames have the page ids from `first` on.
    pub fn new(page_size: PageSize, frames: u32, first: PageId) -> anyhow::Result<Self> {
        let layout = MetadataLayout::new(page_size, frames);
        let file = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, layout.bytes())?;
        let memory = Mapping::new(&file, layout.bytes())?;
        let metadata = RackMetadata::new(Mapping::new(&file, layout.bytes())?, layout)?;
        for index in 0..frames {
            let page = first.0.checked_add(index).context("more pages than there are ids")?;
            let word = PageWord::free(PageId(page));
            metadata.word(FrameId(index))?.store(word.raw(), Ordering::Relaxed);
        }
        let metadata = Arc::new(metadata);
        let bytes = Marks::bytes(page_size, frames);
        let file = rustix::fs::memfd_create("marks", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes)?;
        let marks = Marks::new(Arc::new(Mapping::new(&file, bytes)?), page_size, frames)?;
        let slab = Slab::adopt(Arc::clone(&metadata), marks.clone(), page_size, first)?;
        Ok(Self { memory, metadata, marks, first, slab })
    }

    /// Returns the layout of the metadata.
    #[must_use]
    pub fn layout(&self) -> MetadataLayout {
        *self.metadata.layout()
    }

    /// Overwrites bytes of the metadata, which only this daemon should do.
    pub fn damage(&self, offset: u64, bytes: &[u8]) -> Result<(), OutsideMapping> {
        self.memory.write(offset, bytes)
    }

    /// Starts another daemon, which knows only the metadata.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let page_size = self.layout().page_size();
        let (metadata, marks) = (Arc::clone(&self.metadata), self.marks.clone());
        self.slab = Slab::adopt(metadata, marks, page_size, self.first)?;
        self.free_retired()
    }

    /// Allocates an object of at least `bytes` bytes, if there is room.
    pub fn alloc(&mut self, bytes: u64) -> anyhow::Result<Option<GlobalAddr>> {
        let Some(candidate) = self.slab.peek(bytes)? else { return Ok(None) };
        Ok(self.slab.commit(candidate, None)?.then_some(candidate.addr))
    }

    /// Frees an object. Returns true if it was allocated.
    pub fn free(&mut self, addr: GlobalAddr) -> anyhow::Result<bool> {
        let is_freed = self.slab.free(addr, ObjectHolder::DAEMON)?.is_ok();
        self.free_retired()?;
        Ok(is_freed)
    }

    /// Allocates a fixed object of at least `bytes` bytes, if there is room.
    pub fn alloc_fixed(&mut self, bytes: u64) -> anyhow::Result<Option<GlobalAddr>> {
        let Some(candidate) = self.slab.peek_fixed(bytes)? else { return Ok(None) };
        Ok(self.slab.commit(candidate, None)?.then_some(candidate.addr))
    }

    /// Allocates an extent of up to `pages` pages for a head. Returns its pages, if there is room.
    pub fn extend(&mut self, head: GlobalAddr, pages: u64) -> anyhow::Result<Option<u32>> {
        if self.slab.extents_of(head).is_err() {
            return Ok(None);
        }
        Ok(self.slab.extend(head, pages, true)?.map(|extent| extent.pages))
    }

    /// Frees the memory of the retired objects; no process pins any.
    fn free_retired(&mut self) -> anyhow::Result<()> {
        let retired = self.slab.take_newly_retired();
        Ok(retired.into_iter().try_for_each(|addr| self.slab.free_retired(addr))?)
    }

    /// Returns true if the address is an allocated object.
    #[must_use]
    pub fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.slab.is_allocated(addr)
    }

    /// Closes empty pages and frees the frames of all leaving pages.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        self.slab.close_empty_pages()?;
        for frame in self.slab.take_newly_leaving() {
            self.slab.quiesced(frame)?;
        }
        Ok(())
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn free_frames(&self) -> u32 {
        self.slab.free_frames()
    }

    /// Returns the bytes in allocated objects.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.slab.allocated_bytes()
    }

    /// Returns the frame of a page, whether the page is in use or not.
    #[must_use]
    pub fn frame_of(&self, page: PageId) -> Option<FrameId> {
        self.slab.lookup(page).map(|found| found.frame)
    }
}
