//! Deriving the allocator's state from the metadata when a daemon starts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use rackpool_model::{FrameId, PageId, PageSize, PageState, SizeClass};
use rackpool_shm::marks::Marks;
use rackpool_shm::metadata::{PageUse, RackMetadata};
use rackpool_sync::atomic::Ordering;

use super::moving::departed;
use super::{FixedUse, FrameState, PageTable, Slab, SlabError, SlabUse};

impl Slab {
    /// Reads the metadata and completes the work of a daemon that was killed: leaving pages
    /// continue to leave, uncommitted runs are undone, extents without a head are freed.
    pub(crate) fn adopt(
        metadata: Arc<RackMetadata>,
        marks: Marks,
        page_size: PageSize,
        first: PageId,
    ) -> Result<Self, SlabError> {
        let frames = metadata.frames();
        let mut slab = Self {
            page_size,
            table: PageTable { first, elsewhere: HashMap::new() },
            frames: vec![FrameState::default(); frames as usize],
            free_pages: BTreeMap::new(),
            unreserved: BTreeMap::new(),
            ordered: BTreeMap::new(),
            free_since: BTreeMap::new(),
            borrowed: BTreeMap::new(),
            partial: vec![Vec::new(); 2 * usize::from(SizeClass::count(page_size))],
            extents: HashMap::new(),
            newly_retired: Vec::new(),
            leaving: 0,
            newly_leaving: Vec::new(),
            allocated_bytes: 0,
            fixed: FixedUse::default(),
            departed: BTreeSet::new(),
            #[cfg(test)]
            stores_left: std::cell::Cell::new(None),
            metadata,
            marks,
        };
        let known = departed(&slab.metadata)?;
        let is_damaged = known.is_none();
        let known = known.unwrap_or_default();
        slab.departed = known.into_iter().filter(|frame| slab.is_leaving_frame(*frame)).collect();
        for frame in (0..frames).map(FrameId) {
            if is_damaged && slab.is_leaving_frame(frame) {
                // The frame's page may be in another rack: the frame must not become free here.
                tracing::error!("a swap record is damaged: {frame} stays out of use");
                slab.departed.insert(frame);
            }
            let page = slab.page_of(frame)?;
            if slab.state(frame)? == Some(PageState::Arriving) || slab.departed.contains(&frame) {
                continue;
            }
            if slab.frame_of(page) != Some(frame) {
                slab.table.elsewhere.insert(page, frame);
            }
        }
        for frame in (0..frames).map(FrameId) {
            slab.adopt_frame(frame)?;
        }
        slab.adopt_extents()?;
        slab.adopt_retired()?;
        Ok(slab)
    }

    fn is_leaving_frame(&self, frame: FrameId) -> bool {
        self.state(frame).is_ok_and(|state| state == Some(PageState::Leaving))
    }

    fn adopt_frame(&mut self, frame: FrameId) -> Result<(), SlabError> {
        let word = self.word(frame)?;
        if self.departed.contains(&frame) {
            return Ok(());
        }
        if word.state() == Some(PageState::Arriving) {
            return Ok(());
        }
        if self.frame_of(word.page()) != Some(frame) {
            // An address in the page would mean two frames, or none.
            tracing::error!(
                "{frame} names {}, which is not its page: the frame stays out of use",
                word.page()
            );
            return Ok(());
        }
        let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
        match (word.state(), usage) {
            (Some(PageState::Live), PageUse::Slab(class) | PageUse::Fixed(class)) => {
                self.count_objects(frame, class)?;
                let is_fixed = matches!(usage, PageUse::Fixed(_));
                let slab = SlabUse { class, is_fixed };
                let free = self.frames[Self::index(frame)].free_objects;
                self.fixed.add_objects(slab, class.objects_per_page(self.page_size) - free);
                self.list(frame, slab);
            }
            // The swap continues, or the copies are revoked.
            (Some(PageState::Frozen | PageState::Shared), PageUse::Slab(class)) => {
                self.count_objects(frame, class)?;
            }
            (Some(PageState::Live), PageUse::Run { index, pages }) => {
                if self.run_is_committed(word.page(), index, pages)? {
                    self.allocated_bytes += self.page_size.bytes();
                } else {
                    self.leave(frame)?;
                }
            }
            (Some(PageState::Leaving), _) => {
                self.leaving += 1;
                self.newly_leaving.push(frame);
            }
            (Some(PageState::Free), _) => {
                self.set_use(frame, PageUse::Unused)?;
                self.free_pages.insert(word.page(), frame);
            }
            (state, usage) => {
                tracing::error!(
                    "the state of {frame} ({state:?}) contradicts its use ({usage:?}): the frame stays out of use"
                );
            }
        }
        Ok(())
    }

    /// Derives the number of free objects of a page.
    pub(super) fn count_objects(
        &mut self,
        frame: FrameId,
        class: SizeClass,
    ) -> Result<(), SlabError> {
        let objects = class.objects_per_page(self.page_size);
        // Bits after the last object have no meaning.
        let meant = if objects < 64 { (1 << objects) - 1 } else { u64::MAX };
        let used: u32 = self
            .metadata
            .bitmap(frame, class)?
            .iter()
            .map(|word| (word.load(Ordering::Relaxed) & meant).count_ones())
            .sum();
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects = objects - used;
        state.hint = 0;
        self.allocated_bytes += u64::from(used) * class.bytes();
        Ok(())
    }

    /// Returns true if the run's first page is in use as such.
    fn run_is_committed(&self, page: PageId, index: u32, pages: u32) -> Result<bool, SlabError> {
        let head = page.0.checked_sub(index).and_then(|head| self.frame_of(PageId(head)));
        let Some(frame) = head else { return Ok(false) };
        let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
        Ok(self.state(frame)? == Some(PageState::Live) && usage == PageUse::Run { index: 0, pages })
    }
}
