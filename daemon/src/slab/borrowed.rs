//! Frames that hold copies of other racks' pages. Their page words are free all the time, and a
//! restarted daemon knows no copies; only this module keeps the frames from being allocated.

use rackpool_model::{FrameId, FrameWord, PageId, PageState, PageWord, SizeClass};

use super::Slab;

impl Slab {
    /// Returns a free frame for a copy, if more than `stay` frames remain for other uses.
    pub(crate) fn frame_to_borrow(
        &self,
        stay: usize,
        busy: &dyn Fn(PageId) -> bool,
    ) -> Option<FrameId> {
        if self.unborrowed_frames() <= stay {
            return None;
        }
        let mut free = self.free_pages.iter().rev();
        free.find(|(page, _)| !busy(**page)).map(|(_, frame)| *frame)
    }

    /// Keeps a free frame from being allocated. Returns true if the frame was free or is borrowed
    /// already.
    pub(crate) fn borrow(&mut self, frame: FrameId) -> bool {
        if self.borrowed.contains_key(&frame) {
            return true;
        }
        let free = self.word_of(frame).filter(|word| word.state() == Some(PageState::Free));
        let Some(page) = free.map(PageWord::page) else { return false };
        if self.free_pages.remove(&page).is_none() {
            return false;
        }
        self.free_since.remove(&frame);
        self.borrowed.insert(frame, page);
        true
    }

    /// Returns the borrowed frames.
    pub(crate) fn borrowed(&self) -> impl Iterator<Item = FrameId> {
        self.borrowed.keys().copied()
    }

    /// Ends the borrowing of a frame that holds and receives no copy.
    pub(crate) fn end_loan(&mut self, frame: FrameId) {
        if let Some(page) = self.borrowed.remove(&frame) {
            self.free_pages.insert(page, frame);
        }
    }

    /// Returns the number of free frames without copies.
    pub(crate) fn unborrowed_frames(&self) -> usize {
        self.free_pages.len() + self.unreserved.len() + self.ordered.len()
    }

    /// Returns true if an object of `bytes` bytes could be allocated in a shared page after its
    /// sharing, or if all of its objects are free, so that the page can be used for anything.
    pub(crate) fn has_room(&self, page: PageId, bytes: u64) -> bool {
        let Some(frame) = self.frame_of(page) else { return false };
        let Ok(Some(class)) = self.class_of(frame) else { return false };
        let free = self.free_objects(frame);
        let fits = SizeClass::for_bytes(bytes, self.page_size) == Some(class);
        free > 0 && (fits || free == class.objects_per_page(self.page_size))
    }

    /// Returns the pages that are shared with other racks, by their words.
    pub(crate) fn shared_pages(&self) -> impl Iterator<Item = FrameWord> {
        let all = (0..self.metadata.frames()).map(FrameId);
        let words = all.filter_map(|frame| Some(FrameWord { frame, word: self.word_of(frame)? }));
        words.filter(|FrameWord { frame, word }| {
            word.state() == Some(PageState::Shared) && self.frame_of(word.page()) == Some(*frame)
        })
    }
}
