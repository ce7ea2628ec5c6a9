//! Replicas: those that other racks request of pages of this rack, and those that this rack keeps.

use alloc::collections::BTreeMap;

use rackpool_model::{Access, FrameId, PageId};

use super::{RackAction, RackMachine, RackMemory};
use crate::Time;
use crate::lease::{HolderEvent, Lease, LeaseKind, TimedLease};
use crate::planted_bugs::{Bug, Bugs};
use crate::share::{CopiesAction, CopiesEvent, ShareEvent, SharingId};

/// When a lease for a replica was last requested.
#[derive(Debug, Default)]
pub(super) struct ReplicaRequests {
    asked: BTreeMap<PageId, Time>,
}

impl<B: Bugs> RackMachine<B> {
    /// Another rack requests a replica.
    pub(super) fn replica_requested(&mut self, now: Time, memory: &impl RackMemory, page: PageId) {
        if self.rules.shares && memory.may_share(page) && self.is_hardly_written(page) {
            let busy = self.swap.is_busy(page);
            self.tell_shares(now, memory, ShareEvent::Wanted { page, busy });
        }
    }

    /// A page of another rack is read often and its home does not give it away.
    pub(super) fn replica_wanted(&mut self, now: Time, memory: &impl RackMemory, page: PageId) {
        if self.rules.shares && self.is_hardly_written(page) {
            self.tell_copies(now, CopiesEvent::Wanted(page));
            self.request_replica(now, memory, page);
        }
    }

    /// Requests a lease that permits a replica, if a replica is wanted and the rack has no such
    /// lease.
    pub(super) fn request_replica(&mut self, now: Time, memory: &impl RackMemory, page: PageId) {
        // The page may have moved here since it was read remotely.
        if !self.copies.is_wanted(page) || memory.find(page).is_some() {
            return;
        }
        let lease = self.holder.lease_until(now, page);
        let enough = lease.is_some_and(|found| matches!(found.lease.kind, LeaseKind::Share(_)));
        let again = self.rules.share.retry;
        let recently = self.replicas.asked.get(&page).is_some_and(|at| now < at.after(again));
        let home = self.locations.of(page).map(|found| found.home);
        let Some(home) = home.filter(|_| !enough && !recently) else { return };
        let copies = &self.copies;
        self.replicas.asked.retain(|page, _| copies.is_wanted(*page));
        self.replicas.asked.insert(page, now);
        self.ask_for_lease(now, page, home, Access::Read);
    }

    /// A lease was granted or a copy has ended: a replica may now be copied or published.
    pub(super) fn keep_replica(&mut self, now: Time, memory: &impl RackMemory, page: PageId) {
        if !self.copies.is_wanted(page) {
            return;
        }
        let Some(found) = self.holder.lease_until(now, page) else { return };
        let TimedLease { lease, until } = found;
        let swap = &self.swap;
        let spare = memory.frame_for_replica(&|page| swap.may_use(page));
        self.tell_copies(now, CopiesEvent::Leased { page, lease, until, spare });
    }

    /// Drops replicas if their frames are needed. Returns true if there were any.
    pub(super) fn relieve(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        let is_short = self.copies.has_idle() && memory.is_short_of_frames();
        if is_short {
            self.drop_replicas(now);
        }
        is_short
    }

    /// Drops the replicas that are not being copied, since other uses need their frames.
    pub(super) fn drop_replicas(&mut self, now: Time) {
        for frame in self.copies.idle_frames() {
            self.tell_copies(now, CopiesEvent::Taken(frame));
        }
    }

    pub(super) fn tell_copies(&mut self, now: Time, event: CopiesEvent) {
        let is_taken = matches!(event, CopiesEvent::Taken(_));
        self.copies.handle(now, event);
        self.is_due_stale = true;
        while let Some(action) = self.copies.poll() {
            match action {
                CopiesAction::Copy { page, sharing, ours } => {
                    self.begin_replica(now, page, sharing, ours);
                }
                CopiesAction::Publish { ours, copy, until } => {
                    if let Some(page) = self.copies.published_in(ours) {
                        let publish = RackAction::PublishReplica { page, ours, copy, until };
                        self.actions.push_back(publish);
                    }
                }
                CopiesAction::Hide(_) if is_taken && self.bugs.has(Bug::ShowWhatIsTaken) => {}
                CopiesAction::Hide(ours) => {
                    self.actions.push_back(RackAction::HideReplica(ours));
                }
            }
        }
    }

    fn begin_replica(&mut self, now: Time, page: PageId, sharing: SharingId, ours: FrameId) {
        match self.begin(now, page, Access::Read) {
            Some(lease) if lease.kind == LeaseKind::Share(sharing) => {
                self.actions.push_back(RackAction::CopyReplica { page, lease, ours });
            }
            Some(Lease { endpoint, .. }) => {
                self.tell_holder(now, HolderEvent::OperationEnded(page, endpoint, Access::Read));
                self.copies.handle(now, CopiesEvent::Copied { page, whole: false });
            }
            None => self.copies.handle(now, CopiesEvent::Copied { page, whole: false }),
        }
    }
}
