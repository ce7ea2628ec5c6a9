//! Requests, answers, buffers and deadlines.

mod caller;
mod endings;
mod peer;
mod probes;
mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, ErrorClass, FabricError, Operation, WorkRequest};

use crate::flow::Offer;
use crate::slots::Slots;
use crate::{Arena, Block, CallError, CallEvent, CallId, RequestId, RpcMetrics, Thresholds};
use peer::{Due, Peer, Role, Work};
pub use server::Route;

/// Requests to one peer that may be without an answer.
pub const MOST_OPEN: u32 = 4096;

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// An endpoint is open.
    Opened {
        /// Which one.
        endpoint: EndpointId,
        /// Whether its modes are to be measured.
        calibrate: bool,
    },
    /// A message has arrived.
    Arrived {
        /// Over which endpoint.
        endpoint: EndpointId,
        /// Its bytes, which are not trusted.
        bytes: Vec<u8>,
    },
    /// A posted request has ended.
    Completed {
        /// Its id, which the machine chose.
        id: u64,
        /// Whether it was done.
        result: Result<(), FabricError>,
    },
    /// An endpoint has ended: no write of its peer can land any more.
    Ended {
        /// Which one.
        endpoint: EndpointId,
        /// Why.
        error: FabricError,
    },
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
}

/// What the shell has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Post the list and tell whether it was taken.
    Post {
        /// Over which endpoint.
        endpoint: EndpointId,
        /// The requests.
        list: Vec<WorkRequest>,
    },
    /// Send a message, and tell if it was not taken.
    Send {
        /// Over which endpoint.
        endpoint: EndpointId,
        /// Its bytes.
        message: Vec<u8>,
    },
    /// Ring for what was taken since the last time, lists and messages.
    Flush {
        /// On which endpoint.
        endpoint: EndpointId,
    },
    /// End the endpoint, and tell the operator why.
    Disconnect {
        /// Which one.
        endpoint: EndpointId,
        /// Why.
        why: String,
    },
    /// Answer a probe with so many bytes of the arena, whatever they are.
    AnswerProbe {
        /// To be named in the answer.
        ask: RequestId,
        /// How many bytes.
        len: u32,
    },
}

/// What became of an [`Action`].
#[derive(Debug)]
pub enum Outcome {
    /// The list of [`Action::Post`] was taken.
    Posted {
        /// By which endpoint.
        endpoint: EndpointId,
        /// The list, whose memory is used again.
        list: Vec<WorkRequest>,
    },
    /// The list of [`Action::Post`] was not taken.
    PostRefused {
        /// By which endpoint.
        endpoint: EndpointId,
        /// Why.
        error: FabricError,
    },
    /// The message of [`Action::Send`] was not taken.
    SendRefused {
        /// By which endpoint.
        endpoint: EndpointId,
        /// The message.
        message: Vec<u8>,
        /// Why.
        error: FabricError,
    },
}

/// Requests between this rack and its peers.
///
/// What the owner wants are functions; what happens is an [`Event`]. After either,
/// [`call_events`](Self::events) gives what the owner is told and [`poll`](Self::poll) what the
/// shell has to do. The time is that of the last event.
#[derive(Debug)]
pub struct RpcMachine {
    now: Instant,
    arena: Arena,
    depth: usize,
    /// How long a peer may read what it was exposed.
    exposes_for: Duration,
    peers: BTreeMap<EndpointId, Peer>,
    works: Slots<Work>,
    deadlines: BTreeSet<(Instant, Due)>,
    /// Answers whose data finds no block.
    starved: VecDeque<CallId>,
    /// Endpoints with something to offer, each once.
    ready: VecDeque<EndpointId>,
    /// Whether a fabric had no room for what an endpoint offered in this round.
    any_waits: bool,
    actions: VecDeque<Action>,
    call_events: VecDeque<CallEvent>,
    metrics: RpcMetrics,
}

