//! Pages that come and go by swaps: the allocator's derived state of a frame follows its page word,
//! and a page's header and bitmap move with its bytes.
//!
//! A frozen page keeps its bits: no object in it is allocated or freed. An arriving page counts as
//! present only when its word is frozen.

use std::sync::Arc;

use rackpool_model::{Epoch, FrameId, PageId, PageState, PageWord, SizeClass};
use rackpool_proto::swap::{Phase, Record};
use rackpool_shm::metadata::{PageUse, RackMetadata};
use rackpool_sync::atomic::Ordering;

use super::{LocalPage, Slab, SlabError, SlabUse};

/// The header and the bitmap of a page, for its new home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The use of the page, from its slab header.
    pub(crate) usage: u64,
    /// One bit for each object, set if in use; 8 bytes at a time, little endian.
    pub(crate) bitmap: Vec<u8>,
}

/// Why a page's header and bitmap are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadContents {
    #[error("a page arrived with an invalid slab header or bitmap")]
    Wrong,
    #[error("a page can't be taken over: no memory for the marks of its objects")]
    NoMemory,
}

/// Returns the frames of committed swaps whose page has gone and that wait for their last reader;
/// `None` if a record is damaged, because the frames are then unknown.
pub(super) fn departed(metadata: &RackMetadata) -> Result<Option<Vec<FrameId>>, SlabError> {
    let mut departed = Vec::new();
    for record in metadata.swaps()? {
        let words = std::array::from_fn(|word| record.words[word].load(Ordering::Acquire));
        match Record::from_words(&words) {
            Ok(Some(Record { phase: Phase::Committed, out, out_frame: Some(frame), .. }))
                if metadata.word(frame).is_ok_and(|word| {
                    PageWord::from_raw(word.load(Ordering::Acquire)).page() == out.page
                }) =>
            {
                departed.push(frame);
            }
            Ok(_) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(departed))
}

impl Slab {
    /// Stores the words of a swap's record in the rack metadata.
    pub(crate) fn note_swap(&self, slot: usize, words: &[u64]) -> Result<(), SlabError> {
        let metadata = Arc::clone(&self.metadata);
        let Some(record) = metadata.swaps()?.get(slot) else { return Ok(()) };
        // The first word is stored last: it makes the record valid.
        for (cell, word) in record.words.iter().zip(words).skip(1) {
            self.set(cell, *word);
        }
        if let (Some(cell), Some(word)) = (record.words.first(), words.first()) {
            self.set(cell, *word);
        }
        Ok(())
    }

    /// Erases a swap's record.
    pub(crate) fn erase_swap(&self, slot: usize) -> Result<(), SlabError> {
        if let Some(record) = self.metadata.swaps()?.get(slot) {
            self.set(&record.words[0], 0);
        }
        Ok(())
    }

    /// Stores the page word that a swap gives a frame, and updates the derived state.
    pub(crate) fn follow_swap(&mut self, frame: FrameId, next: PageWord) -> Result<(), SlabError> {
        let was = self.word(frame)?;
        self.forget_frame(frame, was, next)?;
        if next.state() == Some(PageState::Free) {
            self.set_use(frame, PageUse::Unused)?;
        }
        self.set(self.metadata.word(frame)?, next.raw());
        self.know_frame(frame, was, next)
    }

    fn forget_frame(
        &mut self,
        frame: FrameId,
        was: PageWord,
        next: PageWord,
    ) -> Result<(), SlabError> {
        match was.state() {
            Some(PageState::Free) => {
                self.free_pages.remove(&was.page());
                // The daemon that chose the frame had allocated its memory.
                self.unreserved.remove(&was.page());
                self.free_since.remove(&frame);
            }
            Some(PageState::Live) => self.unlist(frame)?,
            _ => {}
        }
        let goes = next.state() == Some(PageState::Leaving);
        if goes && let Some(class) = self.class_of(frame)? {
            let used = class.objects_per_page(self.page_size) - self.free_objects(frame);
            self.allocated_bytes -= u64::from(used) * class.bytes();
        }
        if (goes || was.page() != next.page())
            && self.table.elsewhere.get(&was.page()).is_some_and(|found| *found == frame)
        {
            self.table.elsewhere.remove(&was.page());
        }
        Ok(())
    }

    fn know_frame(
        &mut self,
        frame: FrameId,
        was: PageWord,
        next: PageWord,
    ) -> Result<(), SlabError> {
        match (was.state(), next.state()) {
            (_, Some(PageState::Free)) => {
                self.departed.remove(&frame);
                self.know_page(next.page(), frame);
                self.free_pages.insert(next.page(), frame);
            }
            (_, Some(PageState::Leaving)) => {
                self.departed.insert(frame);
            }
            (Some(PageState::Arriving), Some(PageState::Frozen)) => {
                self.know_page(next.page(), frame);
                if let Some(class) = self.class_of(frame)? {
                    self.count_objects(frame, class)?;
                }
            }
            (_, Some(PageState::Live)) => {
                if let Some(class) = self.class_of(frame)? {
                    self.list(frame, SlabUse { class, is_fixed: false });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn know_page(&mut self, page: PageId, frame: FrameId) {
        if self.native(page) != frame {
            self.table.elsewhere.insert(page, frame);
        }
    }

    /// Returns the class of a page that may move and be shared.
    pub(super) fn class_of(&self, frame: FrameId) -> Result<Option<SizeClass>, SlabError> {
        let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
        Ok(match usage {
            PageUse::Slab(class) => Some(class),
            PageUse::Fixed(_) | PageUse::Unused | PageUse::Run { .. } => None,
        })
    }

    pub(super) fn free_objects(&self, frame: FrameId) -> u32 {
        self.frames[Self::index(frame)].free_objects
    }

    /// Removes a frame from the lists, so that no object in it is allocated.
    fn unlist(&mut self, frame: FrameId) -> Result<(), SlabError> {
        if let Some(class) = self.class_of(frame)? {
            let slab = SlabUse { class, is_fixed: false };
            self.partial[slab.list()].retain(|listed| *listed != frame);
        }
        self.frames[Self::index(frame)].listed = false;
        Ok(())
    }

    pub(super) fn list(&mut self, frame: FrameId, slab: SlabUse) {
        let state = &mut self.frames[Self::index(frame)];
        if state.free_objects > 0 && !state.listed {
            state.listed = true;
            self.partial[slab.list()].push(frame);
        }
    }

    /// Returns the word of a frame; `None` if there is no such frame.
    pub(crate) fn word_of(&self, frame: FrameId) -> Option<PageWord> {
        self.word(frame).ok()
    }

    /// Returns a free frame for an arriving page: the last one, because runs are made of the first
    /// ones.
    pub(crate) fn spare(&self) -> Option<FrameId> {
        self.free_pages.values().next_back().copied()
    }

    /// Returns the free pages that a swap may take, the last one first, because runs are made of
    /// the first ones.
    pub(crate) fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.free_pages.keys().rev().copied()
    }

    /// Returns live pages of objects among `count` frames from `first` on, wrapping around.
    pub(crate) fn movable_pages(&self, first: u32, count: u32) -> impl Iterator<Item = PageId> {
        let frames = self.metadata.frames();
        (0..count.min(frames)).filter_map(move |step| {
            let frame = FrameId((first % frames + step) % frames);
            let word = self.word(frame).ok()?;
            let is_slab = self.class_of(frame).ok()?.is_some();
            let is_known = self.frame_of(word.page()) == Some(frame);
            (is_slab && is_known && word.state() == Some(PageState::Live)).then(|| word.page())
        })
    }

    /// Returns true if the page holds objects of up to a page that may move. Pages of a run must
    /// stay adjacent and never move.
    pub(crate) fn is_of_objects(&self, page: PageId) -> bool {
        let frame = self.frame_of(page);
        frame.is_some_and(|frame| self.class_of(frame).is_ok_and(|class| class.is_some()))
    }

    /// Returns the header and the bitmap of a frozen page of this epoch; `None` if the page is not
    /// here or not frozen.
    pub(crate) fn contents(
        &self,
        page: PageId,
        epoch: Epoch,
    ) -> Result<Option<Contents>, SlabError> {
        let Some(found) = self.lookup(page) else { return Ok(None) };
        let LocalPage { frame, word, usage } = found;
        let still = word.state() == Some(PageState::Frozen);
        let Some(class) = self.class_of(frame)?.filter(|_| still && word.epoch() == epoch) else {
            return Ok(None);
        };
        let words = self.metadata.bitmap(frame, class)?;
        let bitmap = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        Ok(Some(Contents { usage, bitmap: bitmap.collect() }))
    }

    /// Stores the header and bitmap of a page that arrives in this frame. They take effect with its
    /// word.
    pub(crate) fn take_contents(
        &self,
        frame: FrameId,
        contents: &Contents,
    ) -> Result<Result<(), BadContents>, SlabError> {
        let usage = PageUse::from_raw(contents.usage, self.page_size);
        let PageUse::Slab(class) = usage else { return Ok(Err(BadContents::Wrong)) };
        let words = self.metadata.bitmap(frame, class)?;
        if self.marks.reserve(frame, class).is_err_and(|error| !error.is_unsupported()) {
            return Ok(Err(BadContents::NoMemory));
        }
        let arrives = self.state(frame)? == Some(PageState::Arriving);
        if !arrives || usage.to_raw() != contents.usage || contents.bitmap.len() != words.len() * 8
        {
            return Ok(Err(BadContents::Wrong));
        }
        let chunks = contents.bitmap.as_chunks::<8>().0;
        for (first, (word, bytes)) in (0..).step_by(64).zip(words.iter().zip(chunks)) {
            let bits = u64::from_le_bytes(*bytes);
            if bits != 0 {
                // The marks of the old home do not move: an object without a mark is with a
                // program.
                self.marks.hand_out_64(frame, first)?;
            }
            self.set(word, bits);
        }
        self.set_use(frame, usage)?;
        Ok(Ok(()))
    }

    /// Returns the size of the longest bitmap in bytes.
    pub(crate) const fn bitmap_bytes(&self) -> u64 {
        self.page_size.bytes() >> (SizeClass::MIN_BITS + 3)
    }
}
