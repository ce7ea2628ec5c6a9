//! The properties of RRPC on every fabric.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "a part of tests"
)]

pub mod losses;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::conformance::{Factory, Hardware};
use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, RegionId, RemoteRegion, Transfer,
};
use rackpool_model::RackId;
use rackpool_rrpc::{
    Call, CallEvent, Data, Failure, InFlightLimits, Mode, Overdue, Place, Rrpc, Wants,
};

/// Bytes that each rack exports: the arena and the content of answers.
const FRAMES: u64 = 2 << 20;
const ARENA: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Generates a test of every property for one fabric: `rrpc_tests!(factory expression);`, or with
/// `, if condition` if the fabric needs hardware that a host may lack.
#[macro_export]
macro_rules! rrpc_tests {
    ($factory:expr) => {
        $crate::rrpc_tests!($factory, if true);
    };
    ($factory:expr, if $possible:expr) => {
        $crate::rrpc_tests! { @each $factory, $possible, [
            every_mode_brings_the_bytes,
            many_requests_are_open_at_once,
            transfers_and_requests_share_the_endpoint,
            death_ends_every_request,
            a_silent_peer_is_given_up_or_cut_off,
            a_loss_at_any_step_ends_every_request,
            a_loss_while_modes_are_measured_ends_every_request
        ] }
    };
    (@each $factory:expr, $possible:expr, [$($property:ident),*]) => {
        $(#[test]
        fn $property() {
            if !$possible {
                return;
            }
            $crate::suite::$property(&$factory);
        })*
    };
}

pub use losses::{
    a_loss_at_any_step_ends_every_request, a_loss_while_modes_are_measured_ends_every_request,
};

struct End {
    fabric: Box<dyn Fabric>,
    rrpc: Rrpc,
    frames: Arc<dyn MemoryRegion>,
    endpoint: EndpointId,
    call_events: Vec<CallEvent>,
    ended: bool,
}

impl End {
    fn new(factory: &impl Factory, rack: u16) -> Self {
        let node = factory.start(RackId(rack), FRAMES, Hardware::FAST);
        let (mut fabric, frames) = (node.fabric, node.frames);
        let arena = Arc::clone(&frames);
        let rrpc =
            Rrpc::new(&mut *fabric, arena, RemoteRegion::FRAMES, ARENA, InFlightLimits::default());
        let endpoint = EndpointId(u64::MAX);
        Self { fabric, rrpc, frames, endpoint, call_events: Vec::new(), ended: false }
    }

    fn round(&mut self) {
        let mut events = Vec::new();
        self.fabric.poll(&mut events);
        let now = Instant::now();
        for event in events {
            match &event {
                Event::Connected { endpoint, .. } | Event::Accepted { endpoint, .. } => {
                    self.endpoint = *endpoint;
                }
                Event::Disconnected { .. } => self.ended = true,
                _ => {}
            }
            self.rrpc.take_in(now, event);
        }
        self.call_events.extend(std::iter::from_fn(|| self.rrpc.call_events()));
        self.rrpc.tick(now);
        self.rrpc.flush(&mut *self.fabric);
    }

    /// Answers the pending requests; a body contains the offset and length of the data.
    fn serve(&mut self) {
        for call_events in std::mem::take(&mut self.call_events) {
            let CallEvent::Asked { ask, body } = call_events else { continue };
            let number = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
            let (offset, len) = (ARENA + u64::from(number(0)), number(4));
            let (region, export) = (RegionId(0), RemoteRegion::FRAMES);
            let place = Place { region, export, offset, len };
            self.rrpc.answer_from(ask, &body[..4], place, &*self.frames).unwrap();
        }
    }
}

struct Pair {
    a: End,
    b: End,
}

impl Pair {
    /// Connects the first rack to the second and waits for the calibration.
    fn new(factory: &impl Factory) -> Self {
        let (mut a, b) = (End::new(factory, 1), End::new(factory, 2));
        let bytes: Vec<u8> = (0..ARENA as u32).map(|at| (at * 7 + (at >> 8) * 13) as u8).collect();
        b.frames.write(ARENA, &bytes).unwrap();
        a.fabric.connect(&b.fabric.address()).unwrap();
        let mut pair = Self { a, b };
        let measured =
            pair.until(|call_events| matches!(call_events, CallEvent::Calibrated { .. }));
        assert_eq!(measured.len(), 1);
        let thresholds = pair.a.rrpc.thresholds(pair.a.endpoint).unwrap();
        assert!(
            matches!(measured[0], CallEvent::Calibrated { thresholds: t, .. } if t == thresholds)
        );
        pair
    }

