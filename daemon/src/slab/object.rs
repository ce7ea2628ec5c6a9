//! Objects of up to a page.

use rackpool_model::{FrameId, PageEvent, SizeClass};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;

use super::{Candidate, CandidateKind, Slab, SlabError};

impl Slab {
    pub(super) fn peek_object(&mut self, class: SizeClass) -> Result<Option<Candidate>, SlabError> {
        loop {
            let partial = &mut self.partial[usize::from(class.index())];
            let Some(frame) = partial.last().copied() else {
                if !self.open_page(class)? {
                    return Ok(None);
                }
                continue;
            };
            if self.frames[Self::index(frame)].free_objects == 0 {
                partial.pop();
                self.frames[Self::index(frame)].listed = false;
                continue;
            }
            if let Some(index) = self.first_free(frame, class)? {
                let page = self.page_of(frame)?;
                let addr = self.address(page, u64::from(index) << class.bits())?;
                let kind = CandidateKind::Object { frame, class, index };
                return Ok(Some(Candidate { addr, kind }));
            }
            // The count was too high. Correct it.
            self.frames[Self::index(frame)].free_objects = 0;
        }
    }

    fn first_free(&mut self, frame: FrameId, class: SizeClass) -> Result<Option<u32>, SlabError> {
        let objects = class.objects_per_page(self.page_size);
        let bitmap = self.metadata.bitmap(frame, class)?;
        let hint = self.frames[Self::index(frame)].hint as usize;
        for word in (hint..bitmap.len()).chain(0..hint.min(bitmap.len())) {
            let free = !bitmap[word].load(Ordering::Relaxed);
            let index = u32::try_from(word * 64).unwrap_or(u32::MAX) + free.trailing_zeros();
            if free != 0 && index < objects {
                self.frames[Self::index(frame)].hint = u32::try_from(word).unwrap_or(0);
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Makes a free page a page of this class. The page word is stored last: until then the page is
    /// free.
    fn open_page(&mut self, class: SizeClass) -> Result<bool, SlabError> {
        let Some((page, frame)) = self.free_pages.first_key_value() else { return Ok(false) };
        let (page, frame) = (*page, *frame);
        if self.marks.reserve(frame, class).is_err_and(|error| !error.is_unsupported()) {
            return Ok(false);
        }
        self.free_pages.remove(&page);
        self.free_since.remove(&frame);
        self.set_use(frame, PageUse::Slab(class))?;
        for word in self.metadata.bitmap(frame, class)? {
            self.set(word, 0);
        }
        self.step(frame, PageEvent::Allocated)?;
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects = class.objects_per_page(self.page_size);
        state.hint = 0;
        state.listed = true;
        self.partial[usize::from(class.index())].push(frame);
        Ok(true)
    }

    pub(super) fn commit_object(
        &mut self,
        frame: FrameId,
        class: SizeClass,
        index: u32,
    ) -> Result<(), SlabError> {
        let bitmap = self.metadata.bitmap(frame, class)?;
        let word = &bitmap[index as usize / 64];
        let bits = word.load(Ordering::Relaxed) | (1 << (index % 64));
        self.set(word, bits);
        self.frames[Self::index(frame)].free_objects -= 1;
        self.allocated_bytes += class.bytes();
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

    pub(super) fn free_object(
        &mut self,
        frame: FrameId,
        class: SizeClass,
        offset: u64,
    ) -> Result<(), SlabError> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "objects of a page number at most 2^26"
        )]
        let index = (offset >> class.bits()) as u32;
        let word = &self.metadata.bitmap(frame, class)?[index as usize / 64];
        let bits = word.load(Ordering::Relaxed) & !(1 << (index % 64));
        self.set(word, bits);
        self.allocated_bytes -= class.bytes();
        let state = &mut self.frames[Self::index(frame)];
        state.free_objects += 1;
        state.hint = state.hint.min(index / 64);
        let empty = state.free_objects == class.objects_per_page(self.page_size);
        let partial = &mut self.partial[usize::from(class.index())];
        if !state.listed {
            state.listed = true;
            partial.push(frame);
        }
        // One empty page of each class is kept, so that a program that allocates and frees around a
        // page boundary does not open and close pages all the time.
        if empty && partial.len() > 1 {
            self.close_page(frame, class)?;
        }
        Ok(())
    }

    fn close_page(&mut self, frame: FrameId, class: SizeClass) -> Result<(), SlabError> {
        self.partial[usize::from(class.index())].retain(|listed| *listed != frame);
        self.frames[Self::index(frame)].listed = false;
        self.leave(frame)
    }

    /// Closes the empty pages that are kept for their class. Returns true if there were any.
    pub(crate) fn close_empty_pages(&mut self) -> Result<bool, SlabError> {
        let mut any = false;
        for index in 0..self.partial.len() {
            let class = u8::try_from(index)
                .ok()
                .and_then(|index| SizeClass::from_index(index, self.page_size));
            let Some(class) = class else { continue };
            let objects = class.objects_per_page(self.page_size);
            let frames = &self.frames;
            let empty: Vec<FrameId> = self.partial[index]
                .iter()
                .copied()
                .filter(|frame| frames[Self::index(*frame)].free_objects == objects)
                .collect();
            for frame in empty {
                self.close_page(frame, class)?;
                any = true;
            }
        }
        Ok(any)
    }
}
