//! Objects of up to a page.

use rackpool_model::{FrameId, PageEvent, PageId, SizeClass};
use rackpool_sync::atomic::Ordering;

use super::{Candidate, CandidateKind, ObjectAt, Slab, SlabError, SlabUse};

impl Slab {
    /// Returns a free object of a page of this use, or the first object of a free page.
    pub(super) fn peek_object(&self, slab: SlabUse) -> Result<Option<Candidate>, SlabError> {
        for frame in self.partial[slab.list()].iter().rev() {
            if let Some(index) = self.first_free(*frame, slab.class)? {
                let page = self.page_of(*frame)?;
                return self.candidate_in(page, *frame, slab, index).map(Some);
            }
        }
        if slab.is_fixed && self.pages_for_fixed() == 0 {
            return Ok(None);
        }
        let free = self.free_pages.first_key_value();
        free.map(|(page, frame)| self.candidate_in(*page, *frame, slab, 0)).transpose()
    }

    fn candidate_in(
        &self,
        page: PageId,
        frame: FrameId,
        slab: SlabUse,
        index: u32,
    ) -> Result<Candidate, SlabError> {
        let addr = self.address(page, u64::from(index) << slab.class.bits())?;
        Ok(Candidate { addr, kind: CandidateKind::Object { frame, slab, index } })
    }

    fn first_free(&self, frame: FrameId, class: SizeClass) -> Result<Option<u32>, SlabError> {
        let objects = class.objects_per_page(self.page_size);
        let bitmap = self.metadata.bitmap(frame, class)?;
        let hint = self.frames[Self::index(frame)].hint as usize;
        for word in (hint..bitmap.len()).chain(0..hint.min(bitmap.len())) {
            let free = !bitmap[word].load(Ordering::Relaxed);
            let index = u32::try_from(word * 64).unwrap_or(u32::MAX) + free.trailing_zeros();
            if free != 0 && index < objects {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Makes a free page a page of this use. The page word is stored last: until then the page is
    /// free. Returns false if there is no memory for its marks.
    pub(super) fn open_page(&mut self, frame: FrameId, slab: SlabUse) -> Result<bool, SlabError> {
        let class = slab.class;
        if self.marks.reserve(frame, class).is_err_and(|error| !error.is_unsupported()) {
            return Ok(false);
        }
        let page = self.page_of(frame)?;
        self.free_pages.remove(&page);
        self.free_since.remove(&frame);
        self.set_use(frame, slab.page_use())?;
        for word in self.metadata.bitmap(frame, class)? {
            self.set(word, 0);
        }
        self.step(frame, PageEvent::Allocated)?;
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects = class.objects_per_page(self.page_size);
        state.hint = 0;
        state.listed = true;
        self.partial[slab.list()].push(frame);
        Ok(true)
    }

    pub(super) fn commit_object(
        &mut self,
        frame: FrameId,
        slab: SlabUse,
        index: u32,
    ) -> Result<(), SlabError> {
        let bitmap = self.metadata.bitmap(frame, slab.class)?;
        let word = &bitmap[index as usize / 64];
        let bits = word.load(Ordering::Relaxed) | (1 << (index % 64));
        self.set(word, bits);
        self.allocated_bytes += slab.class.bytes();
        self.fixed.add_objects(slab, 1);
        let state = &mut self.frames[Self::index(frame)];
        state.hint = index / 64;
        state.free_objects = state.free_objects.saturating_sub(1);
        if state.free_objects == 0 && state.listed {
            state.listed = false;
            self.partial[slab.list()].retain(|listed| *listed != frame);
        }
        Ok(())
    }

    pub(super) fn object_is_used(&self, frame: FrameId, class: SizeClass, offset: u64) -> bool {
        if offset & (class.bytes() - 1) != 0 {
            return false;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "objects of a page number at most 2^26"
        )]
        let index = (offset >> class.bits()) as u32;
        let Ok(bitmap) = self.metadata.bitmap(frame, class) else { return false };
        bitmap
            .get(index as usize / 64)
            .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (index % 64)) != 0)
    }

    pub(super) fn free_object(&mut self, at: ObjectAt) -> Result<(), SlabError> {
        let ObjectAt { frame, slab, index } = at;
        let class = slab.class;
        let word = &self.metadata.bitmap(frame, class)?[index as usize / 64];
        let bits = word.load(Ordering::Relaxed) & !(1 << (index % 64));
        self.set(word, bits);
        self.allocated_bytes -= class.bytes();
        self.fixed.remove_object(slab);
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects += 1;
        state.hint = state.hint.min(index / 64);
        let empty = state.free_objects == class.objects_per_page(self.page_size);
        let partial = &mut self.partial[slab.list()];
        if !state.listed {
            state.listed = true;
            partial.push(frame);
        }
        // One empty page of each use is kept, so that a program that allocates and frees around a
        // page boundary does not open and close pages all the time.
        if empty && partial.len() > 1 {
            self.close_page(frame, slab)?;
        }
        Ok(())
    }

    fn close_page(&mut self, frame: FrameId, slab: SlabUse) -> Result<(), SlabError> {
        self.partial[slab.list()].retain(|listed| *listed != frame);
        self.frames[Self::index(frame)].listed = false;
        self.leave(frame)
    }

    /// Closes the empty pages that are kept for their use. Returns true if there were any.
    pub(crate) fn close_empty_pages(&mut self) -> Result<bool, SlabError> {
        let mut any = false;
        let page_size = self.page_size;
        let classes = (0..SizeClass::count(page_size))
            .filter_map(|index| SizeClass::from_index(index, page_size));
        for slab in
            classes.flat_map(|class| [false, true].map(|is_fixed| SlabUse { class, is_fixed }))
        {
            let objects = slab.class.objects_per_page(page_size);
            let frames = &self.frames;
            let empty: Vec<FrameId> = self.partial[slab.list()]
                .iter()
                .copied()
                .filter(|frame| frames[Self::index(*frame)].free_objects == objects)
                .collect();
            for frame in empty {
                self.close_page(frame, slab)?;
                any = true;
            }
        }
        Ok(any)
    }
}
