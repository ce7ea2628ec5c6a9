//! Deriving the allocator's state from the metadata a daemon finds when it starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use dashmap::DashMap;
#[cfg(test)]
use rackpool_model::PageEvent;
use rackpool_model::{FrameId, PageId, PageSize, PageState, SizeClass};
use rackpool_shm::metadata::{PageUse, RackMetadata};
use rackpool_sync::atomic::Ordering;

use super::{FrameState, PageTable, Slab, SlabError};

impl Slab {
    /// Reads the metadata and mends what a daemon killed in the middle left: pages that were
    /// leaving go on leaving, runs that were not committed are undone.
    pub(crate) fn adopt(
        metadata: Arc<RackMetadata>,
        page_size: PageSize,
        first: PageId,
    ) -> Result<Self, SlabError> {
        let frames = metadata.frames();
        let mut slab = Self {
            page_size,
            table: PageTable { first, elsewhere: DashMap::new() },
            frames: vec![FrameState::default(); frames as usize],
            free_pages: BTreeMap::new(),
            partial: vec![Vec::new(); usize::from(SizeClass::count(page_size))],
            leaving: Vec::new(),
            newly_leaving: true,
            allocated_bytes: 0,
            metadata,
        };
        for frame in (0..frames).map(FrameId) {
            let page = slab.page_of(frame)?;
            if slab.frame_of(page) != Some(frame) {
                slab.table.elsewhere.insert(page, frame);
            }
        }
        for frame in (0..frames).map(FrameId) {
            slab.adopt_frame(frame)?;
        }
        Ok(slab)
    }

    fn adopt_frame(&mut self, frame: FrameId) -> Result<(), SlabError> {
        let word = self.word(frame)?;
        let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
        match (word.state(), usage) {
            (Some(PageState::Live), PageUse::Slab(class)) => self.adopt_slab(frame, class)?,
            (Some(PageState::Live), PageUse::Run { index, pages }) => {
                if self.run_is_committed(word.page(), index, pages)? {
                    self.allocated_bytes += self.page_size.bytes();
                } else {
                    self.leave(frame)?;
                }
            }
            (Some(PageState::Leaving), _) => self.leaving.push(frame),
            (Some(PageState::Free), _) => {
                self.metadata.header(frame)?.set_kind(PageUse::Unused);
                self.free_pages.insert(word.page(), frame);
            }
            (state, usage) => {
                tracing::error!("{frame} is {state:?} and {usage:?}: it stays out of use");
            }
        }
        Ok(())
    }

    fn adopt_slab(&mut self, frame: FrameId, class: SizeClass) -> Result<(), SlabError> {
        let objects = class.objects_per_page(self.page_size);
        let used: u32 = self
            .metadata
            .bitmap(frame, class)?
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum();
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects = objects.saturating_sub(used);
        state.listed = state.free_objects > 0;
        if state.listed {
            self.partial[usize::from(class.index())].push(frame);
        }
        self.allocated_bytes += u64::from(used.min(objects)) * class.bytes();
        Ok(())
    }

    /// Whether the run's first page is in use as such.
    fn run_is_committed(&self, page: PageId, index: u32, pages: u32) -> Result<bool, SlabError> {
        let head = PageId(page.0.wrapping_sub(index));
        let Some(frame) = self.frame_of(head) else { return Ok(false) };
        let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
        Ok(self.state(frame)? == Some(PageState::Live) && usage == PageUse::Run { index: 0, pages })
    }

    /// Undoes the events that only this module may undo, for tests of crashes.
    #[cfg(test)]
    pub(super) fn crash_in_commit_run(&mut self, first: PageId, pages: u32, after: u32) {
        for index in (pages - after..pages).rev() {
            let frame = self.free_pages.remove(&PageId(first.0 + index)).unwrap();
            self.metadata.header(frame).unwrap().set_kind(PageUse::Run { index, pages });
            self.step(frame, PageEvent::Allocated).unwrap();
        }
    }
}
