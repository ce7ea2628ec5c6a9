//! The state machine of requests, answers, buffers and deadlines.

mod caller;
mod endings;
mod in_flight;
mod peer;
mod probes;
mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, ErrorClass, FabricError, Operation, WorkRequest};

use crate::budget::{Charge, ReadBudget};
use crate::flow::Offer;
use crate::slots::Slots;
use crate::windows::{LEAST_WINDOW, Windows};
use crate::{
    Arena, Block, CallError, CallEvent, CallId, InFlightLimits, RequestId, RpcMetrics, Thresholds,
};
use peer::{Due, Peer, Role, Work};
pub use server::Route;

/// Limit of unanswered requests to one peer.
pub const MOST_OPEN: u32 = 4096;

/// An input of the machine.
#[derive(Debug)]
pub enum RpcEvent {
    /// An endpoint is open.
    Opened {
        /// The endpoint.
        endpoint: EndpointId,
        /// Whether the machine must calibrate the endpoint.
        calibrate: bool,
    },
    /// A message has arrived.
    Arrived {
        /// The endpoint.
        endpoint: EndpointId,
        /// The bytes of the message, which are not trusted.
        bytes: Vec<u8>,
    },
    /// A posted one-sided request has completed.
    Completed {
        /// The id, chosen by the machine.
        id: u64,
        /// `Ok` if the request was executed.
        result: Result<(), FabricError>,
    },
    /// An endpoint has ended: no write of its peer can land any more.
    Ended {
        /// The endpoint.
        endpoint: EndpointId,
        /// The error for everything that was open on it.
        error: FabricError,
    },
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An output of the machine, which the shell executes.
#[derive(Debug, PartialEq, Eq)]
pub enum RpcAction {
    /// Post the list, and report by [`RpcMachine::settle`] whether the fabric accepted it.
    Post {
        /// The endpoint.
        endpoint: EndpointId,
        /// The requests.
        list: Vec<WorkRequest>,
    },
    /// Send a message, and report by [`RpcMachine::settle`] if the fabric refused it.
    Send {
        /// The endpoint.
        endpoint: EndpointId,
        /// The bytes of the message.
        message: Vec<u8>,
    },
    /// Flush the lists and messages accepted since the last flush.
    Flush {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// Close the endpoint, and log the reason for the operator.
    Disconnect {
        /// The endpoint.
        endpoint: EndpointId,
        /// The reason.
        why: String,
    },
    /// Answer a probe with `len` arbitrary bytes of the arena.
    AnswerProbe {
        /// Id of the request, for the answer.
        ask: RequestId,
        /// Length of the data, in bytes.
        len: u32,
    },
}

/// The result of an [`RpcAction`].
#[derive(Debug)]
pub enum Outcome {
    /// The fabric accepted the list of [`RpcAction::Post`].
    Posted {
        /// The endpoint.
        endpoint: EndpointId,
        /// The list, whose allocation is reused.
        list: Vec<WorkRequest>,
    },
    /// The fabric refused the list of [`RpcAction::Post`].
    PostRefused {
        /// The endpoint.
        endpoint: EndpointId,
        /// The error.
        error: FabricError,
    },
    /// The fabric refused the message of [`RpcAction::Send`].
    SendRefused {
        /// The endpoint.
        endpoint: EndpointId,
        /// The message.
        message: Vec<u8>,
        /// The error.
        error: FabricError,
    },
}

/// The state machine of requests between this rack and its peers.
///
/// The owner calls methods; the shell passes in each [`RpcEvent`]. After either,
/// [`call_events`](Self::call_events) yields the events for the owner and [`poll`](Self::poll) the
/// actions for the shell. The machine's time is that of the last event.
#[derive(Debug)]
pub struct RpcMachine {
    now: Instant,
    arena: Arena,
    depth: usize,
    /// Time that a peer has to read exposed data.
    exposes_for: Duration,
    peers: BTreeMap<EndpointId, Peer>,
    works: Slots<Work>,
    deadlines: BTreeSet<(Instant, Due)>,
    /// Answers that wait for a block to read their data into, in the order of arrival.
    starved: VecDeque<CallId>,
    /// Endpoints that may have something to offer to the fabric, each at most once.
    ready: VecDeque<EndpointId>,
    /// Whether the fabric refused an offer of any endpoint in this round for lack of room.
    any_waits: bool,
    /// The budget of the owner's reads.
    reads: ReadBudget,
    /// The windows of the peers' writes.
    windows: Windows,
    actions: VecDeque<RpcAction>,
    call_events: VecDeque<CallEvent>,
    metrics: RpcMetrics,
}

impl RpcMachine {
    /// A machine without peers, over a fabric with this queue depth.
    #[must_use]
    pub fn new(now: Instant, arena: Arena, queue_depth: usize, limits: InFlightLimits) -> Self {
        Self {
            now,
            arena,
            depth: queue_depth,
            exposes_for: server::EXPOSED,
            peers: BTreeMap::new(),
            works: Slots::new(u32::MAX),
            deadlines: BTreeSet::new(),
            starved: VecDeque::new(),
            ready: VecDeque::new(),
            any_waits: false,
            reads: ReadBudget::new(limits.reads.max(LEAST_WINDOW)),
            windows: Windows::new(limits.peer_writes),
            actions: VecDeque::new(),
            call_events: VecDeque::new(),
            metrics: RpcMetrics::default(),
        }
    }

