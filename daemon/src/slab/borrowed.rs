//! Frames that copies of other racks' pages lie in. They are free: their words say so all the time,
//! and a restarted daemon knows nothing of copies. Only this one keeps them from being given away.

use rackpool_model::{FrameId, PageId, PageState, PageWord, SizeClass};

use super::Slab;

impl Slab {
    /// A free frame for a copy, if more than so many stay for others.
    pub(crate) fn frame_to_lend(
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

    /// Keeps a free frame from being given away; whether it is free, or borrowed already.
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

    /// Frames that are borrowed.
    pub(crate) fn borrowed(&self) -> impl Iterator<Item = FrameId> {
        self.borrowed.keys().copied()
    }

    /// No copy is in the frame any more, or on its way.
    pub(crate) fn end_loan(&mut self, frame: FrameId) {
        if let Some(page) = self.borrowed.remove(&frame) {
            self.free_pages.insert(page, frame);
        }
    }

    /// Free frames without copies.
    pub(crate) fn unborrowed_frames(&self) -> usize {
        self.free_pages.len() + self.unreserved.len() + self.ordered.len()
    }

    /// Whether an object of so many bytes could be handed out of a page that is shared if it were
    /// not: or all of its objects are free, so that it is a page for anything.
    pub(crate) fn has_room(&self, page: PageId, bytes: u64) -> bool {
        let Some(frame) = self.frame_of(page) else { return false };
        let Ok(Some(class)) = self.class_of(frame) else { return false };
        let free = self.free_objects(frame);
        let fits = SizeClass::for_bytes(bytes, self.page_size) == Some(class);
        free > 0 && (fits || free == class.objects_per_page(self.page_size))
    }

    /// Pages that are shared with other racks, as their words say.
    pub(crate) fn shared_pages(&self) -> impl Iterator<Item = (FrameId, PageWord)> {
        let all = (0..self.metadata.frames()).map(FrameId);
        let words = all.filter_map(|frame| Some((frame, self.word_of(frame)?)));
        words.filter(|(frame, word)| {
            word.state() == Some(PageState::Shared) && self.frame_of(word.page()) == Some(*frame)
        })
    }
}
