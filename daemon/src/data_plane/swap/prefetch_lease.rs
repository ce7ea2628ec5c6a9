//! Lease prefetch: before a page that leaves can't be read here any more, this rack gets a lease of
//! it at its new home, so that readers have to ask only this daemon.

use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{PageId, RackId};
use rackpool_proto::lease::LeaseKind;
use rackpool_proto::swap::RackEvent;
use rackpool_wire::peer::PeerRequest;
use rackpool_wire::swap::SwapId;

use crate::data_plane::DataPlane;
use crate::data_plane::lookup::LeaseAnswer;
use crate::data_plane::peers::Purpose;

impl DataPlane {
    /// Requests a lease from the new home. The new home answers when the page can be read there.
    pub(super) fn begin_lease_prefetch(
        &mut self,
        now: Instant,
        swap: SwapId,
        page: PageId,
        to: RackId,
    ) -> anyhow::Result<()> {
        let Some(endpoint) = self.peers.connected_endpoint(to) else {
            self.swaps.inputs.push_back(RackEvent::LeasePrefetched(swap));
            return Ok(());
        };
        let question = self.leases.ask(now, page);
        let purpose = Purpose::PrefetchLease { swap, page, question };
        let request = PeerRequest::PrefetchLease { swap, page };
        self.ask_over(endpoint, request, purpose, now + self.lease)
    }

    /// The new home has answered the request, possibly that the page has not come.
    pub(in crate::data_plane) fn lease_prefetched(
        &mut self,
        swap: SwapId,
        answer: LeaseAnswer<'_>,
    ) -> anyhow::Result<()> {
        let for_writing = if self.swaps.machine.has_to_leave(answer.page) {
            LeaseKind::WriteOnceQuiesced
        } else {
            LeaseKind::Write
        };
        self.renewed(answer, for_writing)?;
        self.not_prefetched(swap)
    }

    /// Returns true if the page has come from the rack at this endpoint with this swap, and that
    /// rack has not reported it as quiesced yet.
    pub(in crate::data_plane) fn has_come_by(
        &self,
        swap: SwapId,
        page: PageId,
        endpoint: EndpointId,
    ) -> bool {
        let rack = self.peers.rack_at(endpoint);
        rack.is_some_and(|rack| self.swaps.machine.has_come_by(swap, page, rack))
    }

    /// There is no answer: readers look the page up as usual.
    pub(in crate::data_plane) fn not_prefetched(&mut self, swap: SwapId) -> anyhow::Result<()> {
        self.tell_swaps(RackEvent::LeasePrefetched(swap))
    }
}
