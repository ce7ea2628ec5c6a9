use std::sync::Arc;

use anyhow::Context;
use rackpool_model::{FrameId, GlobalAddr, PageId, PageSize, PageWord};
use rackpool_shm::marks::{Marks, ObjectHolder};
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::{Mapping, OutOfBounds};
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
    /// An empty rack whose frames are born with the ids from `first` on.
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

    /// Where everything lies.
    #[must_use]
    pub fn layout(&self) -> MetadataLayout {
        *self.metadata.layout()
    }

    /// Overwrites bytes of the metadata, as nothing but this daemon should.
    pub fn damage(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.write(offset, bytes)
    }

    /// Another daemon starts: all it knows is the metadata.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let page_size = self.layout().page_size();
        let (metadata, marks) = (Arc::clone(&self.metadata), self.marks.clone());
        self.slab = Slab::adopt(metadata, marks, page_size, self.first)?;
        Ok(())
    }

    /// Hands out an object of at least `bytes` bytes, if there is room.
    pub fn alloc(&mut self, bytes: u64) -> anyhow::Result<Option<GlobalAddr>> {
        let Some(candidate) = self.slab.peek(bytes)? else { return Ok(None) };
        self.slab.commit(candidate, None)?;
        Ok(Some(candidate.addr))
    }

    /// Takes an object back; whether it was one in use.
    pub fn free(&mut self, addr: GlobalAddr) -> anyhow::Result<bool> {
        Ok(self.slab.free(addr, ObjectHolder::DAEMON)?.is_ok())
    }

    /// Whether the address is an object in use.
    #[must_use]
    pub fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.slab.is_allocated(addr)
    }

    /// Gives up empty pages, and frees the frames of all pages that are leaving.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        self.slab.close_empty_pages()?;
        for frame in self.slab.take_leaving() {
            self.slab.quiesced(frame)?;
        }
        Ok(())
    }

    /// Frames without a page, and bytes in objects in use.
    #[must_use]
    pub fn metrics(&self) -> (u32, u64) {
        (self.slab.free_frames(), self.slab.allocated_bytes())
    }

    /// The frame that a page is found in, whether it is in use or not.
    #[must_use]
    pub fn frame_of(&self, page: PageId) -> Option<FrameId> {
        self.slab.lookup(page).map(|(frame, _, _)| frame)
    }
}
