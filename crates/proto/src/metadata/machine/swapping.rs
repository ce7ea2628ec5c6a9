use core::iter;

use rackpool_model::{Incarnation, RackId};
use rackpool_wire::metadata::{MetadataReply, Refusal};
use rackpool_wire::swap::ToServer;

use super::MetadataMachine;
use crate::Time;
use crate::metadata::batch::Batch;
use crate::metadata::{Action, Change, ConnectionToken};
use crate::planted_bugs::Bugs;
use crate::swap::{ServerEvent, SwapBatch};

impl<B: Bugs> MetadataMachine<B> {
    pub(super) fn swap_deadline(&self) -> Option<Time> {
        self.swaps.as_ref().and_then(|swaps| swaps.server().deadline())
    }

    pub(super) fn rack_sent(
        &mut self,
        from: ConnectionToken,
        rack: RackId,
        incarnation: Incarnation,
        message: ToServer,
    ) {
        match self.may_swap(from, rack, incarnation) {
            Ok(()) => self.feed_swaps(ServerEvent::RackSent(rack, message)),
            Err(refusal) => {
                let reply = MetadataReply::Refused(refusal);
                self.actions.push_back(Action::Push { to: from, reply });
            }
        }
    }

    /// Checks that a swap message comes from the daemon that serves the rack, over the connection
    /// on which it registered.
    fn may_swap(
        &self,
        from: ConnectionToken,
        rack: RackId,
        incarnation: Incarnation,
    ) -> Result<(), Refusal> {
        let record = self.settled.racks.get(&rack).ok_or(Refusal::NotMember(rack))?;
        record.check(rack, incarnation)?;
        if !self.membership.is_alive(rack) {
            return Err(Refusal::NotMember(rack));
        }
        self.swaps.as_ref().ok_or(Refusal::NotMember(rack))?.check(rack, from)
    }

    pub(super) fn feed_swaps(&mut self, event: ServerEvent) {
        let position = self.position();
        if let Some(swaps) = &mut self.swaps {
            swaps.handle(self.now, &self.settled.directory, event);
            self.actions.extend(iter::from_fn(|| swaps.poll(position)));
        }
    }

    pub(super) fn has_commits(&self) -> bool {
        self.swaps.as_ref().is_some_and(|swaps| swaps.server().has_batch())
    }

    /// Adds the commits of swaps to this batch.
    pub(super) fn commit_swaps(&mut self, batch: &mut Batch) {
        let position = self.position();
        let Some(swaps) = &mut self.swaps else { return };
        if let Some(SwapBatch { id, moved }) = swaps.next_batch(&self.ahead.directory) {
            batch.swaps = Some(id);
            for change in moved.into_iter().map(Change::PageMoved) {
                let applied = self.ahead.apply(&change);
                debug_assert!(applied.is_ok(), "memories that racks serve: {applied:?}");
                batch.changes.push(change);
            }
        }
        self.actions.extend(iter::from_fn(|| swaps.poll(position)));
    }
}