    /// Processes an event.
    pub fn handle(&mut self, now: Instant, event: RpcEvent) {
        self.now = self.now.max(now);
        match event {
            RpcEvent::Opened { endpoint, calibrate } => self.opened(endpoint, calibrate),
            RpcEvent::Arrived { endpoint, bytes } => self.arrived(endpoint, bytes),
            RpcEvent::Completed { id, result } => self.completed(id, result),
            RpcEvent::Ended { endpoint, error } => self.ended(endpoint, &error),
            RpcEvent::DeadlinePassed => self.expire(),
        }
    }

    /// Processes the result of an [`RpcAction`]. The shell must call it before the next
    /// [`poll`](Self::poll).
    pub fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Posted { endpoint, list } => self.posted(endpoint, list),
            Outcome::PostRefused { endpoint, error } => self.post_refused(endpoint, &error),
            Outcome::SendRefused { endpoint, message, error } => {
                self.send_refused(endpoint, message, &error);
            }
        }
    }

    /// The next event for the owner.
    pub fn call_events(&mut self) -> Option<CallEvent> {
        self.call_events.pop_front()
    }

    /// Sets how long a peer may take to read exposed data before its endpoint is closed; 2 s by
    /// default.
    pub const fn expose_for(&mut self, time: Duration) {
        self.exposes_for = time;
    }

    /// Begins a poll round: work for which the fabric had no room is offered again.
    pub fn new_round(&mut self) {
        if !std::mem::take(&mut self.any_waits) {
            return;
        }
        for (endpoint, peer) in &mut self.peers {
            if peer.flow.new_round() {
                peer.queue(*endpoint, &mut self.ready);
            }
        }
    }

