//! Connections that are lost at each step while requests of every mode and transfers are open in
//! both directions. Each request ends once, the last ones in the round in which the end is
//! reported, and no buffer is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::conformance::fault::{FaultFabric, Faults};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::{
    DisconnectReason, EndpointId, Event, Fabric, MemoryRegion, Operation, RegionId, RemoteRegion,
    Transfer,
};
use rackpool_model::RackId;
use rackpool_rrpc::{
    Call, CallError, CallEvent, CallId, Data, Failure, InFlightLimits, Mode, Overdue, Place, Rrpc,
    Wants,
};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Layout of the frames: the arena, then the content of answers, in bytes.
const ARENA: u64 = 1 << 20;
const CONTENT: u32 = 256 << 10;
const FRAMES: u64 = ARENA + CONTENT as u64 + WRITTEN as u64;
/// Bytes that a transfer writes, behind the content.
const WRITTEN: u32 = 16 << 10;
const READ: u32 = 24 << 10;
/// The number of steps tried during a calibration: some in each mode.
const MEASURED_STEPS: u64 = 48;

/// The requests of each side to the other, all in one round.
const ASKS: [(Wants, Option<Mode>); 7] = [
    (Wants::Head, None),
    (Wants::Exactly(300), Some(Mode::Pure)),
    (Wants::Exactly(20_000), Some(Mode::ThenOneSided)),
    (Wants::Exactly(20_000), Some(Mode::ZeroCopy)),
    (Wants::UpTo(100_000), None),
    (Wants::Exactly(200_000), Some(Mode::ZeroCopy)),
    (Wants::Exactly(9000), None),
];

/// The fault of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    /// Its endpoint is cut at this step of its fabric.
    Cut(u64),
    /// It ends at this step as a killed process does.
    Dies(u64),
}

struct Side {
    rack: u16,
    fate: Fate,
    /// Whether it calibrates after it has connected.
    measures: bool,
    /// `None` once the side is dead.
    fabric: Option<FaultFabric<Box<dyn Fabric>>>,
    rrpc: Rrpc,
    frames: Arc<dyn MemoryRegion>,
    /// Memory of its own for transfers.
    own: Arc<dyn MemoryRegion>,
    region: RegionId,
    endpoint: EndpointId,
    is_open: bool,
    steps: u64,
    /// Requests that have not ended, with their index in `ASKS`.
    calls: BTreeMap<CallId, usize>,
    /// Transfers that have not ended.
    transfers: Vec<u64>,
    answered: usize,
    transferred: usize,
    asked: usize,
    end: Option<DisconnectReason>,
}

/// The byte at an offset of a rack's content.
fn content(rack: u16, at: u32) -> u8 {
    (at.wrapping_mul(7).wrapping_add(at >> 8) as u8).wrapping_add(rack as u8)
}

const fn bytes_of(wants: Wants) -> u32 {
    match wants {
        Wants::Head => 0,
        Wants::UpTo(len) | Wants::Exactly(len) => len,
    }
}

impl Side {
    fn start(factory: &impl Factory, rack: u16, fate: Fate, measures: bool) -> Self {
        let Node { fabric, frames } = factory.start(RackId(rack), FRAMES, Hardware::FAST);
        let (seed, lose_at) = match fate {
            Fate::Lives => (0, None),
            Fate::Cut(step) => (step, Some(step)),
            Fate::Dies(step) => (step, None),
        };
        let longest_delay = Duration::from_micros(50);
        let mut fabric = FaultFabric::new(fabric, Faults { seed, longest_delay, lose_at });
        let bytes: Vec<u8> = (0..CONTENT).map(|at| content(rack, at)).collect();
        frames.write(ARENA, &bytes).unwrap();
        let rrpc = Rrpc::new(
            &mut fabric,
            Arc::clone(&frames),
            RemoteRegion::FRAMES,
            ARENA,
            InFlightLimits::default(),
        );
        let own = factory.memory(u64::from(READ));
        let region = fabric.register(Arc::clone(&own));
        Self {
            rack,
            fate,
            measures,
            fabric: Some(fabric),
            rrpc,
            frames,
            own,
            region,
            endpoint: EndpointId(u64::MAX),
            is_open: false,
            steps: 0,
            calls: BTreeMap::new(),
            transfers: Vec::new(),
            answered: 0,
            transferred: 0,
            asked: 0,
            end: None,
        }
    }

    const fn peer(&self) -> u16 {
        3 - self.rack
    }

    const fn is_over(&self) -> bool {
        self.fabric.is_none() || self.end.is_some()
    }

