//! Location leases: the timed right to use a page of another rack by one-sided operations. The
//! rules are those of the rack's machine; this module sends and answers the messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, PageId};
use rackpool_proto::lease::{EndpointToken, GrantedLease, LeaseId, LeaseKind, Revocation, Users};
use rackpool_proto::rack::{LeaseReply, LeaseRequest, RackEvent};
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::home_requests::refusal;
use super::peers::Purpose;
use super::swap::MESSAGE;
use crate::data_plane::error::Result;

/// Revocations and returns under way.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Revocations that are under way: neither answered nor failed.
    called_back: BTreeSet<Revocation>,
    /// Endpoints from which nothing can land here any more and that have not ended.
    fenced: BTreeSet<EndpointToken>,
    /// Requests of homes that wait for the return of their lease.
    waiting_homes: BTreeMap<Revocation, Vec<RequestId>>,
}

impl Leases {
    /// A revocation could not be sent or was not answered. It may be sent again.
    pub(super) fn call_back_failed(&mut self, revocation: Revocation) {
        self.called_back.remove(&revocation);
    }
}

/// The token of an endpoint. The fabric never reuses a number, for accepted and connected endpoints
/// alike.
pub(super) const fn token(endpoint: EndpointId) -> EndpointToken {
    EndpointToken(endpoint.0)
}

/// The endpoint of a token.
pub(super) const fn endpoint_of(token: EndpointToken) -> EndpointId {
    EndpointId(token.0)
}

impl DataPlane {
    /// Answers another rack's request for a lease over this endpoint of a page in this rack.
    pub(super) fn request_lease(
        &mut self,
        endpoint: EndpointId,
        page: PageId,
        access: Access,
        replica: bool,
    ) -> PeerReply {
        let is_known = self.peers.rack_at(endpoint).is_some();
        let endpoint = token(endpoint);
        if !is_known || self.leases.fenced.contains(&endpoint) {
            return PeerReply::Busy;
        }
        let request = LeaseRequest { page, access, replica, endpoint };
        let at = self.at(self.now());
        match self.machine.request_lease(at, &self.slab, request) {
            LeaseReply::Granted { lease: GrantedLease { id, kind }, found, forwards } => {
                let LeaseId(lease) = id;
                let sharing = match kind {
                    LeaseKind::Share(sharing) => Some(sharing.0),
                    LeaseKind::Read | LeaseKind::Write => None,
                };
                let writable = kind == LeaseKind::Write;
                let (frame, epoch) = (found.frame, found.word.epoch());
                let usage = self.slab.lookup(page).map_or(0, |found| found.usage);
                PeerReply::Location { lease, frame, epoch, usage, writable, forwards, sharing }
            }
            LeaseReply::Refused(access) => refusal(access),
        }
    }

    /// Cuts off a rack that does not return a lease. The endpoint is torn down first, so that no
    /// late write can land; then its leases are void.
    pub(super) fn fence_endpoint(&mut self, endpoint: EndpointToken) {
        let endpoint = endpoint_of(endpoint);
        if let Some(rack) = self.peers.rack_at(endpoint) {
            tracing::warn!("{rack} does not give a lease back: it is cut off");
        }
        self.fabric.disconnect(endpoint);
    }

    /// Sends a revocation, unless one is under way: a request that was sent arrives unless its
    /// endpoint ends.
    pub(super) fn revoke(&mut self, now: Instant, revocation: Revocation) -> Result<()> {
        if !self.leases.called_back.insert(revocation) {
            return Ok(());
        }
        let Revocation { page, endpoint, lease, users } = revocation;
        let keep_reading = users == Users::Writers;
        let request = PeerRequest::Revoke { page, lease: lease.0, keep_reading };
        // The machine fences the endpoint before this deadline.
        let deadline = now + self.lease_rules.grace * 2;
        self.ask_over(endpoint_of(endpoint), request, Purpose::Revoke(revocation), deadline)
    }

    /// The other rack has returned a lease, or its right to write, over the lease's endpoint.
    pub(super) fn returned(&mut self, revocation: Revocation) {
        self.leases.called_back.remove(&revocation);
        self.machine.handle(RackEvent::LeaseReturned(revocation));
    }

    /// A page's home revokes a lease, or the right to write. The answer is sent when the operations
    /// in progress have ended.
    pub(super) fn revoked(&mut self, revocation: Revocation, ask: RequestId) {
        self.leases.waiting_homes.entry(revocation).or_default().push(ask);
        self.machine.handle(RackEvent::LeaseRevoked(revocation));
    }

    /// An operation that the machine has begun has ended, successfully or not.
    pub(super) fn operation_ended(&mut self, page: PageId, endpoint: EndpointId, access: Access) {
        let endpoint = token(endpoint);
        self.machine.handle(RackEvent::OperationEnded { page, endpoint, access });
    }

    /// Returns a lease to its home: in answer to the revocation, or unasked.
    pub(super) fn return_lease(&mut self, now: Instant, revocation: Revocation) -> Result<()> {
        match self.leases.waiting_homes.remove(&revocation) {
            Some(asks) => {
                for ask in asks {
                    self.reply(ask, &PeerReply::Returned)?;
                }
                Ok(())
            }
            None if revocation.users == Users::Everyone => {
                let Revocation { page, endpoint, lease, .. } = revocation;
                let request = PeerRequest::Return { page, lease: lease.0 };
                self.ask_over(endpoint_of(endpoint), request, Purpose::Swap, now + MESSAGE)
            }
            // The right to write is returned only on a revocation.
            None => Ok(()),
        }
    }

    /// Nothing that comes over the endpoint can land here any more: leases granted over it are
    /// void. Operations that this side has posted may still be under way.
    pub(super) fn endpoint_fenced(&mut self, endpoint: EndpointId) {
        self.forget_asks(|ask| ask.endpoint == endpoint);
        let endpoint = token(endpoint);
        self.leases.fenced.insert(endpoint);
        self.machine.handle(RackEvent::EndpointFenced(endpoint));
    }

    /// An endpoint has ended: nothing can come over it any more, so its leases are void.
    pub(super) fn endpoint_ended(&mut self, endpoint: EndpointId) {
        let endpoint = token(endpoint);
        self.leases.fenced.remove(&endpoint);
        self.leases.called_back.retain(|revocation| revocation.endpoint != endpoint);
        self.leases.waiting_homes.retain(|revocation, _| revocation.endpoint != endpoint);
        self.machine.handle(RackEvent::EndpointEnded(endpoint));
    }
}
