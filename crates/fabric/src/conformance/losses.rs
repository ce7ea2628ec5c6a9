//! A scripted exchange that loses its connection at every step: every request completes once, the
//! end is the last event, and after it nothing lands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::RackId;

use super::pair::{FRAMES_LEN, bytes_of, memory_of, ok, read, transfer, write};
use super::{Factory, Hardware, Node};
use crate::fault::{FaultFabric, Faults};
use crate::{DisconnectReason, EndpointId, ErrorClass, Event, Fabric, MemoryRegion, RegionId};

const PATIENCE: Duration = Duration::from_secs(30);
const LEN: u32 = 8192;
const ROUNDS: u8 = 3;

/// One side of the exchange, and what it has seen.
struct Side {
    fabric: FaultFabric<Box<dyn Fabric>>,
    frames: Arc<dyn MemoryRegion>,
    own: RegionId,
    endpoint: Option<EndpointId>,
    posted: u64,
    completed: Vec<(u64, bool)>,
    messages: Vec<Vec<u8>>,
    sent: u8,
    end: Option<DisconnectReason>,
}

impl Side {
    fn start(factory: &impl Factory, rack: u16, lose_at: Option<u64>) -> Self {
        let Node { fabric, frames } = factory.start(RackId(rack), FRAMES_LEN, Hardware::FAST);
        let longest_delay = Duration::from_micros(50);
        let seed = lose_at.unwrap_or(0);
        let mut fabric = FaultFabric::new(fabric, Faults { seed, longest_delay, lose_at });
        let own = fabric.register(memory_of(factory, &vec![7; LEN as usize]));
        Self {
            fabric,
            frames,
            own,
            endpoint: None,
            posted: 0,
            completed: Vec::new(),
            messages: Vec::new(),
            sent: 0,
            end: None,
        }
    }

    /// Writes, reads back and says so; everything may fail once the connection is lost.
    fn ask(&mut self) {
        let Some(endpoint) = self.endpoint.filter(|_| self.end.is_none()) else { return };
        let at = u64::from(self.sent) * u64::from(LEN);
        let (id, place) = (self.posted, transfer(self.own, 0, at, LEN));
        match self.fabric.post(endpoint, &[write(id, place), read(id + 1, place)]) {
            Ok(()) => self.posted += 2,
            Err(error) => assert_ne!(error.class(), ErrorClass::Fatal, "{error}"),
        }
        match self.fabric.send(endpoint, vec![self.sent; 9]).map_err(|unsent| unsent.error) {
            Ok(()) => self.sent += 1,
            Err(error) => assert_ne!(error.class(), ErrorClass::Fatal, "{error}"),
        }
        // Every other round is left to the next poll.
        if self.sent.is_multiple_of(2) {
            self.fabric.flush(endpoint);
        }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.fabric.poll(&mut events);
        for event in events {
            assert!(self.end.is_none(), "{event:?} after the end");
            match event {
                Event::Connected { endpoint, .. } | Event::Accepted { endpoint, .. } => {
                    self.endpoint = Some(endpoint);
                }
                Event::Completed { id, result, .. } => self.completed.push((id, result.is_ok())),
                Event::Message { bytes, .. } => self.messages.push(bytes),
                Event::Disconnected { endpoint, reason } => {
                    assert!(self.endpoint.is_none_or(|own| own == endpoint));
                    self.end = Some(reason);
                    // From here on this memory is its own.
                    ok(self.frames.write(0, &vec![0xee; 4 * LEN as usize]));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// What the trait promises, whatever happened.
    fn check(&self, other: &Self) {
        let ids: Vec<u64> = self.completed.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..self.posted).collect::<Vec<_>>(), "each once and in order");
        let done = self.completed.iter().take_while(|(_, done)| *done).count();
        assert!(self.completed[done..].iter().all(|(_, done)| !done), "{:?}", self.completed);
        for (number, message) in (0..).zip(&self.messages) {
            assert_eq!(*message, [number; 9], "each once and in order");
        }
        assert!(self.messages.len() <= usize::from(other.sent));
        let after = bytes_of(&self.frames, 0, 4 * LEN as usize);
        assert!(after.iter().all(|byte| *byte == 0xee), "a late write landed");
    }
}

/// Runs the exchange; how many steps each side took.
fn exchange(factory: &impl Factory, lose_at: [Option<u64>; 2]) -> [u64; 2] {
    let mut sides = [Side::start(factory, 1, lose_at[0]), Side::start(factory, 2, lose_at[1])];
    let address = sides[1].fabric.address();
    let connecting = ok(sides[0].fabric.connect(&address));
    let start = Instant::now();
    // Both ask, and ask again when they have heard from the other; the first one hangs up.
    while sides.iter().any(|side| side.end.is_none()) {
        assert!(start.elapsed() < PATIENCE, "{lose_at:?}: it never ends");
        for side in &mut sides {
            side.poll();
            if usize::from(side.sent) <= side.messages.len() && side.sent < ROUNDS {
                side.ask();
            }
        }
        let [first, second] = &mut sides;
        let is_done = |side: &Side| {
            side.messages.len() == usize::from(ROUNDS) && side.completed.len() as u64 == side.posted
        };
        if is_done(first) && is_done(second) {
            first.fabric.disconnect(connecting);
        }
    }
    // What a slow peer might still do.
    let [first, second] = &mut sides;
    for _ in 0..200 {
        first.poll();
        second.poll();
    }
    first.check(second);
    second.check(first);
    [first.fabric.steps(), second.fabric.steps()]
}

/// The connection is lost at each step of either side, and at each of both at once.
pub fn at_every_step(factory: &impl Factory) {
    let [first, second] = exchange(factory, [None, None]);
    assert!(first >= 16 && second >= 16, "nothing was exchanged: {first}, {second}");
    for step in 0..first {
        exchange(factory, [Some(step), None]);
    }
    for step in 0..second {
        exchange(factory, [None, Some(step)]);
    }
    for step in 0..first.min(second) {
        exchange(factory, [Some(step), Some(step)]);
    }
}
