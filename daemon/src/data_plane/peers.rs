//! The other racks: endpoints, and the calls that wait for an answer over them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rackpool_fabric::{DisconnectReason, EndpointId, FabricError};
use rackpool_model::{ClientId, MAX_RACKS, PageId, RackId};
use rackpool_proto::exchange::ExchangeEvent;
use rackpool_proto::lease::Revocation;
use rackpool_proto::publication::WordAnswer;
use rackpool_proto::rack::RackEvent;
use rackpool_rrpc::{CallError, CallId, Failure, Overdue, RequestId, Thresholds};
use rackpool_wire::metadata::Member;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;
use rackpool_wire::{decode, encode};

use super::DataPlane;
use super::atomics::HomeOperation;
use super::clients::ClientThread;
use crate::data_plane::error::Result;

/// Interval between two attempts to connect to the same rack.
const RECONNECT: Duration = Duration::from_millis(20);

/// The purpose of a call, which decides what its answer is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A lease of a page that clients wait for or use.
    Lease { page: PageId, question: u64 },
    /// A client's operation, which the other rack executes.
    Operation(HomeOperation),
    /// An exactly-once exchange, which is repeated until it is answered.
    Exchange,
    /// Revocation of a lease, or of its right to write.
    Revoke(Revocation),
    /// Access to a word of a gone client's reservation.
    Word { question: u64 },
    /// A swap message, whose answer is not used. The machines repeat the message or do without it.
    Swap,
    /// A request for a lock of another rack's page.
    Lock { number: u64 },
    /// A message about a lock, whose answer is not used. It is valid for its endpoint.
    LockMessage,
}

/// A request that was sent or waits to be sent.
#[derive(Clone, Debug)]
struct Call {
    rack: RackId,
    request: PeerRequest,
    purpose: Purpose,
    deadline: Instant,
}

impl Call {
    /// Returns true if the other rack executes an operation for the client.
    fn is_done_for(&self, client: ClientId) -> bool {
        matches!(self.purpose, Purpose::Operation(HomeOperation { caller, .. }) if caller.client == client)
    }
}

/// The connection over which this rack sends its requests to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PeerLink {
    /// No connection. Calls wait; `DataPlane::connect` leaves this state after `retry_at`.
    #[default]
    Idle,
    /// A connection is being made. `Connected`, `ConnectFailed` or `Disconnected` leaves this
    /// state.
    Connecting(EndpointId),
    /// Calls are sent over this endpoint. `Disconnected` leaves this state.
    Connected(EndpointId),
}

#[derive(Debug, Default)]
struct Peer {
    link: PeerLink,
    retry_at: Option<Instant>,
    /// Set if the last attempt to connect failed.
    has_failed: bool,
    waiting: VecDeque<Call>,
}

/// All other racks.
#[derive(Debug, Default)]
pub(super) struct Peers {
    racks: BTreeMap<RackId, Peer>,
    /// The rack of each endpoint, including endpoints that the other side has connected.
    endpoints: BTreeMap<EndpointId, RackId>,
    calls: BTreeMap<CallId, Call>,
}

