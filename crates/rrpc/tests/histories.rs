//! Random histories of two racks, checked against a simple model: which requests are open, which
//! bytes they must return, and which buffers are in use.
//!
//! The histories contain requests in all modes in both directions, early, late and missing answers,
//! cancellations, deadlines, lack of room, transfers, and connections that end at any time, with
//! writes that land until the target has seen the end.

#![allow(clippy::unwrap_used, reason = "a panic is a test's failure")]

mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rackpool_fabric::{MemoryRegion, Operation, RegionId, RemoteRegion, Transfer};
use rackpool_rrpc::{
    Call, CallError, CallEvent, CallId, Data, Failure, Mode, Overdue, Place, RequestId, Wants,
};
use world::net::lock;
use world::{World, frames_bytes};

const ARENA: u64 = 96 << 10;
const LENGTHS: [u32; 8] = [0, 1, 64, 512, 513, 5000, 30_000, 70_000];
/// Places that a rack names in requests, of 8 KiB each.
const PLACES: u64 = 4;
const PLACE_BYTES: u32 = 8 << 10;

/// A request that has not ended.
struct Open {
    wants: Wants,
    place: Option<Place>,
    deadline: Instant,
    overdue: Overdue,
}

/// The model of one rack.
#[derive(Default)]
struct Known {
    open: BTreeMap<CallId, Open>,
    /// Places to which a peer may still write.
    reserved: BTreeMap<CallId, Place>,
    asked: VecDeque<(RequestId, Vec<u8>)>,
    /// Data of answers that was not given back, with its expected bytes.
    held: Vec<(Data, Vec<u8>)>,
    transfers: BTreeSet<u64>,
    next: u64,
}

struct History {
    world: World,
    known: [Known; 2],
}

impl History {
    fn new() -> Self {
        let world = World::apart(ARENA, 4);
        lock(&world.net).connect(true);
        Self { world, known: Default::default() }
    }

    fn step(&mut self, [what, a, b, c]: [u8; 4]) {
        let side = usize::from(a & 1);
        match what % 16 {
            0..=3 => self.call(side, a, b, c),
            4..=6 => self.answer(side, b, c),
            7..=9 => {
                for _ in 0..=b % 8 {
                    lock(&self.world.net).advance(side);
                }
            }
            10 => self.cancel(side, b),
            11 => {
                let time = Duration::from_micros(u64::from(b) * 40);
                self.world.pass(time);
            }
            12 => self.connection(side, b),
            13 => lock(&self.world.net).ends[side].full = b % 4,
            14 => self.transfer(side, b),
            _ => self.give_back(side, b),
        }
        self.world.round(side);
        self.learn();
    }

