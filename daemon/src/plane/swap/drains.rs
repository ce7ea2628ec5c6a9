//! Waiting until nobody writes a page any more, or is in it: no lease of it is out, and no access
//! slot of this rack names its frame.

use rackpool_model::{FrameId, PageId};
use rackpool_proto::lease::Users;
use rackpool_proto::swap::{Drain, RackEvent};
use rackpool_shm::access::{self, is_drained};
use rackpool_sync::barrier;
use rackpool_wire::swap::SwapId;

use crate::plane::DataPlane;

/// A frame that somebody must leave.
#[derive(Clone, Copy, Debug)]
struct Draining {
    swap: SwapId,
    frame: FrameId,
    page: PageId,
    who: Drain,
    /// No lease of the page is out.
    clean: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Drains {
    all: Vec<Draining>,
    /// A word was changed since the last barrier.
    changed: bool,
}

impl Drains {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn clean(&mut self, page: PageId, users: Users) {
        let waits = |draining: &&mut Draining| {
            let for_writers = draining.who == Drain::Writers;
            draining.page == page && (for_writers || users == Users::Everyone)
        };
        for draining in self.all.iter_mut().filter(waits) {
            draining.clean = true;
        }
    }
}

impl DataPlane {
    pub(super) fn begin_drain(
        &mut self,
        swap: SwapId,
        frame: FrameId,
        page: PageId,
        who: Drain,
    ) -> anyhow::Result<()> {
        // Everyone's turn comes last: the leases are back, and nobody has entered since the barrier.
        let (users, clean) = match who {
            Drain::Writers => (Users::Writers, false),
            Drain::Holders => (Users::Everyone, false),
            Drain::Everyone => (Users::Everyone, true),
        };
        self.swaps.drains.all.push(Draining { swap, frame, page, who, clean });
        if clean {
            return Ok(());
        }
        self.swaps.drains.changed = true;
        self.page_needed(page, users)
    }

    pub(super) fn end_drain(&mut self, swap: SwapId, page: PageId) -> anyhow::Result<()> {
        self.swaps.drains.all.retain(|draining| draining.swap != swap);
        self.page_spared(page)
    }

    /// No other rack writes the page any more, or uses it.
    pub(in crate::plane) fn swap_page_clean(&mut self, page: PageId, users: Users) {
        // What follows is looked at in the next round, or by whoever is at it already.
        self.swaps.drains.clean(page, users);
    }

    /// Tells the machine which frames are drained; whether there were any.
    pub(super) fn look_at_drains(&mut self) -> bool {
        if self.swaps.drains.is_empty() {
            return false;
        }
        if std::mem::take(&mut self.swaps.drains.changed) {
            barrier::heavy();
        }
        let mut drained = Vec::new();
        let clients = &self.clients;
        self.swaps.drains.all.retain(|draining| {
            let left = |who| is_drained(draining.frame, who, clients.access_slots());
            let out = draining.clean
                && match draining.who {
                    Drain::Writers => left(access::Drain::Writers),
                    // Those of this rack see bytes that stay until they are out, too.
                    Drain::Holders => true,
                    Drain::Everyone => left(access::Drain::Everyone),
                };
            if out {
                drained.push(RackEvent::Drained(draining.swap, draining.who));
            }
            !out
        });
        let any = !drained.is_empty();
        self.swaps.inputs.extend(drained);
        any
    }
}
