//! Serves requests of other racks for pages whose home is this rack.

use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, FrameWord, PageId, PageState};
use rackpool_proto::lease::{GrantedLease, LeaseId, LeaseKind, Users};
use rackpool_proto::rack::{LeasePurpose, RackEvent};
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::swap::SwapId;

use super::DataPlane;
use super::atomics::Atomic;
use super::requests::LEAVING_TIMEOUT;
use super::swap::Work;
use crate::slab::LocalPage;

/// Another rack's allocation that waits for a page to become free.
#[derive(Debug)]
pub(super) struct StarvedPeer {
    ask: RequestId,
    request: PeerRequest,
    since: Instant,
}

impl DataPlane {
    pub(super) fn serve_peer(
        &mut self,
        ask: RequestId,
        request: PeerRequest,
    ) -> anyhow::Result<()> {
        self.serve_peer_until(ask, request, None)
    }

    /// Serves a request. `until` is the end of its wait for a page that moves; `None` for a new
    /// request.
    pub(super) fn serve_peer_until(
        &mut self,
        ask: RequestId,
        request: PeerRequest,
        until: Option<Instant>,
    ) -> anyhow::Result<()> {
        if let PeerRequest::Allocate { rack, .. } | PeerRequest::Free { rack, .. } = &request
            && !self.peers.belongs_to(ask.endpoint, *rack)
        {
            let text = "an exchange in the name of another rack".into();
            return self.reply(ask, &PeerReply::Invalid(text));
        }
        let used = match request {
            PeerRequest::Lookup { page, .. } | PeerRequest::PrefetchLease { page, .. } => {
                Some(page)
            }
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
                self.serve_lookup(page, access, keep, ask.endpoint)?
            }
            PeerRequest::PrefetchLease { swap, page } => {
                self.serve_lease_prefetch(swap, page, ask.endpoint)?
            }
            PeerRequest::Revoke { page, lease, keep_reading } => {
                let users = if keep_reading { Users::Writers } else { Users::Everyone };
                self.revoked(page, LeaseId(lease), users, ask);
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
            PeerRequest::Free { rack, memory, sequence, ref addrs } => {
                match self.serve_free(rack, memory, sequence, addrs)? {
                    Ok(reply) => reply,
                    Err(page) => {
                        self.wait_to_serve(page, ask, request, until);
                        return Ok(());
                    }
                }
            }
            PeerRequest::Swap(between) => return self.serve_swap(ask, between),
            PeerRequest::Contents { .. } => return self.serve_contents(ask, &request),
            PeerRequest::Return { page, lease } => {
                self.reply(ask, &PeerReply::Heard)?;
                self.returned(page, ask.endpoint, LeaseId(lease), Users::Everyone);
                return Ok(());
            }
        };
        // Wait until the page can be used here, or has moved.
        if reply == PeerReply::Busy
            && let Some(page) = used.filter(|page| self.slab.is_moving(*page))
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

    /// Grants a lease: of a live page for writing, of a frozen page for reading, of a shared page
    /// for a copy if the requester keeps one (`keep`).
    fn serve_lookup(
        &mut self,
        page: PageId,
        access: Access,
        keep: bool,
        endpoint: EndpointId,
    ) -> anyhow::Result<PeerReply> {
        // A rack that writes a page that moves gets a read lease; this rack executes its writes.
        let forwards = self.writes_for_others(page);
        let access = if forwards { Access::Read } else { access };
        let found = match self.usable(page, access) {
            Ok(found) => found,
            Err(refusal) => return Ok(refusal),
        };
        let purpose = if keep { LeasePurpose::Replica } else { LeasePurpose::Access };
        Ok(self.give(endpoint, found, purpose, forwards))
    }

    /// Grants a read lease of a page that has just arrived. The rack from which the page came may
    /// also write once it has quiesced the page.
    fn serve_lease_prefetch(
        &mut self,
        swap: SwapId,
        page: PageId,
        endpoint: EndpointId,
    ) -> anyhow::Result<PeerReply> {
        let found = match self.usable(page, Access::Read) {
            Ok(found) => found,
            Err(refusal) => return Ok(refusal),
        };
        let forwards = self.writes_for_others(page);
        Ok(self.give(endpoint, found, LeasePurpose::Prefetch(swap), forwards))
    }

    /// Grants a lease, as strong as the page word and the purpose permit.
    fn give(
        &mut self,
        endpoint: EndpointId,
        LocalPage { frame, word, usage }: LocalPage,
        purpose: LeasePurpose,
        forwards: bool,
    ) -> PeerReply {
        let Some(granted) = self.grant(endpoint, FrameWord { frame, word }, purpose) else {
            return PeerReply::Busy;
        };
        let GrantedLease { id: LeaseId(lease), kind } = granted;
        let sharing = match kind {
            LeaseKind::Share(sharing) => Some(sharing.0),
            LeaseKind::Read | LeaseKind::Write | LeaseKind::WriteOnceQuiesced => None,
        };
        let writable = matches!(kind, LeaseKind::Write | LeaseKind::WriteOnceQuiesced);
        let epoch = word.epoch();
        PeerReply::Location { lease, frame, epoch, usage, writable, forwards, sharing }
    }

    /// Returns a page that other racks may access now, or the refusal to send them. For a leaving
    /// page the refusal is `Busy`: whether it is freed or has moved is known only when its frame is
    /// free.
    pub(super) fn usable(&self, page: PageId, access: Access) -> Result<LocalPage, PeerReply> {
        let away = || match page {
            page if self.swap_has_lost(page) => PeerReply::Lost,
            page if self.slab.is_moving(page) => PeerReply::Busy,
            _ => PeerReply::NotHere,
        };
        let found = self.slab.lookup(page).ok_or_else(away)?;
        match found.word.state() {
            Some(PageState::Live) => Ok(found),
            Some(PageState::Frozen | PageState::Shared) if access == Access::Read => Ok(found),
            Some(PageState::Free) | None => Err(PeerReply::NotAllocated),
            Some(_) => Err(PeerReply::Busy),
        }
    }

    /// Allocates for another rack, at once or when pages have left.
    fn allocate_for(&mut self, starved: StarvedPeer) -> anyhow::Result<()> {
        let PeerRequest::Allocate { rack, memory, sequence, bytes, count } = starved.request else {
            return Ok(());
        };
        // The other rack cuts this one off after a lease without an answer.
        let timeout = if self.slab.is_reserving() { self.lease / 4 } else { LEAVING_TIMEOUT };
        let at_last = self.now() > starved.since + timeout;
        match self.serve_allocate(rack, memory, sequence, bytes, count, at_last)? {
            Some(reply) => self.reply(starved.ask, &reply),
            None => {
                self.starved_peers.push(starved);
                Ok(())
            }
        }
    }

    /// Retries the allocations of other racks that wait for a leaving page.
    pub(super) fn feed_starved_peers(&mut self) -> anyhow::Result<()> {
        for starved in std::mem::take(&mut self.starved_peers) {
            self.allocate_for(starved)?;
        }
        Ok(())
    }
}