    fn call(&mut self, side: usize, a: u8, b: u8, c: u8) {
        let Some(endpoint) = lock(&self.world.net).endpoint(side) else { return };
        let len = LENGTHS[usize::from(b) % LENGTHS.len()];
        let wants = match a >> 1 & 3 {
            0 => Wants::Head,
            1 => Wants::UpTo(len),
            _ => Wants::Exactly(len),
        };
        let mode = Mode::ALL.get(usize::from(c & 3)).copied();
        let known = &mut self.known[side];
        let used = |place: &Place| {
            let open = known.open.values().filter_map(|open| open.place);
            let held = known.held.iter().filter_map(|(data, _)| match data {
                Data::Place(place) => Some(*place),
                _ => None,
            });
            let mut all = open.chain(held).chain(known.reserved.values().copied());
            all.any(|other| other.offset == place.offset)
        };
        let place = World::in_own(u64::from(c >> 2) % PLACES * u64::from(PLACE_BYTES), PLACE_BYTES);
        let place = Some(place).filter(|place| c & 0x40 != 0 && !used(place));
        let deadline = self.world.now + Duration::from_millis(1 + u64::from(b >> 3));
        let overdue = if c & 0x80 == 0 { Overdue::GiveUp } else { Overdue::CutOff };
        // Determines the place of the data, since the answer repeats the body.
        let body = [c, b, len.to_le_bytes()[0]];
        let call = Call { body: &body, wants, into: place, mode, deadline, overdue };
        match self.world.sides[side].rrpc.call(endpoint, &call) {
            Ok(id) => {
                let open = Open { wants, place, deadline, overdue };
                assert!(known.open.insert(id, open).is_none(), "numbers are not used again");
            }
            Err(CallError::NoRoom { .. } | CallError::TooLong { .. } | CallError::NotConnected) => {
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn answer(&mut self, side: usize, b: u8, c: u8) {
        let known = &mut self.known[side];
        let at = usize::from(b) % known.asked.len().max(1);
        let Some((ask, body)) = known.asked.remove(at) else { return };
        let len = LENGTHS[usize::from(body[1]) % LENGTHS.len()];
        let (offset, len) = place_of(&body, len);
        let side = &mut self.world.sides[side];
        match c % 8 {
            0 => side.rrpc.refuse(ask, 3),
            1 => side.rrpc.answer(ask, &body, &[]),
            2..=4 => {
                let mut bytes = vec![0; len as usize];
                side.frames.read(offset, &mut bytes).unwrap();
                side.rrpc.answer(ask, &body, &bytes);
            }
            _ => {
                let place = World::in_frames(offset, len);
                side.rrpc.answer_from(ask, &body, place, &*side.frames).unwrap();
            }
        }
    }

    fn cancel(&mut self, side: usize, b: u8) {
        let known = &mut self.known[side];
        let at = usize::from(b) % known.open.len().max(1);
        let Some(call) = known.open.keys().nth(at).copied() else { return };
        self.world.sides[side].rrpc.cancel(call);
        if let Some(place) = known.open.remove(&call).and_then(|open| open.place) {
            known.reserved.insert(call, place);
        }
    }

    fn connection(&mut self, side: usize, b: u8) {
        let mut net = lock(&self.world.net);
        if net.is_apart() {
            drop(net);
            self.world.round(0);
            self.world.round(1);
            self.learn();
            lock(&self.world.net).connect(b & 1 == 0);
        } else if b.is_multiple_of(8) {
            net.cut();
        } else {
            net.end(side);
            drop(net);
            self.learn_of_the_end(side);
        }
    }

    /// Everything that is open when a rack sees the end must end in the same round.
    fn learn_of_the_end(&mut self, side: usize) {
        self.world.round(side);
        self.learn();
        if lock(&self.world.net).endpoint(side).is_none() {
            assert!(self.known[side].open.is_empty(), "a request outlives its endpoint");
            assert!(self.known[side].reserved.is_empty(), "a place is reserved for nobody");
            assert!(self.known[side].transfers.is_empty());
            self.known[side].asked.clear();
        }
    }

    fn transfer(&mut self, side: usize, b: u8) {
        let Some(endpoint) = lock(&self.world.net).endpoint(side) else { return };
        let known = &mut self.known[side];
        known.next += 1;
        // Behind the places. Every eighth transfer leaves the region and must fail alone.
        let local_offset =
            if b.is_multiple_of(8) { 1 << 20 } else { PLACES * u64::from(PLACE_BYTES) };
        let (local, remote) = (RegionId(2), RemoteRegion(0));
        let transfer = Transfer { local, local_offset, remote, remote_offset: b.into(), len: 1000 };
        let read = Operation::Read(transfer);
        if self.world.sides[side].rrpc.transfer(endpoint, known.next, read).is_ok() {
            known.transfers.insert(known.next);
        }
    }

    fn give_back(&mut self, side: usize, b: u8) {
        let known = &mut self.known[side];
        if known.held.is_empty() {
            return;
        }
        let (data, _) = known.held.swap_remove(usize::from(b) % known.held.len());
        if let Data::Arena { block, .. } = data {
            self.world.sides[side].rrpc.give_back(block);
        }
    }

    /// Checks the racks' events against the model, and that data held by the racks does not change.
    fn learn(&mut self) {
        for side in [0, 1] {
            for call_events in self.world.call_events(side) {
                self.hear(side, call_events);
            }
            for (data, expected) in &self.known[side].held {
                assert!(self.bytes(side, data) == *expected, "a buffer in use was written to");
            }
        }
    }

    fn hear(&mut self, side: usize, call_events: CallEvent) {
        let known = &mut self.known[side];
        match call_events {
            CallEvent::Answered { call, head, data } => {
                let open = known.open.remove(&call).expect("a request ends once");
                let most = match open.wants {
                    Wants::Head => 0,
                    Wants::UpTo(most) | Wants::Exactly(most) => most,
                };
                assert!(data.len() <= u64::from(most));
                if let Data::Place(place) = &data {
                    assert_eq!(Some(place.offset), open.place.map(|place| place.offset));
                }
                let (offset, _) = place_of(&head, 0);
                let (offset, len) =
                    (usize::try_from(offset).unwrap(), usize::try_from(data.len()).unwrap());
                let expected = frames_bytes(1 - side)[offset..][..len].to_vec();
                assert!(self.bytes(side, &data) == expected, "not what was answered");
                self.known[side].held.push((data, expected));
            }
            CallEvent::Failed { call, failure } => {
                let open = known.open.remove(&call).expect("a request ends once");
                if failure == Failure::DeadlinePassed {
                    assert!(open.deadline <= self.world.now && open.overdue == Overdue::GiveUp);
                    if let Some(place) = open.place {
                        known.reserved.insert(call, place);
                    }
                }
            }
            CallEvent::Free { call, place } => {
                let reserved = known.reserved.remove(&call).map(|place| place.offset);
                assert_eq!(reserved, Some(place.offset), "a place is free once");
            }
            CallEvent::Asked { ask, body } => known.asked.push_back((ask, body.to_vec())),
            CallEvent::Withdrawn { ask } => known.asked.retain(|(other, _)| *other != ask),
            CallEvent::Transferred { id, .. } => {
                assert!(known.transfers.remove(&id), "it ends once")
            }
            _ => {}
        }
    }

    fn bytes(&self, side: usize, data: &Data) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(data.len()).unwrap()];
        let side = &self.world.sides[side];
        match data {
            Data::None => {}
            Data::Message(message) => bytes.copy_from_slice(message),
            Data::Arena { block, .. } => side.rrpc.read(block, &mut bytes).unwrap(),
            Data::Place(place) => side.own.read(place.offset, &mut bytes).unwrap(),
        }
        bytes
    }

    /// Lets both racks do all possible work; answers all requests and takes all answers.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            for side in [0, 1] {
                lock(&self.world.net).ends[side].full = 0;
                self.answer(side, 0, 7);
                self.give_back(side, 0);
                for _ in 0..8 {
                    lock(&self.world.net).advance(side);
                }
                self.world.round(side);
            }
            self.learn();
        }
    }

    /// Checks that every request ends and every buffer is freed if everything gets through and
    /// nothing fails.
    fn settle(mut self) {
        if lock(&self.world.net).is_apart() {
            self.connection(0, 0);
        }
        self.rounds(1000);
        for side in [0, 1] {
            lock(&self.world.net).end(side);
            self.learn_of_the_end(side);
        }
        for known in &self.known {
            assert!(known.open.is_empty(), "{} requests have no end", known.open.len());
            assert!(known.reserved.is_empty() && known.transfers.is_empty());
        }
        // Calibrations have timeouts of their own.
        self.world.pass(Duration::from_secs(1));
        self.rounds(100);
        while self.known.iter().any(|known| !known.held.is_empty()) {
            self.give_back(0, 0);
            self.give_back(1, 0);
        }
        for side in &self.world.sides {
            assert_eq!(side.rrpc.free_bytes(), ARENA, "a buffer is lost");
        }
    }
}

/// The place of the data for a request with this body.
fn place_of(body: &[u8], len: u32) -> (u64, u32) {
    let offset = body.iter().fold(0_u64, |at, byte| at * 31 + u64::from(*byte)) % 50_000;
    (offset, len)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_with_its_bytes_and_no_buffer_is_written_to_in_use(
        steps in proptest::collection::vec(any::<[u8; 4]>(), 1..400),
    ) {
        let mut history = History::new();
        steps.into_iter().for_each(|step| history.step(step));
        history.settle();
    }
}