impl Peers {
    /// Returns the endpoint over which requests to the rack are sent.
    pub(super) fn connected_endpoint(&self, rack: RackId) -> Option<EndpointId> {
        match self.racks.get(&rack)?.link {
            PeerLink::Connected(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    /// Returns true if the rack is at the other end of the endpoint.
    pub(super) fn belongs_to(&self, endpoint: EndpointId, rack: RackId) -> bool {
        self.endpoints.get(&endpoint) == Some(&rack)
    }

    /// Returns the rack to which this side is connecting with the endpoint.
    fn called_on(&self, endpoint: EndpointId) -> Option<RackId> {
        let mut racks = self.racks.iter();
        racks.find(|(_, peer)| peer.link == PeerLink::Connecting(endpoint)).map(|(rack, _)| *rack)
    }

    /// A connection attempt failed and will be repeated. Only the first failure since the last
    /// connection is logged.
    pub(super) fn connect_failed(&mut self, endpoint: EndpointId, error: &FabricError) {
        for (rack, peer) in &mut self.racks {
            if peer.link == PeerLink::Connecting(endpoint) {
                if !std::mem::replace(&mut peer.has_failed, true) {
                    tracing::warn!("{rack} can't be connected: {error}");
                }
                peer.link = PeerLink::Idle;
                peer.retry_at = Some(Instant::now() + RECONNECT);
            }
        }
    }

    /// Returns true if another rack may still execute an operation of the client.
    pub(super) fn does_anything_for(&self, client: ClientId) -> bool {
        let waiting = self.racks.values().flat_map(|peer| &peer.waiting);
        self.calls.values().chain(waiting).any(|call| call.is_done_for(client))
    }

    /// Returns true if another rack may still execute an operation of the thread on the page.
    pub(super) fn does_anything_in(&self, thread: ClientThread, page: PageId) -> bool {
        let waiting = self.racks.values().flat_map(|peer| &peer.waiting);
        self.calls.values().chain(waiting).any(|call| match call.purpose {
            Purpose::Operation(operation) => {
                operation.page == page && operation.caller.client_thread() == thread
            }
            _ => false,
        })
    }

    /// Takes a thread's operations out that wait to be sent. They are not executed.
    pub(super) fn take_unsent_of(&mut self, thread: ClientThread) -> Vec<HomeOperation> {
        let mut taken = Vec::new();
        for peer in self.racks.values_mut() {
            peer.waiting.retain(|call| match call.purpose {
                Purpose::Operation(operation) if operation.caller.client_thread() == thread => {
                    taken.push(operation);
                    false
                }
                _ => true,
            });
        }
        taken
    }

    /// Returns the rack at the other end of an endpoint.
    pub(super) fn rack_at(&self, endpoint: EndpointId) -> Option<RackId> {
        self.endpoints.get(&endpoint).copied()
    }

    pub(super) fn has_deadlines(&self) -> bool {
        !self.calls.is_empty() || self.racks.values().any(|peer| !peer.waiting.is_empty())
    }
}

impl DataPlane {
    /// Sends a request to another rack, after connecting if necessary.
    pub(super) fn ask(
        &mut self,
        rack: RackId,
        request: PeerRequest,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<()> {
        let call = Call { rack, request, purpose, deadline };
        match self.peers.connected_endpoint(rack) {
            Some(endpoint) => self.send_call(endpoint, call),
            None => {
                self.peers.racks.entry(rack).or_default().waiting.push_back(call);
                self.connect(rack)
            }
        }
    }

    /// Drops a gone client's unsent operations: they are not executed any more.
    pub(super) fn drop_unsent_of(&mut self, client: ClientId) {
        self.transfers.forwarding.retain(|of| of.client != client);
        for peer in self.peers.racks.values_mut() {
            peer.waiting.retain(|call| !call.is_done_for(client));
        }
    }

    /// Sends a request over this endpoint; does nothing if the endpoint has ended.
    pub(super) fn ask_over(
        &mut self,
        endpoint: EndpointId,
        request: PeerRequest,
        purpose: Purpose,
        deadline: Instant,
    ) -> Result<()> {
        match self.peers.endpoints.get(&endpoint).copied() {
            Some(rack) => self.send_call(endpoint, Call { rack, request, purpose, deadline }),
            None => Ok(()),
        }
    }

    /// Sends a call. A rack that does not answer within a lease time is cut off: only then it is
    /// certain that it does not execute the request later. Swap messages are given up instead.
    fn send_call(&mut self, endpoint: EndpointId, mut call: Call) -> Result<()> {
        if call.purpose == Purpose::Exchange {
            // An exchange never expires; each repetition gives the peer a whole lease time.
            call.deadline = self.now() + self.lease;
        }
        let body = encode(&call.request)?;
        let is_repeated = call.purpose == Purpose::Swap;
        let overdue = if is_repeated { Overdue::GiveUp } else { Overdue::CutOff };
        let asked = rackpool_rrpc::Call::new(&body, call.deadline, overdue);
        match self.rrpc.call(endpoint, &asked) {
            Ok(id) => {
                self.peers.calls.insert(id, call);
            }
            Err(error) => {
                if !matches!(error, CallError::NotConnected | CallError::TooManyOpen { .. }) {
                    tracing::error!("{} can't be asked: {error}", call.rack);
                }
                match call.purpose {
                    // These calls are for this endpoint only, and are repeated or not needed.
                    Purpose::Revoke(revocation) => self.leases.call_back_failed(revocation),
                    Purpose::Swap => {}
                    Purpose::LockMessage if matches!(error, CallError::TooManyOpen { .. }) => {
                        self.locks.send_later(endpoint, call.request);
                    }
                    Purpose::LockMessage => {}
                    _ => self.wait_for_peer(call),
                }
            }
        }
        Ok(())
    }

    fn wait_for_peer(&mut self, call: Call) {
        self.peers.racks.entry(call.rack).or_default().waiting.push_back(call);
    }

    fn connect(&mut self, rack: RackId) -> Result<()> {
        let Some(member) = self.machine.members().iter().find(|member| member.rack == rack) else {
            return Ok(());
        };
        let address = member.fabric_address.clone();
        let now = self.now();
        let peer = self.peers.racks.entry(rack).or_default();
        if peer.link != PeerLink::Idle || peer.retry_at.is_some_and(|at| at > now) {
            return Ok(());
        }
        match self.fabric.connect(&address) {
            Ok(endpoint) => peer.link = PeerLink::Connecting(endpoint),
            Err(error) => {
                tracing::warn!("can't connect to {rack}: {error}");
                peer.retry_at = Some(now + RECONNECT);
            }
        }
        Ok(())
    }

    pub(super) fn connected(&mut self, endpoint: EndpointId, rack: RackId) -> Result<()> {
        if self.peers.called_on(endpoint) != Some(rack) {
            let detail = format!("{rack} answered where another rack was called");
            self.peers.connect_failed(endpoint, &FabricError::Misbehaved { detail });
            self.fabric.disconnect(endpoint);
            return Ok(());
        }
        tracing::info!("connected to {rack}");
        self.peers.endpoints.insert(endpoint, rack);
        let peer = self.peers.racks.entry(rack).or_default();
        peer.link = PeerLink::Connected(endpoint);
        (peer.retry_at, peer.has_failed) = (None, false);
        self.send_waiting(rack)
    }

    fn send_waiting(&mut self, rack: RackId) -> Result<()> {
        let Some(endpoint) = self.peers.connected_endpoint(rack) else { return Ok(()) };
        let Some(peer) = self.peers.racks.get_mut(&rack) else { return Ok(()) };
        for call in std::mem::take(&mut peer.waiting) {
            self.send_call(endpoint, call)?;
        }
        Ok(())
    }

    /// The other side has connected. It has already learned the end of earlier endpoints and of the
    /// requests sent over them.
    pub(super) fn accepted(&mut self, endpoint: EndpointId, rack: RackId) {
        let own = self.peers.connected_endpoint(rack);
        let endpoints = self.peers.endpoints.iter();
        let earlier: BTreeSet<EndpointId> = endpoints
            .filter(|(id, of)| **of == rack && Some(**id) != own)
            .map(|(id, _)| *id)
            .collect();
        self.forget_asks(|ask| earlier.contains(&ask.endpoint));
        self.peers.endpoints.insert(endpoint, rack);
    }

    /// An endpoint has ended; nothing more can come over it. The calls over it are handled by
    /// `call_failed`.
    pub(super) fn disconnected(
        &mut self,
        endpoint: EndpointId,
        reason: &DisconnectReason,
    ) -> Result<()> {
        let rack = self.peers.endpoints.remove(&endpoint);
        self.forget_asks(|ask| ask.endpoint == endpoint);
        self.endpoint_ended(endpoint);
        let Some(rack) = rack else {
            self.peers.connect_failed(endpoint, &reason.error());
            return Ok(());
        };
        tracing::info!("disconnected from {rack}: {reason}");
        if self.peers.connected_endpoint(rack) == Some(endpoint) {
            let retry_at = Some(self.now() + RECONNECT);
            let peer = self.peers.racks.entry(rack).or_default();
            (peer.link, peer.retry_at) = (PeerLink::Idle, retry_at);
            self.metrics.forget_thresholds(rack);
        }
        Ok(())
    }

    /// A call has no answer: its endpoint has ended, or the peer runs another release.
    pub(super) fn call_failed(&mut self, id: CallId, failure: &Failure) -> Result<()> {
        let Some(call) = self.peers.calls.remove(&id) else { return Ok(()) };
        let is_late = call.purpose == Purpose::Swap && *failure == Failure::DeadlinePassed;
        if !matches!(failure, Failure::Disconnected(_)) && !is_late {
            tracing::error!("{} does not answer as this release does: {failure}", call.rack);
            self.fabric.disconnect(id.endpoint);
        }
        self.call_ended(call.rack, call.purpose, RackAnswer::Indeterminate(call.rack));
        Ok(())
    }

    /// A call will not be answered. `answer` is for the client whose operation it was.
    fn call_ended(&mut self, rack: RackId, purpose: Purpose, answer: RackAnswer) {
        match purpose {
            Purpose::Lease { page, question } => {
                self.machine.handle(RackEvent::LeaseUnanswered { page, question });
            }
            Purpose::Exchange => self.tell_exchange(ExchangeEvent::Unanswered(rack)),
            Purpose::Operation(operation) => self.finish_operation(operation, answer),
            Purpose::Word { question } => self.word_answered(question, WordAnswer::Unanswered),
            Purpose::Revoke(revocation) => self.leases.call_back_failed(revocation),
            Purpose::Lock { number } => self.lock_replied(number, None, None),
            Purpose::Swap | Purpose::LockMessage => {}
        }
    }

    /// Serves a request of another rack. Its bytes are not trusted.
    pub(super) fn peer_asks(&mut self, ask: RequestId, bytes: &[u8]) -> Result<()> {
        match decode::<PeerRequest>(bytes) {
            Ok(request) => self.serve_peer(ask, request),
            Err(error) => {
                tracing::error!("a rack sent no request of this release: {error}");
                self.fabric.disconnect(ask.endpoint);
                Ok(())
            }
        }
    }

    /// Handles an answer of another rack. Its bytes are not trusted.
    pub(super) fn peer_answered(&mut self, id: CallId, bytes: &[u8]) -> Result<()> {
        match decode::<PeerReply>(bytes) {
            Ok(reply) => match self.peers.calls.remove(&id) {
                Some(call) => self.replied(id.endpoint, call.rack, call.purpose, &reply),
                None => Ok(()),
            },
            Err(error) => {
                tracing::error!("a rack sent no answer of this release: {error}");
                self.fabric.disconnect(id.endpoint);
                self.call_failed(id, &Failure::Disconnected(FabricError::Closed))
            }
        }
    }

    /// Records the measured thresholds between the modes of requests to a rack.
    pub(super) fn calibrated(&self, endpoint: EndpointId, thresholds: Thresholds) {
        if let Some(rack) = self.peers.endpoints.get(&endpoint) {
            tracing::info!("requests to {rack}: {thresholds}");
            self.metrics.note_thresholds(*rack, thresholds);
        }
    }

    fn replied(
        &mut self,
        endpoint: EndpointId,
        rack: RackId,
        purpose: Purpose,
        reply: &PeerReply,
    ) -> Result<()> {
        let from = (rack, endpoint);
        match purpose {
            Purpose::Lease { page, question } => {
                self.lease_answered(page, question, from, reply);
                Ok(())
            }
            Purpose::Operation(operation) => {
                self.operation_answered(operation, rack, reply);
                Ok(())
            }
            Purpose::Exchange => {
                self.tell_exchange(ExchangeEvent::Answered(rack, reply.clone()));
                Ok(())
            }
            Purpose::Revoke(revocation) => {
                if *reply == PeerReply::Returned {
                    self.returned(revocation);
                } else {
                    tracing::error!("{rack} answered a lease called back with {reply:?}");
                    self.leases.call_back_failed(revocation);
                }
                Ok(())
            }
            Purpose::Word { question } => {
                self.word_replied(question, reply);
                Ok(())
            }
            Purpose::Lock { number } => {
                let outcome = match reply {
                    PeerReply::Lock(outcome) => Some(*outcome),
                    other => {
                        tracing::error!("{rack} answered a request for a lock with {other:?}");
                        None
                    }
                };
                self.lock_replied(number, Some(endpoint), outcome);
                Ok(())
            }
            Purpose::Swap | Purpose::LockMessage => Ok(()),
        }
    }

    /// Answers a request of another rack.
    pub(super) fn reply(&mut self, ask: RequestId, reply: &PeerReply) -> Result<()> {
        self.rrpc.answer(ask, &encode(reply)?, &[]);
        Ok(())
    }

    /// Expires waiting calls, and connects to the racks for which calls wait.
    pub(super) fn drive_peers(&mut self, now: Instant) -> Result<()> {
        let overdue = |call: &Call| now > call.deadline && call.purpose != Purpose::Exchange;
        let mut expired = Vec::new();
        for (rack, peer) in &mut self.peers.racks {
            let waiting = std::mem::take(&mut peer.waiting);
            let (late, rest): (Vec<Call>, Vec<Call>) = waiting.into_iter().partition(overdue);
            peer.waiting = rest.into();
            expired.extend(late.into_iter().map(|call| (*rack, call.purpose)));
        }
        for (rack, purpose) in expired {
            self.call_ended(rack, purpose, RackAnswer::RackUnavailable(rack));
        }
        self.rrpc.tick(now);
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

    /// Handles a change of the pool's members.
    pub(super) fn members_changed(&mut self, members: Vec<Member>) -> Result<()> {
        let (members, strange): (Vec<Member>, Vec<Member>) =
            members.into_iter().partition(|member| member.rack.0 < MAX_RACKS);
        for Member { rack, .. } in strange {
            // The metadata has no exchange record for such a rack.
            tracing::error!("{rack} is left alone: racks are numbered 0 to {}", MAX_RACKS - 1);
        }
        let own = self.rack.geometry.rack;
        let others = members.iter().filter(|member| member.alive && member.rack != own);
        self.metrics.note_other_racks(others.map(|member| member.rack).collect());
        self.machine.members_changed(members);
        self.run_machine()?;
        self.drive_peers(self.now())
    }

    /// Ends the endpoint over which requests are sent to a rack.
    pub(super) fn disconnect_rack(&mut self, rack: RackId) {
        if let Some(endpoint) = self.peers.connected_endpoint(rack) {
            self.fabric.disconnect(endpoint);
        }
    }
}