impl RpcMachine {
    /// A machine without peers, over a fabric with queues of this depth.
    #[must_use]
    pub fn new(now: Instant, arena: Arena, queue_depth: usize) -> Self {
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
            actions: VecDeque::new(),
            call_events: VecDeque::new(),
            metrics: RpcMetrics::default(),
        }
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, now: Instant, event: Event) {
        self.now = self.now.max(now);
        match event {
            Event::Opened { endpoint, calibrate } => self.opened(endpoint, calibrate),
            Event::Arrived { endpoint, bytes } => self.arrived(endpoint, bytes),
            Event::Completed { id, result } => self.completed(id, result),
            Event::Ended { endpoint, error } => self.ended(endpoint, &error),
            Event::DeadlinePassed => self.expire(),
        }
    }

    /// Takes in what became of an [`Action`], before the next one is asked for.
    pub fn settle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Posted { endpoint, list } => self.posted(endpoint, list),
            Outcome::PostRefused { endpoint, error } => self.post_refused(endpoint, &error),
            Outcome::SendRefused { endpoint, message, error } => {
                self.send_refused(endpoint, message, &error);
            }
        }
    }

    /// The next thing the owner is told.
    pub fn call_events(&mut self) -> Option<CallEvent> {
        self.call_events.pop_front()
    }

    /// Who does not say for so long that it has read what it was exposed is cut off, and no sooner;
    /// 2 s unless said.
    pub const fn expose_for(&mut self, time: Duration) {
        self.exposes_for = time;
    }

    /// A poll round ends: what found no room in the last one is offered again.
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

    /// The next thing to do. Call it when all events of a poll round are in, until there is nothing
    /// more: what has gathered for a peer goes as one list and its messages, with one doorbell.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        while let Some(endpoint) = self.ready.front().copied() {
            let mut peer = self.peers.get_mut(&endpoint);
            let open = peer.as_mut().filter(|peer| !peer.is_ending);
            let last = match open.and_then(|peer| peer.flow.next()) {
                Some(Offer::Post(list)) => return Some(Action::Post { endpoint, list }),
                Some(Offer::Send(message)) => return Some(Action::Send { endpoint, message }),
                Some(Offer::Flush { messages }) => {
                    self.metrics.messages += messages;
                    self.metrics.doorbells += 1;
                    Some(Action::Flush { endpoint })
                }
                None => None,
            };
            if let Some(peer) = peer {
                peer.is_queued = false;
            }
            self.ready.pop_front();
            if last.is_some() {
                return last;
            }
        }
        None
    }

    /// When [`Event::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The counts so far.
    #[must_use]
    pub const fn metrics(&self) -> RpcMetrics {
        self.metrics
    }

    /// The buffers.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What is known of an open endpoint: which mode for which size.
    #[must_use]
    pub fn thresholds(&self, endpoint: EndpointId) -> Option<Thresholds> {
        self.peers.get(&endpoint).map(|peer| peer.thresholds)
    }

    /// Takes a block of the arena for data of an answer; `None` while answers have no room.
    pub fn take_block(&mut self, len: u32) -> Option<Block> {
        self.arena.take_for_answer(len)
    }

    /// Takes back a block that nobody uses any more.
    pub fn give_back(&mut self, block: Block) {
        self.arena.give_back(block);
        self.feed_starved();
    }

    /// Has a one-sided operation on a known place done. It ends with [`CallEvent::Transferred`].
    pub fn transfer(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        operation: Operation,
    ) -> Result<(), CallError> {
        if self.peers.get(&endpoint).is_none_or(|peer| peer.is_ending) {
            return Err(CallError::NotConnected);
        }
        self.post(endpoint, Role::Transfer { id }, operation, None);
        Ok(())
    }

    /// Takes back the owner's transfers that were not posted yet and meet the condition: they
    /// don't end. Returns their ids.
    pub fn withdraw_transfers(&mut self, mut which: impl FnMut(u64) -> bool) -> Vec<u64> {
        let Self { peers, works, .. } = self;
        let mut withdrawn = Vec::new();
        for peer in peers.values_mut() {
            let gone = peer.flow.withdraw(|work| match works.get_mut(work) {
                Some(Work { role: Role::Transfer { id }, .. }) if which(*id) => {
                    withdrawn.push(*id);
                    true
                }
                _ => false,
            });
            for work in gone {
                works.remove(work);
            }
        }
        withdrawn
    }

    /// Whether something has gathered for a peer since [`poll`](Self::poll) gave the last of it.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        !self.ready.is_empty()
    }

    /// One-sided requests that wait to be posted, to all peers.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.peers.values().map(|peer| peer.flow.unposted()).sum()
    }

    fn opened(&mut self, endpoint: EndpointId, calibrate: bool) {
        self.peers.insert(endpoint, Peer::new(self.depth));
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
        then: Option<Vec<u8>>,
    ) {
        // There are never as many as there are numbers.
        let Ok(id) = self.works.insert(Work { endpoint, role }) else { return };
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            peer.flow.post(WorkRequest { id, operation }, then);
            peer.queue(endpoint, &mut self.ready);
        }
    }

    /// Ends an endpoint whose peer broke a rule.
    fn cut_off(&mut self, endpoint: EndpointId, why: String) {
        if let Some(peer) = self.peers.get_mut(&endpoint)
            && !std::mem::replace(&mut peer.is_ending, true)
        {
            self.actions.push_back(Action::Disconnect { endpoint, why });
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
                peer.flow.post_later();
                self.any_waits = true;
            }
            ErrorClass::Fatal => {
                if let Some(id) = peer.flow.post_refused() {
                    self.failed_work(id, error);
                }
            }
            // It has ended and is heard of for the last time soon.
            _ => {
                peer.flow.post_later();
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
