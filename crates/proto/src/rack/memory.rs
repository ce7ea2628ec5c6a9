use rackpool_model::{FrameId, FrameWord, Occupants, PageId, PageWord};

use crate::Time;
use crate::exchange::ObjectMemory;
use crate::heat::{Found, Heats};
use crate::lock::{LockHome, LockMemory};
use crate::planted_bugs::Bugs;
use crate::publication::ReservationMemory;
use crate::swap::Frames;

/// The pages of a rack and their words.
pub trait PageWords {
    /// Returns the frame and word of a page of this rack, free pages included. A page that is
    /// arriving is not here yet.
    fn find(&self, page: PageId) -> Option<FrameWord>;
    /// Returns the word of a frame; `None` if there is no such frame.
    fn word(&self, frame: FrameId) -> Option<PageWord>;
}

/// The rack's memory as its machine reads it. The machine changes nothing here: it emits actions,
/// and the shell executes each of them before the machine reads again.
pub trait RackMemory: PageWords + ObjectMemory + ReservationMemory + LockMemory {
    /// Returns a free frame for an arriving page; `None` also while copies are not affordable.
    fn spare(&self) -> Option<FrameId>;
    /// Returns the free pages whose frames have no other use, those to be given away first at the
    /// beginning.
    fn free_pages(&self) -> impl Iterator<Item = PageId>;
    /// Returns live pages that may be given away, or a part of them.
    fn movable_pages(&self) -> impl Iterator<Item = PageId>;
    /// Returns true if the page may move at all.
    fn may_move(&self, page: PageId) -> bool;
    /// Returns true if replicas of the page may exist.
    fn may_share(&self, page: PageId) -> bool;
    /// Returns a free frame for a replica, if enough others remain. No swap uses the `busy` pages'
    /// frames.
    fn frame_for_replica(&self, busy: &dyn Fn(PageId) -> bool) -> Option<FrameId>;
    /// Returns true if so few frames are free that replicas must give theirs back.
    fn is_short_of_frames(&self) -> bool;
    /// Returns true once no access slot of this rack that `occupants` covers names the frame. The
    /// machine has changed the page word and had a barrier executed before; writers that log their
    /// lines execute a fence themselves, so the scan must begin with a full fence of its own.
    fn is_quiesced(&self, frame: FrameId, occupants: Occupants) -> bool;
}

/// The memory and the hotness of its pages, for the machine of swaps.
pub(super) struct View<'a, M, B> {
    pub(super) memory: &'a M,
    pub(super) locks: &'a LockHome<B>,
    pub(super) heats: &'a Heats,
    pub(super) now: Time,
}

impl<M: RackMemory, B: Bugs> Frames for View<'_, M, B> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.memory.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.memory.word(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        self.memory.spare()
    }

    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.memory.free_pages()
    }

    fn coldest(&self, busy: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let movable = self.memory.movable_pages();
        let movable = movable.filter(|page| !busy(*page) && !self.stays(*page));
        movable.min_by_key(|page| (self.heat(*page).milli, *page))
    }

    fn heat(&self, page: PageId) -> Found {
        self.heats.found(self.now, page)
    }

    fn stays(&self, page: PageId) -> bool {
        !self.memory.may_move(page) || self.heats.rests(self.now, page) || self.locks.pins(page)
    }
}
