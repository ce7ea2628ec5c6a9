use std::collections::{BTreeSet, HashMap};

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState, PageWord};
use rackpool_proto::Time;
use rackpool_proto::heat::{Found, Heats};
use rackpool_proto::swap::Frames;

/// The frames of one rack.
#[derive(Debug)]
pub(super) struct Memory {
    words: Vec<PageWord>,
    /// The frames of pages that are here: arrived, or not yet departed.
    at: HashMap<PageId, FrameId>,
    free: BTreeSet<FrameId>,
}

impl Memory {
    /// Makes a memory with a page in each frame; `live` pages are allocated.
    pub(super) fn new(pages: impl IntoIterator<Item = (PageId, bool)>) -> Self {
        let mut memory = Self { words: Vec::new(), at: HashMap::new(), free: BTreeSet::new() };
        for (frame, (page, live)) in (0_u32..).zip(pages) {
            let free = PageWord::free(page);
            let word = if live { free.apply(PageEvent::Allocated).unwrap_or(free) } else { free };
            memory.words.push(free);
            memory.store(FrameId(frame), word);
        }
        memory
    }

    pub(super) fn store(&mut self, frame: FrameId, word: PageWord) {
        let Some(place) = self.words.get_mut(frame.0 as usize) else { return };
        let before = std::mem::replace(place, word);
        if self.at.get(&before.page()) == Some(&frame) {
            self.at.remove(&before.page());
        }
        if !matches!(word.state(), Some(PageState::Arriving | PageState::Leaving)) {
            self.at.insert(word.page(), frame);
        }
        if word.state() == Some(PageState::Free) {
            self.free.insert(frame);
        } else {
            self.free.remove(&frame);
        }
    }

    pub(super) fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.words.get(frame.0 as usize).copied()
    }
}

/// The memory as the machine of a rack reads it.
pub(super) struct View<'a> {
    pub(super) memory: &'a Memory,
    pub(super) heats: &'a Heats,
    pub(super) now: Time,
}

impl Frames for View<'_> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        let frame = *self.memory.at.get(&page)?;
        Some(FrameWord { frame, word: self.memory.word(frame)? })
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.memory.word(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        self.memory.free.first().copied()
    }

    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        let words = self.memory.free.iter().rev().filter_map(|frame| self.memory.word(*frame));
        words.map(PageWord::page)
    }

    fn coldest(&self, busy: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let live = self.memory.words.iter().filter(|word| word.state() == Some(PageState::Live));
        let movable = live.map(|word| word.page()).filter(|page| !busy(*page));
        let movable = movable.filter(|page| !self.stays(*page));
        movable.min_by_key(|page| (self.heat(*page).milli, *page))
    }

    fn heat(&self, page: PageId) -> Found {
        self.heats.found(self.now, page)
    }

    fn stays(&self, page: PageId) -> bool {
        self.heats.rests(self.now, page)
    }
}