    /// The next action. The shell calls it after all events of a poll round, until it returns
    /// `None`. The work for a peer is one list and its messages, followed by one flush.
    pub fn poll(&mut self) -> Option<RpcAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        while let Some(endpoint) = self.ready.front().copied() {
            let mut peer = self.peers.get_mut(&endpoint);
            let open = peer.as_mut().filter(|peer| !peer.is_ending);
            let reads = &mut self.reads;
            let last = match open.and_then(|peer| peer.flow.next(endpoint, reads)) {
                Some(Offer::Post(list)) => return Some(RpcAction::Post { endpoint, list }),
                Some(Offer::Send(message)) => return Some(RpcAction::Send { endpoint, message }),
                Some(Offer::Flush { messages }) => {
                    self.metrics.messages += messages;
                    self.metrics.doorbells += 1;
                    Some(RpcAction::Flush { endpoint })
                }
                None => None,
            };
            let mut waits_for_reads = false;
            if let Some(peer) = peer {
                peer.is_queued = false;
                waits_for_reads = peer.flow.waits_for_reads() && !peer.is_ending;
            }
            self.ready.pop_front();
            if !waits_for_reads {
                self.stop_waiting(endpoint);
            }
            if last.is_some() {
                return last;
            }
        }
        None
    }

    /// When [`RpcEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The counters so far.
    #[must_use]
    pub const fn metrics(&self) -> RpcMetrics {
        self.metrics
    }

    /// The arena of the buffers.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The thresholds of an open endpoint.
    #[must_use]
    pub fn thresholds(&self, endpoint: EndpointId) -> Option<Thresholds> {
        self.peers.get(&endpoint).map(|peer| peer.thresholds)
    }

    /// Takes a block for the data of an answer. Returns `None` if the part for answers has no room.
    pub fn take_block(&mut self, len: u32) -> Option<Block> {
        self.arena.take_for_answer(len)
    }

    /// Frees a block. The caller must ensure that no party uses it any more.
    pub fn give_back(&mut self, block: Block) {
        self.arena.give_back(block);
        self.feed_starved();
    }

    /// Queues a one-sided operation on a known place. It ends with [`CallEvent::Transferred`].
    pub fn transfer(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        operation: Operation,
    ) -> Result<(), CallError> {
        if self.peers.get(&endpoint).is_none_or(|peer| peer.is_ending) {
            return Err(CallError::NotConnected);
        }
        self.post(endpoint, Role::Transfer { id }, operation, Charge::of(&operation), None);
        Ok(())
    }

    /// Removes the owner's transfers that are not posted yet and meet the condition; they get no
    /// event. Returns their ids.
    pub fn withdraw_transfers(&mut self, mut which: impl FnMut(u64) -> bool) -> Vec<u64> {
        let Self { peers, works, ready, .. } = self;
        let mut withdrawn = Vec::new();
        for (endpoint, peer) in peers {
            let gone = peer.flow.withdraw(|work| match works.get_mut(work) {
                Some(Work { role: Role::Transfer { id }, .. }) if which(*id) => {
                    withdrawn.push(*id);
                    true
                }
                _ => false,
            });
            if !gone.is_empty() {
                // What was behind the withdrawn ones may fit.
                peer.queue(*endpoint, ready);
            }
            for work in gone {
                works.remove(work);
            }
        }
        withdrawn
    }

    /// Returns true if work for a peer is queued that [`poll`](Self::poll) has not returned yet.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The number of one-sided requests to all peers that wait to be posted.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.peers.values().map(|peer| peer.flow.unposted()).sum()
    }

    fn opened(&mut self, endpoint: EndpointId, calibrate: bool) {
        self.peers.insert(endpoint, Peer::new(self.depth));
        self.windows.opened(endpoint);
        self.tell_windows();
        if calibrate {
            self.calibrate(endpoint);
        }
    }

    fn tell(&mut self, call_events: CallEvent) {
        self.call_events.push_back(call_events);
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) {
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            peer.send(endpoint, message, &mut self.ready);
        }
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        role: Role,
        operation: Operation,
        charge: Charge,
        then: Option<Vec<u8>>,
    ) {
        // The table cannot be full: it has room for 2^32 - 1 requests.
        let Ok(id) = self.works.insert(Work { endpoint, role, charge }) else { return };
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            peer.flow.post(WorkRequest { id, operation }, charge, then);
            peer.queue(endpoint, &mut self.ready);
        }
    }

    /// Closes an endpoint whose peer broke a rule.
    fn cut_off(&mut self, endpoint: EndpointId, why: String) {
        if let Some(peer) = self.peers.get_mut(&endpoint)
            && !std::mem::replace(&mut peer.is_ending, true)
        {
            self.actions.push_back(RpcAction::Disconnect { endpoint, why });
        }
    }

    fn posted(&mut self, endpoint: EndpointId, list: Vec<WorkRequest>) {
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            self.metrics.operations += peer.flow.posted(list) as u64;
        }
    }

    fn post_refused(&mut self, endpoint: EndpointId, error: &FabricError) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        match error.class() {
            ErrorClass::Retry => {
                peer.flow.post_later(&mut self.reads);
                self.any_waits = true;
            }
            ErrorClass::Fatal => {
                if let Some(id) = peer.flow.post_refused(&mut self.reads) {
                    self.failed_work(id, error);
                }
            }
            // The endpoint has ended; its last event follows soon.
            _ => {
                peer.flow.post_later(&mut self.reads);
                peer.is_ending = true;
            }
        }
    }

    fn send_refused(&mut self, endpoint: EndpointId, message: Vec<u8>, error: &FabricError) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        peer.flow.send_later(message);
        self.any_waits = true;
        match error.class() {
            ErrorClass::Retry => {}
            ErrorClass::Fatal => self.cut_off(endpoint, format!("sending to it failed: {error}")),
            _ => peer.is_ending = true,
        }
    }
}
