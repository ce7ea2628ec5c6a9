//! The other racks: endpoints, and the calls that wait for an answer over them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rackpool_fabric::{DisconnectReason, EndpointId, ErrorClass};
use rackpool_model::{PageId, RackId};
use rackpool_wire::metadata::Member;
use rackpool_wire::peer::{PeerMessage, PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;
use rackpool_wire::{decode, encode};

use super::clients::Caller;
use super::{DataPlane, PATIENCE};

/// Between two attempts to connect to the same rack.
const RECONNECT: Duration = Duration::from_millis(20);

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A client's translation.
    Lookup { page: PageId },
    /// A client's atomic operation.
    Atomic { caller: Caller },
    /// An exactly-once exchange, which is sent again until it is answered.
    Exchange,
    /// A lease called back.
    Revoke { page: PageId },
}

/// A request that was sent, or waits to be.
#[derive(Clone, Debug)]
struct Call {
    request: PeerRequest,
    purpose: Purpose,
    deadline: Instant,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Idle,
    Connecting(EndpointId),
    Connected(EndpointId),
}

#[derive(Debug, Default)]
struct Peer {
    link: Link,
    retry_at: Option<Instant>,
    waiting: VecDeque<Call>,
}

/// All other racks.
#[derive(Debug, Default)]
pub(super) struct Peers {
    racks: BTreeMap<RackId, Peer>,
    /// Whose endpoint it is; those the other side connected included.
    endpoints: BTreeMap<EndpointId, RackId>,
    calls: BTreeMap<(EndpointId, u64), Call>,
    next_call: u64,
}

