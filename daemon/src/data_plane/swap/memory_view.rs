//! The swap machine's view of the rack's memory.

use rackpool_model::{FrameId, FrameWord, PageId, PageWord};
use rackpool_proto::Time;
use rackpool_proto::heat::{Found, Heats};
use rackpool_proto::swap::{Frames, Offered};

use crate::slab::Slab;

/// Number of frames examined in a search for the coldest page.
const LOOK: u32 = 4096;

/// The memory at one point in time.
pub(super) struct View<'a> {
    pub(super) slab: &'a Slab,
    pub(super) heats: &'a Heats,
    pub(super) now: Time,
    /// Whether the bandwidth budget allows copies now.
    pub(super) may_copy: bool,
    /// Whether this rack gives pages away.
    pub(super) may_give: bool,
    /// The frame at which the search for the coldest page begins.
    pub(super) cursor: u32,
}

impl Frames for View<'_> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.slab.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.slab.word_of(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        self.slab.spare().filter(|_| self.may_copy)
    }

    fn offer(&self, busy: &dyn Fn(PageId) -> bool) -> Option<Offered> {
        if let Some(page) = self.slab.free_page_to_give(busy) {
            return Some(Offered { page, hot: false });
        }
        // Without a spare frame the arriving page has no place.
        self.slab.spare()?;
        let movable = self.slab.movable_pages(self.cursor, LOOK);
        let movable = movable.filter(|page| !busy(*page) && !self.stays(*page));
        let (found, page) = movable
            .map(|page| (self.heat(page), page))
            .min_by_key(|(found, page)| (found.milli, *page))?;
        Some(Offered { page, hot: found.hot })
    }

    fn heat(&self, page: PageId) -> Found {
        self.heats.found(self.now, page)
    }

    fn stays(&self, page: PageId) -> bool {
        !self.may_give || self.heats.rests(self.now, page) || !self.slab.is_of_objects(page)
    }
}