    /// Returns true if every request and transfer has succeeded and every buffer is free.
    fn is_done(&self) -> bool {
        let counts = (self.answered, self.asked, self.transferred);
        counts == (ASKS.len(), ASKS.len(), 2) && self.rrpc.free_bytes() == ARENA
    }

    /// Counts the steps; the side dies if it has reached its step.
    fn count(&mut self) {
        if let Some(fabric) = &self.fabric {
            self.steps = fabric.steps();
        }
        if matches!(self.fate, Fate::Dies(step) if self.steps > step) {
            self.fabric = None;
        }
    }

    fn round(&mut self) {
        let mut events = Vec::new();
        let Some(fabric) = &mut self.fabric else { return };
        fabric.poll(&mut events);
        let now = Instant::now();
        for event in events {
            let event = match event {
                Event::Connected { endpoint, peer, incarnation } if !self.measures => {
                    Event::Accepted { endpoint, peer, incarnation }
                }
                event => event,
            };
            match &event {
                Event::Connected { endpoint, .. } | Event::Accepted { endpoint, .. } => {
                    self.endpoint = *endpoint;
                    self.is_open = true;
                    self.rrpc.take_in(now, event);
                    self.ask(now);
                    continue;
                }
                Event::Disconnected { reason, .. } => self.end = Some(reason.clone()),
                _ => assert!(self.end.is_none(), "{event:?} after the end"),
            }
            self.rrpc.take_in(now, event);
        }
        while let Some(call_events) = self.rrpc.call_events() {
            self.learn(call_events);
        }
        if self.end.is_some() {
            self.check_end();
        }
        self.rrpc.tick(now);
        let Some(fabric) = &mut self.fabric else { return };
        self.rrpc.flush(fabric);
        self.count();
    }

    /// Sends all requests at once.
    fn ask(&mut self, now: Instant) {
        for (number, (wants, mode)) in ASKS.into_iter().enumerate() {
            let body = [number as u32 * 1000, bytes_of(wants)].map(u32::to_le_bytes).concat();
            let call = Call { wants, mode, ..Call::new(&body, now + TIMEOUT, Overdue::GiveUp) };
            self.calls.insert(self.rrpc.call(self.endpoint, &call).unwrap(), number);
        }
        let transfer = |remote_offset, len| Transfer {
            local: self.region,
            local_offset: 0,
            remote: RemoteRegion::FRAMES,
            remote_offset,
            len,
        };
        self.own.write(0, &vec![self.rack as u8; WRITTEN as usize]).unwrap();
        let write = transfer(ARENA + u64::from(CONTENT), WRITTEN);
        for (id, operation) in [Operation::Write(write), Operation::Read(transfer(ARENA, READ))]
            .into_iter()
            .enumerate()
        {
            self.rrpc.transfer(self.endpoint, id as u64, operation).unwrap();
            self.transfers.push(id as u64);
        }
    }

