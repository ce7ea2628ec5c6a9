//! Pages that clients allocate and free while pages swap. Any client uses them. A page is freed
//! only after all operations on it have ended, since the pool promises nothing about freed memory.
//! The rules of the rack (no page of a swap, not the last free frames) are those of the shell.

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState};
use rackpool_proto::lease::{HomeEvent, Users};
use rackpool_proto::planted_bugs::{Bug, Bugs};

use crate::daemon::Input;
use crate::memory::Memory;
use crate::rules::RACKS;
use crate::world::World;

/// Free frames that are kept for swaps.
const KEPT: usize = 2;
/// The most pages allocated at once.
const MOST: usize = 6;

/// A page being freed: its word is leaving, and accesses to its frame may still run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freeing {
    page: PageId,
    frame: FrameId,
    /// No lease is out.
    clean: bool,
}

impl Freeing {
    pub(crate) fn is_over(&self, memory: &Memory) -> bool {
        self.clean && memory.is_quiesced(self.frame, |_| true)
    }
}

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
            let copying = daemon.copies.uses(*frame) == Some(true);
            word.state() == Some(PageState::Free) && !daemon.swap.is_busy(word.page()) && !copying
        };
        let free: Vec<_> = node.memory.all().filter(is_free).collect();
        let FrameWord { frame, word } = *free.get(KEPT)?;
        let live = word.apply(PageEvent::Allocated).ok()?;
        self.take_frame(rack, frame);
        self.racks[rack].memory.frame(frame).bytes.fill(0);
        self.history.begin_life(word.page());
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
        let busy = daemon.swap.is_busy(page);
        let found = node.memory.find(page).filter(|_| !busy);
        let Some(FrameWord { frame, word }) = found else { return false };
        let Ok(left) = word.apply(PageEvent::Left) else { return false };
        self.store(rack, frame, left);
        self.begin_freeing(rack, page, frame);
        true
    }

    fn begin_freeing(&mut self, rack: usize, page: PageId, frame: FrameId) {
        let clean = self.bugs.has(Bug::FreeUnderLeases);
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.frees.push(Freeing { page, frame, clean });
        }
        if clean {
            self.wake_rack(rack);
        } else {
            self.feed(rack, Input::Home(HomeEvent::PageNeeded(page, Users::Everyone)));
        }
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
            word.state() == Some(PageState::Leaving) && !daemon.swap.is_busy(word.page())
        });
        for FrameWord { frame, word } in left.collect::<Vec<_>>() {
            self.begin_freeing(rack, word.page(), frame);
        }
    }

    /// All leases of the page are back.
    pub(crate) fn freeing_clean(&mut self, rack: usize, page: PageId) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        for freeing in daemon.frees.iter_mut().filter(|freeing| freeing.page == page) {
            freeing.clean = true;
        }
        self.look_at_frees(rack);
    }

    pub(crate) fn look_at_frees(&mut self, rack: usize) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        let (over, left): (Vec<Freeing>, _) =
            daemon.frees.iter().partition(|freeing| freeing.is_over(&node.memory));
        daemon.frees = left;
        for Freeing { page, frame, .. } in over {
            let word = self.racks[rack].memory.frame(frame).word;
            match word.apply(PageEvent::Quiesced) {
                Ok(free) if word.page() == page => {
                    self.store(rack, frame, free);
                    if let Some(daemon) = &mut self.racks[rack].daemon {
                        daemon.heats.freed(page);
                    }
                }
                _ => self.breaks(|| format!("{page} was freed, and its frame now says {word:?}")),
            }
        }
    }
}
