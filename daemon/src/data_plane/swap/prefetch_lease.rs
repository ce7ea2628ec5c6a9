//! Lease prefetch: before a page that leaves can't be read here any more, this rack gets a lease of
//! it at its new home, so that readers have to ask only this daemon.

use std::time::Instant;

use rackpool_model::{PageId, RackId};
use rackpool_proto::rack::RackEvent;
use rackpool_wire::peer::PeerRequest;
use rackpool_wire::swap::SwapId;

use crate::data_plane::DataPlane;
use crate::data_plane::error::Result;
use crate::data_plane::peers::Purpose;

impl DataPlane {
    /// Requests a lease from the new home. The new home answers when the page can be read there.
    pub(in crate::data_plane) fn begin_lease_prefetch(
        &mut self,
        now: Instant,
        swap: SwapId,
        page: PageId,
        to: RackId,
    ) -> Result<()> {
        let Some(endpoint) = self.peers.connected_endpoint(to) else {
            self.machine.handle(RackEvent::LeasePrefetched(swap));
            return Ok(());
        };
        let question = self.machine.ask(self.at(now), page);
        let purpose = Purpose::PrefetchLease { swap, page, question };
        let request = PeerRequest::PrefetchLease { swap, page };
        self.ask_over(endpoint, request, purpose, now + self.lease)
    }

    /// There is no answer: readers look the page up as usual.
    pub(in crate::data_plane) fn not_prefetched(
        &mut self,
        swap: SwapId,
        page: PageId,
        question: u64,
    ) {
        self.machine.handle(RackEvent::LeaseUnanswered { page, question });
        self.machine.handle(RackEvent::LeasePrefetched(swap));
    }
}