impl Peers {
    /// The endpoint on which requests to the rack are posted.
    pub(super) fn connected_endpoint(&self, rack: RackId) -> Option<EndpointId> {
        match self.racks.get(&rack)?.link {
            Link::Connected(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// Whether the rack is at the other end of the endpoint.
    pub(super) fn belongs_to(&self, endpoint: EndpointId, rack: RackId) -> bool {
        self.endpoints.get(&endpoint) == Some(&rack)
    }

    /// The other side has connected.
    pub(super) fn accepted(&mut self, endpoint: EndpointId, rack: RackId) {
        self.endpoints.insert(endpoint, rack);
    }

    pub(super) fn connect_failed(&mut self, endpoint: EndpointId) {
        for peer in self.racks.values_mut() {
            if peer.link == Link::Connecting(endpoint) {
                peer.link = Link::Idle;
                peer.retry_at = Some(Instant::now() + RECONNECT);
            }
        }
    }

    pub(super) fn has_deadlines(&self) -> bool {
        !self.calls.is_empty() || self.racks.values().any(|peer| !peer.waiting.is_empty())
    }
}

impl DataPlane {
    /// Asks another rack, connecting first if need be.
    pub(super) fn ask(
        &mut self,
        rack: RackId,
        request: PeerRequest,
        purpose: Purpose,
        deadline: Instant,
    ) -> anyhow::Result<()> {
        let call = Call { request, purpose, deadline };
        match self.peers.connected_endpoint(rack) {
            Some(endpoint) => self.send_call(endpoint, rack, call),
            None => {
                self.peers.racks.entry(rack).or_default().waiting.push_back(call);
                self.connect(rack)
            }
        }
    }

    /// Asks over a certain endpoint; nothing happens when it has ended.
    pub(super) fn ask_over(
        &mut self,
        endpoint: EndpointId,
        request: PeerRequest,
        purpose: Purpose,
        deadline: Instant,
    ) -> anyhow::Result<()> {
        match self.peers.endpoints.get(&endpoint) {
            Some(rack) => self.send_call(endpoint, *rack, Call { request, purpose, deadline }),
            None => Ok(()),
        }
    }

    fn send_call(
        &mut self,
        endpoint: EndpointId,
        rack: RackId,
        mut call: Call,
    ) -> anyhow::Result<()> {
        if call.purpose == Purpose::Exchange {
            // It never expires; the peer gets its whole time again each time it is sent.
            call.deadline = Instant::now() + PATIENCE;
        }
        self.peers.next_call += 1;
        let number = self.peers.next_call;
        let message = PeerMessage::Request { call: number, request: call.request.clone() };
        match self.fabric.send(endpoint, &encode(&message)?) {
            Ok(()) => {
                self.peers.calls.insert((endpoint, number), call);
            }
            Err(error) if error.class() == ErrorClass::Retry => {
                self.peers.racks.entry(rack).or_default().waiting.push_back(call);
            }
            Err(error) => {
                tracing::debug!("sending to {rack} failed: {error}");
                self.peers.racks.entry(rack).or_default().waiting.push_back(call);
                self.fabric.disconnect(endpoint);
            }
        }
        Ok(())
    }

    fn connect(&mut self, rack: RackId) -> anyhow::Result<()> {
        let Some(member) = self.members.iter().find(|member| member.rack == rack) else {
            return Ok(());
        };
        let address = member.fabric_address.clone();
        let peer = self.peers.racks.entry(rack).or_default();
        if peer.link != Link::Idle || peer.retry_at.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        match self.fabric.connect(&address) {
            Ok(endpoint) => peer.link = Link::Connecting(endpoint),
            Err(error) => {
                tracing::warn!("can't connect to {rack}: {error}");
                peer.retry_at = Some(Instant::now() + RECONNECT);
            }
        }
        Ok(())
    }

    pub(super) fn connected(&mut self, endpoint: EndpointId, rack: RackId) -> anyhow::Result<()> {
        tracing::info!("connected to {rack}");
        self.peers.endpoints.insert(endpoint, rack);
        let peer = self.peers.racks.entry(rack).or_default();
        peer.link = Link::Connected(endpoint);
        peer.retry_at = None;
        self.send_waiting(rack)
    }

    fn send_waiting(&mut self, rack: RackId) -> anyhow::Result<()> {
        let Some(endpoint) = self.peers.connected_endpoint(rack) else { return Ok(()) };
        let Some(peer) = self.peers.racks.get_mut(&rack) else { return Ok(()) };
        for call in std::mem::take(&mut peer.waiting) {
            self.send_call(endpoint, rack, call)?;
        }
        Ok(())
    }

    /// An endpoint has ended and nothing of it can happen any more.
    pub(super) fn disconnected(
        &mut self,
        endpoint: EndpointId,
        reason: &DisconnectReason,
    ) -> anyhow::Result<()> {
        let Some(rack) = self.peers.endpoints.remove(&endpoint) else {
            self.peers.connect_failed(endpoint);
            return Ok(());
        };
        tracing::info!("disconnected from {rack}: {reason}");
        self.drop_unposted(endpoint)?;
        self.lessee_gone(endpoint)?;
        if self.peers.connected_endpoint(rack) == Some(endpoint) {
            let peer = self.peers.racks.entry(rack).or_default();
            peer.link = Link::Idle;
            peer.retry_at = Some(Instant::now() + RECONNECT);
            self.leases.retain(|_, lease| lease.home != rack);
        }
        let calls = std::mem::take(&mut self.peers.calls);
        let (lost, kept): (BTreeMap<_, Call>, BTreeMap<_, _>) =
            calls.into_iter().partition(|((over, _), _)| *over == endpoint);
        self.peers.calls = kept;
        for call in lost.into_values() {
            match call.purpose {
                Purpose::Lookup { .. } | Purpose::Exchange => {
                    self.peers.racks.entry(rack).or_default().waiting.push_back(call);
                }
                Purpose::Atomic { caller } => {
                    self.clients.finish(caller, RackAnswer::Indeterminate(rack));
                }
                Purpose::Revoke { .. } => {}
            }
        }
        Ok(())
    }

    /// A message of another rack. Its bytes are not trusted.
    pub(super) fn peer_message(
        &mut self,
        endpoint: EndpointId,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        match decode::<PeerMessage>(bytes) {
            Ok(PeerMessage::Request { call, request }) => self.serve_peer(endpoint, call, request),
            Ok(PeerMessage::Reply { call, reply }) => {
                let Some(asked) = self.peers.calls.remove(&(endpoint, call)) else {
                    return Ok(());
                };
                let Some(rack) = self.peers.endpoints.get(&endpoint).copied() else {
                    return Ok(());
                };
                self.replied(endpoint, rack, asked.purpose, &reply)
            }
            Err(error) => {
                tracing::error!("a rack sent no message of this release: {error}");
                self.fabric.disconnect(endpoint);
                Ok(())
            }
        }
    }

    fn replied(
        &mut self,
        endpoint: EndpointId,
        rack: RackId,
        purpose: Purpose,
        reply: &PeerReply,
    ) -> anyhow::Result<()> {
        match purpose {
            Purpose::Lookup { page } => self.lookup_answered(page, rack, reply),
            Purpose::Atomic { caller } => {
                let answer = match reply {
                    PeerReply::Value(before) => RackAnswer::Done(*before),
                    PeerReply::NotAllocated => RackAnswer::NotAllocated,
                    PeerReply::NotHere => RackAnswer::Moved,
                    _ => RackAnswer::Invalid,
                };
                self.clients.finish(caller, answer);
            }
            Purpose::Exchange => return self.exchange_answered(rack, reply),
            Purpose::Revoke { page } => self.lease_returned(page, endpoint),
        }
        Ok(())
    }

    /// Answers a request of another rack.
    pub(super) fn reply(
        &mut self,
        endpoint: EndpointId,
        call: u64,
        reply: PeerReply,
    ) -> anyhow::Result<()> {
        let message = encode(&PeerMessage::Reply { call, reply })?;
        if let Err(error) = self.fabric.send(endpoint, &message) {
            // The asker finds out by the end of the endpoint and asks again.
            tracing::debug!("answering failed: {error}");
            self.fabric.disconnect(endpoint);
        }
        Ok(())
    }

    /// Gives up what has waited too long, and connects for what still waits.
    pub(super) fn drive_peers(&mut self, now: Instant) -> anyhow::Result<()> {
        let overdue = |call: &Call| now > call.deadline && call.purpose != Purpose::Exchange;
        let mut expired = Vec::new();
        for (rack, peer) in &mut self.peers.racks {
            let waiting = std::mem::take(&mut peer.waiting);
            let (late, rest): (Vec<Call>, Vec<Call>) = waiting.into_iter().partition(overdue);
            peer.waiting = rest.into();
            expired.extend(late.into_iter().map(|call| (*rack, call.purpose)));
        }
        for (rack, purpose) in expired {
            match purpose {
                Purpose::Lookup { page } => {
                    self.answer_lookups(page, RackAnswer::RackUnavailable(rack));
                }
                Purpose::Atomic { caller } => {
                    self.clients.finish(caller, RackAnswer::RackUnavailable(rack));
                }
                Purpose::Exchange | Purpose::Revoke { .. } => {}
            }
        }
        // A rack that has a request and does not answer within a lease is cut off: only then it
        // is certain that the request is not carried out later.
        let silent: Vec<EndpointId> = self
            .peers
            .calls
            .iter()
            .filter(|(_, call)| now > call.deadline)
            .map(|((endpoint, _), _)| *endpoint)
            .collect();
        for endpoint in silent {
            self.fabric.disconnect(endpoint);
        }
        let waiting: Vec<RackId> = self
            .peers
            .racks
            .iter()
            .filter(|(_, peer)| !peer.waiting.is_empty())
            .map(|(rack, _)| *rack)
            .collect();
        for rack in waiting {
            self.connect(rack)?;
            self.send_waiting(rack)?;
        }
        Ok(())
    }

    /// The membership has changed.
    pub(super) fn members_changed(&mut self, members: Vec<Member>) -> anyhow::Result<()> {
        for old in &self.members {
            let new = members.iter().find(|member| member.rack == old.rack);
            // Another memory: whatever is leased there is gone.
            if new.is_none_or(|new| new.memory != old.memory) {
                self.leases.retain(|_, lease| lease.home != old.rack);
                if let Some(endpoint) = self.peers.connected_endpoint(old.rack) {
                    self.fabric.disconnect(endpoint);
                }
            }
        }
        self.members = members;
        self.drive_peers(Instant::now())
    }

    /// How long an exchange waits before its asker is told that there is no answer.
    pub(super) fn exchange_deadline() -> Instant {
        Instant::now() + PATIENCE
    }
}
