//! Bytes in flight: one rack with many clients' transfers to eight peers, each of which has windows
//! for it and gets some from it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use proptest::prelude::*;
use rackpool_fabric::{
    EndpointId, FabricError, Operation, RegionId, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_rrpc::message::{self, Message};
use rackpool_rrpc::{Arena, CallEvent, InFlightLimits, Outcome, RpcAction, RpcEvent, RpcMachine};

const PEERS: usize = 8;
const PIECE: u32 = 64 << 10;
const LIMITS: InFlightLimits = InFlightLimits { reads: 256 << 10, peer_writes: 1 << 20 };

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client wants a transfer with a peer.
    Transfer { peer: usize, is_read: bool, len: u32 },
    /// A poll round, in which the fabric may have no room for what one endpoint posts.
    Round { refused: Option<usize> },
    /// One of the posted requests completes.
    Complete(usize),
    /// A peer changes its window.
    Grant { peer: usize, bytes: u32 },
    /// A peer confirms its window.
    Confirm(usize),
    /// A peer's endpoint ends, and a new one opens.
    Replace(usize),
    /// A client has gone: its transfers are withdrawn, one in this many.
    Withdraw(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let peer = 0..PEERS;
    prop_oneof![
        6 => (peer.clone(), any::<bool>(), prop_oneof![1..=PIECE, Just(PIECE)])
            .prop_map(|(peer, is_read, len)| Step::Transfer { peer, is_read, len }),
        4 => prop::option::weighted(0.2, peer.clone()).prop_map(|refused| Step::Round { refused }),
        6 => any::<usize>().prop_map(Step::Complete),
        1 => (peer.clone(), 1_u32..8).prop_map(|(peer, pieces)| Step::Grant {
            peer,
            bytes: pieces * PIECE
        }),
        1 => peer.clone().prop_map(Step::Confirm),
        1 => peer.prop_map(Step::Replace),
        1 => (2_u64..5).prop_map(Step::Withdraw),
    ]
}

/// A peer as this rack sees it.
#[derive(Debug, Default)]
struct Peer {
    endpoint: Option<EndpointId>,
    /// The window that the peer has granted last.
    granted: u32,
    /// Whether this rack has confirmed it.
    is_confirmed: bool,
    /// A window that this rack has told the peer, and that the peer has not confirmed.
    told: Option<u32>,
}

struct Rack {
    machine: RpcMachine,
    now: Instant,
    peers: Vec<Peer>,
    endpoints: u64,
    posted: BTreeMap<u64, (EndpointId, Operation)>,
    /// Transfers without an event.
    open: BTreeSet<u64>,
    transfers: u64,
}

impl Rack {
    fn new() -> Self {
        let arena = Arena::new(RegionId(0), RemoteRegion(1), 256 << 10);
        let now = Instant::now();
        let mut rack = Self {
            machine: RpcMachine::new(now, arena, 16, LIMITS),
            now,
            peers: (0..PEERS).map(|_| Peer::default()).collect(),
            endpoints: 0,
            posted: BTreeMap::new(),
            open: BTreeSet::new(),
            transfers: 0,
        };
        (0..PEERS).for_each(|peer| rack.opens(peer));
        rack
    }

    fn opens(&mut self, peer: usize) {
        self.endpoints += 1;
        let endpoint = EndpointId(self.endpoints);
        self.peers[peer] = Peer { endpoint: Some(endpoint), ..Peer::default() };
        self.machine.handle(self.now, RpcEvent::Opened { endpoint, calibrate: false });
        self.grant(peer, 2 * PIECE);
    }

    fn grant(&mut self, peer: usize, bytes: u32) {
        let peer = &mut self.peers[peer];
        // A peer waits for the confirmation of its last window.
        if peer.granted > 0 && !peer.is_confirmed {
            return;
        }
        (peer.granted, peer.is_confirmed) = (bytes, false);
        let event =
            RpcEvent::Arrived { endpoint: peer.endpoint.unwrap(), bytes: message::window(bytes) };
        self.machine.handle(self.now, event);
    }

    fn confirm(&mut self, peer: usize) {
        let peer = &mut self.peers[peer];
        if let Some(bytes) = peer.told.take() {
            let endpoint = peer.endpoint.unwrap();
            let bytes = message::window_taken(bytes);
            self.machine.handle(self.now, RpcEvent::Arrived { endpoint, bytes });
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Transfer { peer, is_read, len } => {
                let (local, remote) = (RegionId(1), RemoteRegion(0));
                let transfer = Transfer { local, local_offset: 0, remote, remote_offset: 0, len };
                let operation =
                    if is_read { Operation::Read(transfer) } else { Operation::Write(transfer) };
                self.transfers += 1;
                let endpoint = self.peers[peer].endpoint.unwrap();
                self.machine.transfer(endpoint, self.transfers, operation).unwrap();
                self.open.insert(self.transfers);
            }
            Step::Round { refused } => {
                let refused = refused.and_then(|peer| self.peers[peer].endpoint);
                self.round(refused);
            }
            Step::Complete(at) => self.complete(at),
            Step::Grant { peer, bytes } => self.grant(peer, bytes),
            Step::Confirm(peer) => self.confirm(peer),
            Step::Replace(peer) => {
                let endpoint = self.peers[peer].endpoint.unwrap();
                self.posted.retain(|_, (of, _)| *of != endpoint);
                let error = FabricError::PeerGone;
                self.machine.handle(self.now, RpcEvent::Ended { endpoint, error });
                self.opens(peer);
            }
            Step::Withdraw(each) => {
                for id in self.machine.withdraw_transfers(|id| id % each == 0) {
                    assert!(self.open.remove(&id));
                }
            }
        }
        while let Some(event) = self.machine.call_events() {
            if let CallEvent::Transferred { id, .. } = event {
                assert!(self.open.remove(&id), "a transfer ends once");
            }
        }
    }

    fn complete(&mut self, at: usize) {
        let Some(id) = self.posted.keys().nth(at % self.posted.len().max(1)).copied() else {
            return;
        };
        self.posted.remove(&id);
        self.machine.handle(self.now, RpcEvent::Completed { id, result: Ok(()) });
    }

    fn round(&mut self, refused: Option<EndpointId>) {
        self.machine.new_round();
        while let Some(action) = self.machine.poll() {
            match action {
                RpcAction::Post { endpoint, list } if refused == Some(endpoint) => {
                    let error = FabricError::QueueFull { in_flight: 16, asked: list.len() };
                    self.machine.settle(Outcome::PostRefused { endpoint, error });
                }
                RpcAction::Post { endpoint, list } => {
                    list.iter().for_each(|request| self.check(endpoint, request));
                    self.machine.settle(Outcome::Posted { endpoint, list });
                }
                RpcAction::Send { endpoint, message } => self.heard(endpoint, &message),
                RpcAction::Flush { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A peer has received a message.
    fn heard(&mut self, endpoint: EndpointId, bytes: &[u8]) {
        let in_flight = self.in_flight(|of, read| of == endpoint && !read);
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.endpoint == Some(endpoint)) else {
            return;
        };
        match message::decode(bytes).unwrap() {
            Message::Window { bytes } => {
                assert_eq!(peer.told.replace(bytes), None, "one Window at a time");
            }
            Message::WindowTaken { bytes } => {
                assert_eq!((bytes, peer.is_confirmed), (peer.granted, false));
                assert!(in_flight <= bytes.into(), "{in_flight} of {bytes}");
                peer.is_confirmed = true;
            }
            other => panic!("{other:?}"),
        }
    }

    fn in_flight(&self, which: impl Fn(EndpointId, bool) -> bool) -> u64 {
        let posted = self.posted.values();
        let bytes = posted.filter_map(|(endpoint, operation)| {
            let is_read = matches!(operation, Operation::Read(_));
            which(*endpoint, is_read).then(|| u64::from(operation.transfer().len))
        });
        bytes.sum()
    }

    /// Nothing is ever in flight beyond a limit.
    fn check(&mut self, endpoint: EndpointId, request: &WorkRequest) {
        assert!(self.posted.insert(request.id, (endpoint, request.operation)).is_none());
        let reads = self.in_flight(|_, is_read| is_read);
        assert!(reads <= LIMITS.reads, "{reads} of {}", LIMITS.reads);
        let writes = self.in_flight(|of, is_read| of == endpoint && !is_read);
        let peer = self.peers.iter().find(|peer| peer.endpoint == Some(endpoint)).unwrap();
        if matches!(request.operation, Operation::Write(_)) {
            assert!(writes <= peer.granted.into(), "{writes} of {}", peer.granted);
        }
    }

    /// Everything ends if each peer confirms and completes.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.open.is_empty() {
                let in_flight = self.machine.in_flight();
                assert_eq!(in_flight.reads.used, 0);
                assert!(in_flight.reads.peak <= LIMITS.reads);
                assert!(in_flight.peer_writes.peak <= LIMITS.peer_writes, "{in_flight:?}");
                return;
            }
            self.apply(Step::Round { refused: None });
            (0..PEERS).for_each(|peer| self.apply(Step::Confirm(peer)));
            self.apply(Step::Complete(0));
        }
        panic!("{} transfers wait for ever", self.open.len());
    }
}

proptest! {
    #[test]
    fn no_limit_is_exceeded_and_every_transfer_ends(
        steps in prop::collection::vec(step(), 0..600),
    ) {
        let mut rack = Rack::new();
        steps.into_iter().for_each(|step| rack.apply(step));
        rack.finish();
    }
}

fn read(peer: usize) -> Step {
    Step::Transfer { peer, is_read: true, len: PIECE }
}

impl Rack {
    /// Takes all bytes: two pieces of the first peer, one of the second and the third.
    fn fill(&mut self) {
        for peer in [0, 0, 0, 1, 2] {
            self.apply(read(peer));
        }
        self.apply(Step::Round { refused: None });
        assert_eq!(self.reads_of([0, 1, 2]), [2, 1, 1]);
    }

    fn reads_of<const N: usize>(&self, peers: [usize; N]) -> [usize; N] {
        peers.map(|peer| {
            let endpoint = self.peers[peer].endpoint.unwrap();
            self.posted.values().filter(|(of, _)| *of == endpoint).count()
        })
    }

    fn held_up<const N: usize>(&self, peers: [usize; N]) -> [bool; N] {
        peers.map(|peer| self.machine.is_held_up(self.peers[peer].endpoint.unwrap()))
    }
}

#[test]
fn an_endpoint_that_can_not_post_lets_others_read() {
    let mut rack = Rack::new();
    rack.fill();
    // Both wait, and the fabric has no room for the first one.
    rack.apply(read(3));
    rack.apply(read(4));
    rack.apply(Step::Round { refused: None });
    assert_eq!(rack.reads_of([3, 4]), [0, 0]);
    rack.apply(Step::Complete(0));
    rack.apply(Step::Round { refused: Some(3) });
    assert_eq!(rack.reads_of([3, 4]), [0, 1]);
    rack.finish();
}

#[test]
fn an_endpoint_that_waits_for_the_reads_of_others_is_held_up_and_no_other() {
    let mut rack = Rack::new();
    rack.fill();
    rack.apply(read(3));
    rack.apply(Step::Transfer { peer: 4, is_read: false, len: PIECE });
    rack.apply(Step::Round { refused: None });
    assert_eq!(rack.held_up([0, 3, 4]), [false, true, false]);
    // The reads of the first one end with its endpoint.
    rack.apply(Step::Replace(0));
    rack.apply(Step::Round { refused: None });
    assert_eq!(rack.held_up([0, 3, 4]), [false; 3]);
    rack.finish();
}

#[test]
fn a_peer_that_never_answers_leaves_bytes_to_the_others() {
    let mut rack = Rack::new();
    (0..100).for_each(|_| rack.apply(read(0)));
    rack.apply(Step::Round { refused: None });
    let silent = rack.peers[0].endpoint.unwrap();
    for _ in 0..10 {
        rack.apply(read(1));
        rack.apply(Step::Round { refused: None });
        let of_other = rack.posted.iter().find(|(_, (endpoint, _))| *endpoint != silent);
        let id = *of_other.expect("the other peer is read").0;
        rack.posted.remove(&id);
        rack.machine.handle(rack.now, RpcEvent::Completed { id, result: Ok(()) });
    }
    rack.apply(Step::Withdraw(1));
    rack.finish();
}