    /// Runs both racks until the first gets the wanted event; returns all of its events.
    fn until(&mut self, wanted: impl Fn(&CallEvent) -> bool) -> Vec<CallEvent> {
        let start = Instant::now();
        loop {
            self.a.round();
            self.b.round();
            self.b.serve();
            if self.a.call_events.iter().any(&wanted) {
                return std::mem::take(&mut self.a.call_events);
            }
            assert!(start.elapsed() < TIMEOUT, "waited in vain: {:?}", self.a.call_events);
        }
    }

    fn call(&mut self, offset: u32, wants: Wants, len: u32, mode: Option<Mode>) {
        let body = [offset.to_le_bytes(), len.to_le_bytes()].concat();
        let deadline = Instant::now() + TIMEOUT;
        let call = Call { wants, mode, ..Call::new(&body, deadline, Overdue::GiveUp) };
        self.a.rrpc.call(self.a.endpoint, &call).unwrap();
    }

    /// Checks the data of an answer, whose head contains the data's offset.
    fn check(&mut self, head: &[u8], data: Data) -> u64 {
        let offset = u32::from_le_bytes(head.try_into().unwrap());
        let len = data.len();
        let mut bytes = vec![0; len as usize];
        match data {
            Data::None => {}
            Data::Message(message) => bytes.copy_from_slice(&message),
            Data::Arena { block, .. } => {
                self.a.rrpc.read(&block, &mut bytes).unwrap();
                self.a.rrpc.give_back(block);
            }
            Data::Place(place) => self.a.frames.read(place.offset, &mut bytes).unwrap(),
        }
        let mut expected = vec![0; len as usize];
        self.b.frames.read(ARENA + u64::from(offset), &mut expected).unwrap();
        assert!(bytes == expected, "{len} B from {offset}");
        len
    }
}

fn is_answer(call_events: &CallEvent) -> bool {
    matches!(call_events, CallEvent::Answered { .. })
}

pub fn every_mode_brings_the_bytes(factory: &impl Factory) {
    let mut pair = Pair::new(factory);
    for len in [1, 8, 511, 4096, 60_000, 256 << 10] {
        for mode in [None, Some(Mode::Pure), Some(Mode::ThenOneSided), Some(Mode::ZeroCopy)] {
            if mode == Some(Mode::Pure) && len > 60_000 {
                continue;
            }
            for wants in [Wants::Exactly(len), Wants::UpTo(len)] {
                pair.call(len / 3, wants, len, mode);
                let mut call_events = pair.until(is_answer);
                let Some(CallEvent::Answered { head, data, .. }) = call_events.pop() else {
                    panic!()
                };
                assert_eq!(pair.check(&head, data), u64::from(len));
            }
        }
    }
    // Exposed data is freed after the last release.
    let start = Instant::now();
    while pair.a.rrpc.free_bytes() < ARENA || pair.b.rrpc.free_bytes() < ARENA {
        pair.a.round();
        pair.b.round();
        assert!(start.elapsed() < TIMEOUT, "a buffer is lost");
    }
}

pub fn many_requests_are_open_at_once(factory: &impl Factory) {
    let mut pair = Pair::new(factory);
    let before = pair.a.rrpc.metrics();
    let (mut sent, mut answered) = (0_u32, 0);
    while answered < 600 {
        while sent < 600 && sent < answered + 100 {
            let len = [8, 700, 5000, 9000][sent as usize % 4];
            pair.call(
                sent * 64,
                Wants::Exactly(len),
                len,
                Mode::ALL.get(sent as usize % 5).copied(),
            );
            sent += 1;
        }
        for call_events in pair.until(is_answer) {
            if let CallEvent::Answered { head, data, .. } = call_events {
                pair.check(&head, data);
                answered += 1;
            }
        }
    }
    let metrics = pair.a.rrpc.metrics();
    let all = |f: &rackpool_rrpc::RpcMetrics| f.pure + f.then_one_sided + f.zero_copy;
    assert_eq!(all(&metrics) - all(&before), 600);
    assert_eq!(pair.b.rrpc.metrics().asked, 600);
}

