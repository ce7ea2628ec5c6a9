//! Two racks with RRPC over a wire that the test controls.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "each test uses its part; sizes of a test are small"
)]

pub mod net;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, Fabric, MemoryRegion, RegionId, RemoteRegion};
use rackpool_rrpc::{
    Call, CallError, CallEvent, CallId, InFlightLimits, Overdue, Place, RequestId, Rrpc, Wants,
};

use net::{Net, Ram, Shared, Wire, lock};

/// Length of the memory that contains the data of answers, in bytes.
pub const FRAMES: u32 = 128 << 10;

/// Less than the tests' transfers have in flight without limits.
pub const LIMITS: InFlightLimits = InFlightLimits { reads: 256 << 10, peer_writes: 256 << 10 };

/// One rack.
pub struct Side {
    pub rrpc: Rrpc,
    pub wire: Wire,
    pub frames: Arc<Ram>,
    /// Exported memory that calls may name.
    pub own: Arc<Ram>,
    pub call_events: Vec<CallEvent>,
}

pub struct World {
    pub net: Shared,
    pub sides: [Side; 2],
    pub now: Instant,
}

/// The bytes of the frames, which differ by position.
pub fn frames_bytes(side: usize) -> Vec<u8> {
    (0..FRAMES).map(|at| (at * 7 + (at >> 8) * 13 + side as u32 * 101) as u8).collect()
}

impl World {
    /// Two connected racks with the default thresholds.
    pub fn new(arena: u64, depth: usize) -> Self {
        let mut world = Self::apart(arena, depth);
        lock(&world.net).connect(false);
        world.run();
        world
    }

    pub fn apart(arena: u64, depth: usize) -> Self {
        let frames = [0, 1].map(|side| Ram::new(frames_bytes(side)));
        let arenas = [0, 1].map(|_| Ram::new(vec![0; arena as usize]));
        let own = [0, 1].map(|_| Ram::new(vec![0; 64 << 10]));
        let exports = [0, 1].map(|side: usize| -> Vec<Arc<dyn MemoryRegion>> {
            vec![frames[side].clone(), arenas[side].clone(), own[side].clone()]
        });
        let net = Net::new(depth, exports);
        let sides = [0, 1].map(|side: usize| {
            let mut wire = Wire::new(Arc::clone(&net), side);
            assert_eq!(wire.register(frames[side].clone()), RegionId(0));
            let rrpc = Rrpc::new(&mut wire, arenas[side].clone(), RemoteRegion(1), arena, LIMITS);
            assert_eq!(wire.register(own[side].clone()), RegionId(2));
            let (frames, own) = (Arc::clone(&frames[side]), Arc::clone(&own[side]));
            Side { rrpc, wire, frames, own, call_events: Vec::new() }
        });
        Self { net, sides, now: Instant::now() }
    }

    pub fn endpoint(&self, side: usize) -> EndpointId {
        lock(&self.net).endpoint(side).expect("it is connected")
    }

    /// Runs one poll round of a rack.
    pub fn round(&mut self, side: usize) {
        self.now += Duration::from_micros(1);
        let Side { rrpc, wire, call_events, .. } = &mut self.sides[side];
        let mut events = Vec::new();
        wire.poll(&mut events);
        for event in events {
            rrpc.take_in(self.now, event);
        }
        call_events.extend(std::iter::from_fn(|| rrpc.call_events()));
        rrpc.flush(wire);
        call_events.extend(std::iter::from_fn(|| rrpc.call_events()));
    }

    /// Runs both racks and the wire until nothing happens any more.
    pub fn run(&mut self) {
        loop {
            let mut moved = false;
            for side in [0, 1] {
                self.round(side);
                while lock(&self.net).advance(side) {
                    moved = true;
                }
            }
            if !moved {
                self.round(0);
                self.round(1);
                return;
            }
        }
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        for side in [0, 1] {
            self.sides[side].rrpc.tick(self.now);
            self.round(side);
        }
    }

    pub fn deadline(&self) -> Instant {
        self.now + Duration::from_secs(60)
    }

    /// Sends a request from the first rack to the second.
    pub fn call(&mut self, wants: Wants) -> Result<CallId, CallError> {
        let call = Call { wants, ..Call::new(b"what?", self.deadline(), Overdue::GiveUp) };
        self.call_with(&call)
    }

    pub fn call_with(&mut self, call: &Call<'_>) -> Result<CallId, CallError> {
        let endpoint = self.endpoint(0);
        self.sides[0].rrpc.call(endpoint, call)
    }

    /// The requests that the second rack has received since the last call.
    pub fn asked(&mut self) -> Vec<RequestId> {
        let call_events = std::mem::take(&mut self.sides[1].call_events);
        let (asked, rest) = call_events
            .into_iter()
            .partition(|call_events| matches!(call_events, CallEvent::Asked { .. }));
        self.sides[1].call_events = rest;
        let ask = |call_events| match call_events {
            CallEvent::Asked { ask, .. } => ask,
            other => panic!("{other:?}"),
        };
        let asked: Vec<CallEvent> = asked;
        asked.into_iter().map(ask).collect()
    }

    /// A place in a rack's frames.
    pub fn in_frames(offset: u64, len: u32) -> Place {
        Place { region: RegionId(0), export: RemoteRegion(0), offset, len }
    }

    /// A place in a rack's own exported memory.
    pub fn in_own(offset: u64, len: u32) -> Place {
        Place { region: RegionId(2), export: RemoteRegion(2), offset, len }
    }

    /// Answers from the second rack with bytes of its frames.
    pub fn answer_from_frames(&mut self, ask: RequestId, offset: u64, len: u32) {
        let Side { rrpc, frames, .. } = &mut self.sides[1];
        let place = Self::in_frames(offset, len);
        rrpc.answer_from(ask, b"head", place, &**frames).expect("within the frames");
    }

    pub fn call_events(&mut self, side: usize) -> Vec<CallEvent> {
        std::mem::take(&mut self.sides[side].call_events)
    }
}
