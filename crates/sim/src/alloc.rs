//! Pages that clients allocate and free while pages swap. Any client uses them. A page is freed
//! only after all operations on it have ended, since the pool promises nothing about freed memory.
//! The rules of the rack (no page of a swap, not the last free frames) are those of the shell.

use rackpool_model::{FrameWord, PageEvent, PageId, PageState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::RackEvent;

use crate::objects::Objects;
use crate::rules::RACKS;
use crate::world::World;

/// Free frames that are kept for swaps.
const KEPT: usize = 2;
/// The most pages allocated at once.
const MOST: usize = 6;

impl<B: Bugs> World<B> {
    /// Returns a page that a client has allocated. Sometimes one is allocated or freed here.
    pub(crate) fn allocated_page(&mut self, client: usize) -> Option<PageId> {
        let count = self.allocated.len();
        let what = self.rng.below(20);
        if count == 0 || what < 2 && count < MOST {
            let page = self.allocate(self.clients[client].rack)?;
            self.allocated.push(page);
            return Some(page);
        }
        let index = self.rng.below(count);
        let page = self.allocated[index];
        if what > 4 {
            return Some(page);
        }
        if !self.history.is_used(page) && self.free(page) {
            self.allocated.remove(index);
            self.seen.freed += 1;
        }
        None
    }

    fn allocate(&mut self, rack: usize) -> Option<PageId> {
        let node = &self.racks[rack];
        let daemon = node.daemon.as_ref().filter(|_| node.paused_until <= self.now)?;
        let is_free = |FrameWord { frame, word }: &FrameWord| {
            let busy = daemon.machine.swap().is_busy(word.page());
            word.state() == Some(PageState::Free) && !busy && !daemon.borrowed.contains(frame)
        };
        let free: Vec<_> = node.memory.all().filter(is_free).collect();
        let Some(FrameWord { frame, word }) = free.get(KEPT).copied() else {
            self.feed(rack, RackEvent::FramesNeeded);
            return None;
        };
        let live = word.apply(PageEvent::Allocated).ok()?;
        self.check_not_borrowed(rack, frame);
        self.racks[rack].memory.frame(frame).bytes.fill(0);
        self.racks[rack].memory.frame(frame).objects = Objects::default();
        self.history.begin_life(word.page());
        self.allocated_since.insert(word.page(), self.now);
        self.store(rack, frame, live);
        Some(word.page())
    }

    /// Returns false if the page can't be freed now.
    fn free(&mut self, page: PageId) -> bool {
        let live = |rack: &usize| {
            let found = self.racks[*rack].memory.find(page);
            found.is_some_and(|found| found.word.state() == Some(PageState::Live))
        };
        let Some(rack) = (0..RACKS).find(live) else {
            self.unshare(page);
            return false;
        };
        let node = &self.racks[rack];
        let Some(daemon) = node.daemon.as_ref().filter(|_| node.paused_until <= self.now) else {
            return false;
        };
        let busy = daemon.machine.swap().is_busy(page);
        let found = node.memory.find(page).filter(|_| !busy);
        let Some(FrameWord { frame, word }) = found else { return false };
        let Ok(left) = word.apply(PageEvent::Left) else { return false };
        self.allocated_since.remove(&page);
        self.store(rack, frame, left);
        self.feed(rack, RackEvent::PageFreed { frame, page });
        true
    }

    /// A daemon has started: it frees the pages that its earlier incarnation was freeing. It does
    /// so only if all swap records are valid, since a leaving frame could otherwise be that of a
    /// swap.
    pub(crate) fn resume_freeing(&mut self, rack: usize) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if self.is_damaged(rack) {
            return;
        }
        let left = self.racks[rack].memory.all().filter(|FrameWord { word, .. }| {
            word.state() == Some(PageState::Leaving) && !daemon.machine.swap().is_busy(word.page())
        });
        for FrameWord { frame, word } in left.collect::<Vec<_>>() {
            self.feed(rack, RackEvent::PageFreed { frame, page: word.page() });
        }
    }
}