pub fn transfers_and_requests_share_the_endpoint(factory: &impl Factory) {
    let mut pair = Pair::new(factory);
    let own = factory.memory(4096);
    let region = pair.a.fabric.register(Arc::clone(&own));
    // A calibration that timed out may have a last message to send: it goes with this request.
    pair.call(0, Wants::Head, 0, None);
    pair.until(is_answer);
    let before = pair.a.rrpc.metrics();
    for id in 0..10 {
        let at = id * 256;
        let transfer = Transfer {
            local: region,
            local_offset: at,
            remote: RemoteRegion::FRAMES,
            remote_offset: ARENA + at,
            len: 256,
        };
        pair.a.rrpc.transfer(pair.a.endpoint, id, Operation::Read(transfer)).unwrap();
    }
    pair.call(0, Wants::Head, 0, None);
    pair.until(|call_events| {
        matches!(call_events, CallEvent::Transferred { id: 9, result: Ok(()), .. })
    });
    let mut bytes = [vec![0; 2560], vec![0; 2560]];
    own.read(0, &mut bytes[0]).unwrap();
    pair.b.frames.read(ARENA, &mut bytes[1]).unwrap();
    assert_eq!(bytes[0], bytes[1]);
    let metrics = pair.a.rrpc.metrics();
    assert_eq!(metrics.operations - before.operations, 10);
    assert_eq!(metrics.messages - before.messages, 1);
    assert_eq!(metrics.doorbells - before.doorbells, 1, "for the list and the request");
}

pub fn death_ends_every_request(factory: &impl Factory) {
    let Pair { mut a, b } = Pair::new(factory);
    let deadline = Instant::now() + TIMEOUT;
    for wants in [Wants::Head, Wants::Exactly(40_000), Wants::UpTo(9000), Wants::Exactly(8)] {
        let call = Call { wants, ..Call::new(b"8 bytes.", deadline, Overdue::GiveUp) };
        a.rrpc.call(a.endpoint, &call).unwrap();
    }
    a.round();
    drop(b);
    let start = Instant::now();
    while !a.ended {
        a.round();
        assert!(start.elapsed() < TIMEOUT, "the peer's death is not heard of");
    }
    let failed = |call_events: &&CallEvent| {
        matches!(call_events, CallEvent::Failed { failure: Failure::Disconnected(_), .. })
    };
    assert_eq!(
        a.call_events.iter().filter(failed).count(),
        4,
        "in the same round: {:?}",
        a.call_events
    );
    assert_eq!(a.rrpc.free_bytes(), ARENA);
}

pub fn a_silent_peer_is_given_up_or_cut_off(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory);
    // Taken before the deadlines are set, since a busy host may delay this thread afterwards.
    let start = Instant::now();
    let deadline = start + Duration::from_millis(20);
    let known = Call {
        wants: Wants::Exactly(40_000),
        mode: Some(Mode::ZeroCopy),
        ..Call::new(b"8 bytes.", deadline, Overdue::GiveUp)
    };
    let given_up = a.rrpc.call(a.endpoint, &known).unwrap();
    let later = Call::new(b"8 bytes.", deadline + Duration::from_millis(20), Overdue::CutOff);
    let cut_off = a.rrpc.call(a.endpoint, &later).unwrap();
    // The peer polls, so that the end can be detected, and never answers.
    while !a.ended {
        a.round();
        b.round();
        assert!(start.elapsed() < TIMEOUT, "nobody is cut off");
    }
    let told: Vec<_> = a
        .call_events
        .iter()
        .map(|call_events| match call_events {
            CallEvent::Failed { call, failure } => (*call, *failure == Failure::DeadlinePassed),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [(given_up, true), (cut_off, false)]);
    assert!(start.elapsed() >= Duration::from_millis(40), "not before its time");
    assert_eq!(a.rrpc.free_bytes(), ARENA);
}
