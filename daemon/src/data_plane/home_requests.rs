//! Serves requests of other racks for pages whose home is this rack.

use std::time::Instant;

use rackpool_model::PageId;
use rackpool_proto::lease::{LeaseId, Revocation, Users};
use rackpool_proto::rack::{PageAccess, RackEvent};
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::allocation::LEAVING_TIMEOUT;
use super::atomics::Atomic;
use super::leases::token;
use super::swap::Work;
use crate::data_plane::error::Result;

/// Another rack's allocation that waits for a page to become free.
#[derive(Debug)]
pub(super) struct StarvedPeer {
    ask: RequestId,
    request: PeerRequest,
    since: Instant,
}

impl DataPlane {
    pub(super) fn serve_peer(&mut self, ask: RequestId, request: PeerRequest) -> Result<()> {
        self.serve_peer_until(ask, request, None)
    }

    /// Serves a request. `until` is the end of its wait for a page that moves; `None` for a new
    /// request.
    pub(super) fn serve_peer_until(
        &mut self,
        ask: RequestId,
        request: PeerRequest,
        until: Option<Instant>,
    ) -> Result<()> {
        if let PeerRequest::Allocate { rack, .. } | PeerRequest::Free { rack, .. } = &request
            && !self.peers.belongs_to(ask.endpoint, *rack)
        {
            let text = "an exchange in the name of another rack".into();
            return self.reply(ask, &PeerReply::Invalid(text));
        }
        let used = match request {
            PeerRequest::Lookup { page, .. } => Some(page),
            PeerRequest::CompareAndSwap { addr, .. }
            | PeerRequest::FetchAndAdd { addr, .. }
            | PeerRequest::Write { addr, .. } => addr.page(self.rack.geometry.page_size),
            _ => None,
        };
        let reply = match request {
            PeerRequest::Lookup { page, access, keep, .. } => {
                if keep {
                    self.machine.handle(RackEvent::ReplicaRequested(page));
                }
                self.request_lease(ask.endpoint, page, access, keep)
            }
            PeerRequest::Revoke { page, lease, keep_reading } => {
                let users = if keep_reading { Users::Writers } else { Users::Everyone };
                let (endpoint, lease) = (token(ask.endpoint), LeaseId(lease));
                self.revoked(Revocation { page, endpoint, lease, users }, ask);
                return Ok(());
            }
            PeerRequest::CompareAndSwap { addr, expected, new } => {
                self.atomic(addr, Atomic::CompareAndSwap { expected, new })
            }
            PeerRequest::FetchAndAdd { addr, delta } => {
                self.atomic(addr, Atomic::FetchAndAdd { delta })
            }
            PeerRequest::Write { addr, ref bytes } => self.serve_write(addr, bytes)?,
            PeerRequest::DirtyLines { .. } => return self.serve_dirty_lines(ask, request),
            PeerRequest::Allocate { .. } => {
                return self.allocate_for(StarvedPeer { ask, request, since: self.now() });
            }
            PeerRequest::Free { .. } => {
                self.serve_exchange(ask, request);
                return Ok(());
            }
            PeerRequest::Swap(between) => return self.serve_swap(ask, between),
            PeerRequest::Lock { number, claim, timeout_us } => {
                return self.serve_lock(ask, number, claim, timeout_us);
            }
            PeerRequest::LockDecided { number, outcome } => {
                return self.lock_decided(ask, number, outcome);
            }
            PeerRequest::Unlock { .. } => return self.serve_unlock(ask, request, until),
            PeerRequest::Contents { .. } => return self.serve_contents(ask, &request),
            PeerRequest::Return { page, lease } => {
                self.reply(ask, &PeerReply::Heard)?;
                let (endpoint, lease) = (token(ask.endpoint), LeaseId(lease));
                self.returned(Revocation { page, endpoint, lease, users: Users::Everyone });
                return Ok(());
            }
        };
        // Wait until the page can be used here, or has moved.
        if reply == PeerReply::Busy
            && let Some(page) = used.filter(|page| self.machine.is_moving(&self.slab, *page))
        {
            self.wait_to_serve(page, ask, request, until);
            return Ok(());
        }
        self.reply(ask, &reply)
    }

    fn wait_to_serve(
        &mut self,
        page: PageId,
        ask: RequestId,
        request: PeerRequest,
        until: Option<Instant>,
    ) {
        // The other rack cuts this one off after a lease time without an answer.
        let until = until.unwrap_or_else(|| self.now() + self.lease / 4);
        self.wait_for_swap(page, Work::Serve(ask, request, until));
    }

    /// Allocates for another rack: at once, or when leaving or shared pages have made room.
    fn allocate_for(&mut self, starved: StarvedPeer) -> Result<()> {
        let PeerRequest::Allocate { rack, memory, sequence, bytes, .. } = starved.request else {
            return Ok(());
        };
        // The other rack cuts this one off after a lease without an answer.
        let timeout = if self.slab.is_reserving() { self.lease / 4 } else { LEAVING_TIMEOUT };
        let at_last = self.now() > starved.since + timeout;
        let is_served = self.machine.has_served(rack, memory, sequence);
        if at_last || is_served || bytes == 0 || !self.may_make_room(bytes)? {
            self.serve_exchange(starved.ask, starved.request);
            return self.run_machine();
        }
        self.starved_peers.push(starved);
        Ok(())
    }

    /// Returns true if there is no room for an object, and waiting may make some.
    fn may_make_room(&mut self, bytes: u64) -> Result<bool> {
        if self.slab.peek(bytes)?.is_none() {
            self.drop_copies()?;
        }
        if self.slab.peek(bytes)?.is_some() {
            return Ok(false);
        }
        self.slab.close_empty_pages()?;
        let reserves = self.reserve_for(bytes, false);
        let unshares = self.unshare_for(bytes);
        Ok(reserves || unshares || self.frees_pages())
    }

    /// Retries the allocations of other racks that wait for a leaving page.
    pub(super) fn feed_starved_peers(&mut self) -> Result<()> {
        for starved in std::mem::take(&mut self.starved_peers) {
            self.allocate_for(starved)?;
        }
        Ok(())
    }
}

/// Returns the refusal of an operation on a page that does not permit it now. For a leaving page it
/// is `Busy`: whether the page is freed or has moved is known only when its frame is free.
pub(super) fn refusal(access: PageAccess) -> PeerReply {
    match access {
        PageAccess::Usable(_) | PageAccess::Forwarded(_) | PageAccess::Busy => PeerReply::Busy,
        PageAccess::Free => PeerReply::NotAllocated,
        PageAccess::Lost => PeerReply::Lost,
        PageAccess::Elsewhere => PeerReply::NotHere,
    }
}