    fn learn(&mut self, call_events: CallEvent) {
        match call_events {
            CallEvent::Asked { ask, body } => {
                let number = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
                let (from, len) = (number(0), number(4));
                self.asked += 1;
                // Some answers use arena buffers, which must be freed, and some the content in
                // place.
                if from % 2000 == 0 {
                    let data: Vec<u8> =
                        (from..from + len).map(|at| content(self.rack, at)).collect();
                    return self.rrpc.answer(ask, &body[..4], &data);
                }
                let place = Place {
                    region: RegionId(0),
                    export: RemoteRegion::FRAMES,
                    offset: ARENA + u64::from(from),
                    len,
                };
                self.rrpc.answer_from(ask, &body[..4], place, &*self.frames).unwrap();
            }
            CallEvent::Answered { call, head, data } => {
                let number = self.calls.remove(&call).expect("it ended twice");
                let from = u32::from_le_bytes((*head).try_into().unwrap());
                assert_eq!(from, number as u32 * 1000, "the answer to another request");
                self.check(from, bytes_of(ASKS[number].0), data);
                self.answered += 1;
            }
            CallEvent::Failed { call, failure } => {
                self.calls.remove(&call).expect("it ended twice");
                let error = self.end.as_ref().expect("before the end").error();
                assert_eq!(failure, Failure::Disconnected(error));
            }
            CallEvent::Transferred { id, result, .. } => {
                let at = self.transfers.iter().position(|open| *open == id);
                self.transfers.remove(at.expect("it ended twice"));
                if result.is_ok() {
                    self.transferred += 1;
                }
            }
            CallEvent::Calibrated { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the data of an answer is the peer's content.
    fn check(&mut self, from: u32, len: u32, data: Data) {
        let mut bytes = vec![0; len as usize];
        assert_eq!(data.len(), u64::from(len));
        match data {
            Data::None => {}
            Data::Message(message) => bytes.copy_from_slice(&message),
            Data::Arena { block, .. } => {
                self.rrpc.read(&block, &mut bytes).unwrap();
                self.rrpc.give_back(block);
            }
            Data::Place(place) => panic!("nobody named {place:?}"),
        }
        assert!((from..).zip(bytes).all(|(at, byte)| byte == content(self.peer(), at)), "{len} B");
    }

    /// Checks the state after the end of the connection, in the round in which it is reported.
    fn check_end(&mut self) {
        assert!(self.calls.is_empty(), "no word of {:?} when the end was heard of", self.calls);
        assert!(self.transfers.is_empty(), "no word of transfers {:?}", self.transfers);
        assert_eq!(self.rrpc.free_bytes(), ARENA, "a buffer is lost");
        let late = Call::new(b"8 bytes.", Instant::now() + TIMEOUT, Overdue::GiveUp);
        assert_eq!(self.rrpc.call(self.endpoint, &late), Err(CallError::NotConnected));
        assert_eq!(self.rrpc.thresholds(self.endpoint), None);
    }
}

/// Runs the exchange until it is over on both sides, or until it is complete if nothing is lost.
fn exchange(factory: &impl Factory, fates: [Fate; 2], measures: bool) -> [Side; 2] {
    let [first, second] = fates;
    let mut sides =
        [Side::start(factory, 1, first, measures), Side::start(factory, 2, second, measures)];
    let address = sides[1].fabric.as_ref().map(|fabric| fabric.address()).unwrap_or_default();
    if let Some(fabric) = &mut sides[0].fabric {
        fabric.connect(&address).unwrap();
    }
    let start = Instant::now();
    let is_finished = |sides: &[Side; 2]| {
        let nothing_happens = fates == [Fate::Lives; 2];
        if nothing_happens && !measures {
            return sides.iter().all(Side::is_done);
        }
        // A side that died before the other saw the connection leaves nothing to end there.
        sides
            .iter()
            .all(|side| side.is_over() || (!side.is_open && sides.iter().any(Side::is_over)))
    };
    while !is_finished(&sides) {
        assert!(start.elapsed() < TIMEOUT, "{fates:?}: it never ends");
        sides.iter_mut().for_each(Side::round);
    }
    sides
}

/// Runs the exchange without a loss; returns the number of steps of each side.
fn undisturbed(factory: &impl Factory) -> [u64; 2] {
    let sides = exchange(factory, [Fate::Lives; 2], false);
    for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        let mut written = vec![0; WRITTEN as usize];
        other.frames.read(ARENA + u64::from(CONTENT), &mut written).unwrap();
        // The written bytes came from the memory into which the next transfer reads.
        assert!(written.iter().all(|byte| *byte == side.rack as u8));
        let mut read = vec![0; READ as usize];
        side.own.read(0, &mut read).unwrap();
        assert!((0..).zip(read).all(|(at, byte)| byte == content(other.rack, at)));
    }
    let steps = sides.map(|side| side.steps);
    assert!(steps.iter().all(|steps| *steps >= 40), "too little was exchanged: {steps:?}");
    steps
}

/// Runs an exchange with a fault on one side, and checks what the other side sees.
fn lost(factory: &impl Factory, which: usize, fate: Fate, measures: bool) {
    let mut fates = [Fate::Lives; 2];
    fates[which] = fate;
    let sides = exchange(factory, fates, measures);
    let (side, other) = (&sides[which], &sides[1 - which]);
    match fate {
        Fate::Dies(_) => assert!(side.fabric.is_none(), "{fates:?}: it lives"),
        _ => assert_eq!(side.end, Some(DisconnectReason::PeerGone), "{fates:?}"),
    }
    let is_told = matches!(other.end, Some(DisconnectReason::PeerGone | DisconnectReason::Peer));
    assert!(is_told || !other.is_open, "{fates:?}: {:?}", other.end);
}

/// Either side is cut off or dies at each of its steps.
pub fn a_loss_at_any_step_ends_every_request(factory: &impl Factory) {
    let steps = undisturbed(factory);
    for which in [0, 1] {
        for step in 0..steps[which] {
            lost(factory, which, Fate::Cut(step), false);
            lost(factory, which, Fate::Dies(step), false);
        }
    }
}

/// The same during a calibration.
pub fn a_loss_while_modes_are_measured_ends_every_request(factory: &impl Factory) {
    for which in [0, 1] {
        for step in 0..MEASURED_STEPS {
            lost(factory, which, Fate::Cut(step), true);
            lost(factory, which, Fate::Dies(step), true);
        }
    }
}
