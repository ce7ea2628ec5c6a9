//! The shells of sharing: a home that shares its pages, and a rack that keeps replicas.

use std::collections::VecDeque;

use rackpool_model::{Access, FrameId, PageId, PageState};
use rackpool_proto::lease::{HolderEvent, HomeEvent, LeaseKind, TimedLease, Users};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::share::{CopiesAction, CopiesEvent, ShareAction, ShareEvent, SharingId};
use rackpool_proto::swap::Quiesce;

use crate::daemon::Input;
use crate::memory::View;
use crate::quiesce::{Waiter, Whose};
use crate::world::World;

impl<B: Bugs> World<B> {
    pub(crate) fn do_shares(
        &mut self,
        rack: usize,
        action: ShareAction,
        inputs: &mut VecDeque<Input>,
    ) {
        match action {
            ShareAction::Store(frame, word) => {
                self.store(rack, frame, word);
                self.look_soon(rack);
            }
            ShareAction::Quiesce(frame, page) => {
                let (whose, who) = (Whose::Share, Quiesce::Writers);
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.quiesces.push(Waiter { whose, frame, page, who, clean: false });
                }
                inputs.push_back(Input::Home(HomeEvent::PageNeeded(page, Users::Writers)));
            }
            ShareAction::CancelQuiesce(page) => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    let waits = |one: &Waiter| one.page == page && one.whose == Whose::Share;
                    daemon.quiesces.retain(|waiter| !waits(waiter));
                }
                inputs.push_back(Input::Home(HomeEvent::PageSpared(page)));
            }
        }
    }

    pub(crate) fn do_copies(&mut self, rack: usize, action: CopiesAction) {
        match action {
            CopiesAction::Copy { page, sharing, ours } => {
                self.begin_keeping(rack, page, sharing, ours);
            }
            CopiesAction::Publish { ours, copy, until } => {
                let shown = self.racks[rack].memory.shown(ours);
                (shown.until, shown.copy) = (until, Some(copy));
                // Requests that wait for the page may read the replica.
                self.look_soon(rack);
            }
            CopiesAction::Hide(ours) => self.racks[rack].memory.shown(ours).copy = None,
        }
    }

    fn begin_keeping(&mut self, rack: usize, page: PageId, sharing: SharingId, ours: FrameId) {
        let now = self.local_time(rack);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        match daemon.holder.begin(now, page, Access::Read) {
            Some(lease) if lease.kind == LeaseKind::Share(sharing) => {
                return self.post_keep(rack, page, lease, ours);
            }
            Some(lease) => {
                let ended = HolderEvent::OperationEnded(page, lease.endpoint, Access::Read);
                daemon.holder.handle(now, ended);
            }
            None => {}
        }
        daemon.copies.handle(now, CopiesEvent::Copied { page, whole: false });
    }

    /// Copies or publishes a replica, if one is wanted and a lease permits it.
    pub(crate) fn keep(&mut self, rack: usize, page: PageId) {
        let now = self.local_time(rack);
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let Some(found) = daemon.holder.lease_until(now, page) else { return };
        let TimedLease { lease, until } = found;
        let (heats, copies) = (&daemon.heats, &daemon.copies);
        let view = View { memory: &node.memory, heats, copies, now };
        let busy = |page| daemon.swap.is_busy(page) || daemon.swap.offers(page);
        let spare = view.spare_for_copy(busy);
        self.feed(rack, Input::Copies(CopiesEvent::Leased { page, lease, until, spare }));
    }

    /// A client has read a replica; its daemon sees a sample of such reads.
    pub(crate) fn copy_used(&mut self, rack: usize, page: PageId) {
        let (now, told) = (self.local_time(rack), self.rng.percent(50));
        let runs = self.racks[rack].paused_until <= self.now;
        if let Some(daemon) = &mut self.racks[rack].daemon
            && told
            && runs
        {
            daemon.holder.used_by_copy(now, page);
            self.renew_used(rack);
        }
    }

    /// The home of a page calls its lease back.
    pub(crate) fn hide_revoked(&mut self, rack: usize, page: PageId) {
        self.feed(rack, Input::Copies(CopiesEvent::Revoked(page)));
    }

    /// The frame is reused: its replica is hidden first.
    pub(crate) fn take_frame(&mut self, rack: usize, frame: FrameId) {
        let now = self.local_time(rack);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if daemon.copies.uses(frame) == Some(true) {
            return self.breaks(|| format!("{frame} of rack {rack} is given away under a copy"));
        }
        daemon.copies.handle(now, CopiesEvent::Taken(frame));
        while let Some(daemon) = &mut self.racks[rack].daemon
            && let Some(action) = daemon.copies.poll()
        {
            if !self.bugs.has(Bug::ShowWhatIsTaken) {
                self.do_copies(rack, action);
            }
        }
    }

    /// A client needs to do what a shared page does not permit.
    pub(crate) fn unshare(&mut self, page: PageId) {
        for rack in 0..self.racks.len() {
            let node = &self.racks[rack];
            let found = node.memory.find(page).map(|found| found.word.state());
            if found == Some(Some(PageState::Shared)) && node.paused_until <= self.now {
                self.feed(rack, Input::Shares(ShareEvent::Needed(page)));
            }
        }
    }

    pub(crate) fn is_shared_somewhere(&self, page: PageId) -> bool {
        let mut words = self.racks.iter().flat_map(|rack| rack.memory.all());
        words
            .any(|found| found.word.page() == page && found.word.state() == Some(PageState::Shared))
    }
}
