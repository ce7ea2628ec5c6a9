//! A scripted exchange that loses its connection at every step, by a cut or by the death of a side.
//! Every request completes once, the end is the last event, and nothing lands after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::RackId;

use super::fault::{FaultFabric, Faults};
use super::pair::{FRAMES_LEN, bytes_of, memory_of, ok, read, transfer, write};
use super::{Factory, Hardware, Node};
use crate::{DisconnectReason, EndpointId, ErrorClass, Event, Fabric, MemoryRegion, RegionId};

const TIMEOUT: Duration = Duration::from_secs(120);
const ROUNDS: u8 = 3;
/// Length of a request in an exchange that is cut, in bytes.
const SHORT: u32 = 8192;
/// Length of a request in an exchange in which a side dies: more than any fabric moves at once.
const LONG: u32 = 256 << 10;

/// The fault of a side.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Lives,
    /// Its endpoint is cut at this step.
    Cut(u64),
    /// It ends at this step as a killed process does: without a goodbye, perhaps with a half-sent
    /// frame.
    Dies(u64),
}

/// One side of the exchange and its observations.
struct Side {
    fate: Fate,
    /// `None` once the side is dead.
    fabric: Option<FaultFabric<Box<dyn Fabric>>>,
    frames: Arc<dyn MemoryRegion>,
    own: RegionId,
    len: u32,
    endpoint: Option<EndpointId>,
    steps: u64,
    posted: u64,
    completed: Vec<(u64, bool)>,
    messages: Vec<Vec<u8>>,
    sent: u8,
    end: Option<DisconnectReason>,
    has_memory_back: bool,
}

impl Side {
    fn start(factory: &impl Factory, rack: u16, fate: Fate, len: u32) -> Self {
        let Node { fabric, frames } = factory.start(RackId(rack), FRAMES_LEN, Hardware::FAST);
        let longest_delay = Duration::from_micros(50);
        let (seed, lose_at) = match fate {
            Fate::Lives => (0, None),
            Fate::Cut(step) => (step, Some(step)),
            Fate::Dies(step) => (step, None),
        };
        let mut fabric = FaultFabric::new(fabric, Faults { seed, longest_delay, lose_at });
        let own = fabric.register(memory_of(factory, &vec![7; len as usize]));
        Self {
            fate,
            fabric: Some(fabric),
            frames,
            own,
            len,
            endpoint: None,
            steps: 0,
            posted: 0,
            completed: Vec::new(),
            messages: Vec::new(),
            sent: 0,
            end: None,
            has_memory_back: false,
        }
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

    const fn is_cut(&self) -> bool {
        matches!(self.fate, Fate::Cut(step) if self.steps > step)
    }

    const fn is_over(&self) -> bool {
        self.fabric.is_none() || self.end.is_some()
    }

    fn is_done(&self) -> bool {
        self.messages.len() == usize::from(ROUNDS) && self.completed.len() as u64 == self.posted
    }

    /// Posts a write and a read-back and sends a message. All may fail once the connection is lost.
    fn ask(&mut self) {
        let Some(endpoint) = self.endpoint.filter(|_| self.end.is_none()) else { return };
        let at = u64::from(self.sent) * u64::from(self.len);
        let (id, place) = (self.posted, transfer(self.own, 0, at, self.len));
        let is_cut = self.is_cut();
        let Some(fabric) = &mut self.fabric else { return };
        match fabric.post(endpoint, &[write(id, place), read(id + 1, place)]) {
            Ok(()) => {
                assert!(!is_cut, "it posted after the cut");
                self.posted += 2;
            }
            Err(error) => assert_ne!(error.class(), ErrorClass::Fatal, "{error}"),
        }
        self.count();
        let is_cut = self.is_cut();
        let Some(fabric) = &mut self.fabric else { return };
        match fabric.send(endpoint, vec![self.sent; 9]).map_err(|unsent| unsent.error) {
            Ok(()) => {
                assert!(!is_cut, "it sent after the cut");
                self.sent += 1;
            }
            Err(error) => assert_ne!(error.class(), ErrorClass::Fatal, "{error}"),
        }
        // In every other round, the next poll flushes.
        if self.sent.is_multiple_of(2) {
            fabric.flush(endpoint);
        }
        self.count();
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        let Some(fabric) = &mut self.fabric else { return };
        fabric.poll(&mut events);
        for event in events {
            assert!(self.end.is_none(), "{event:?} after the end");
            match event {
                Event::Connected { endpoint, .. } | Event::Accepted { endpoint, .. } => {
                    self.endpoint = Some(endpoint);
                }
                Event::Completed { id, result, .. } => self.completed.push((id, result.is_ok())),
                Event::Message { bytes, .. } => self.messages.push(bytes),
                Event::Fenced { endpoint } => {
                    assert_eq!(self.endpoint, Some(endpoint));
                    self.take_back_memory();
                }
                Event::Disconnected { endpoint, reason } => {
                    assert!(self.endpoint.is_none_or(|own| own == endpoint));
                    self.end = Some(reason);
                    self.take_back_memory();
                }
                other => panic!("{other:?}"),
            }
        }
        self.count();
    }

    /// Overwrites the memory once the peer can no longer write to it, so that a late write is
    /// detected. Has effect once.
    fn take_back_memory(&mut self) {
        if !std::mem::replace(&mut self.has_memory_back, true) {
            ok(self.frames.write(0, &vec![0xee; 4 * self.len as usize]));
        }
    }

    /// Checks the promises of the trait, which hold in every case.
    fn check(&self, other: &Self) {
        let ids: Vec<u64> = self.completed.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..self.posted).collect::<Vec<_>>(), "each once and in order");
        let done = self.completed.iter().take_while(|(_, done)| *done).count();
        assert!(self.completed[done..].iter().all(|(_, done)| !done), "{:?}", self.completed);
        for (number, message) in (0..).zip(&self.messages) {
            assert_eq!(*message, [number; 9], "each once and in order");
        }
        assert!(self.messages.len() <= usize::from(other.sent));
        let after = bytes_of(&self.frames, 0, 4 * self.len as usize);
        assert!(after.iter().all(|byte| *byte == 0xee), "a late write landed");
    }
}

/// Runs the exchange and returns both sides in their final state.
fn exchange(factory: &impl Factory, fates: [Fate; 2], len: u32) -> [Side; 2] {
    let [first, second] = fates;
    let mut sides = [Side::start(factory, 1, first, len), Side::start(factory, 2, second, len)];
    let address = sides[1].fabric.as_ref().map(|fabric| fabric.address()).unwrap_or_default();
    let connecting = sides[0].fabric.as_mut().map(|fabric| ok(fabric.connect(&address)));
    let start = Instant::now();
    // Both sides send, and send again when they have heard from the other; the first side
    // disconnects.
    while sides.iter().any(|side| !side.is_over()) {
        assert!(start.elapsed() < TIMEOUT, "{fates:?}: it never ends");
        for side in &mut sides {
            side.poll();
            if usize::from(side.sent) <= side.messages.len() && side.sent < ROUNDS {
                side.ask();
            }
        }
        let [first, second] = &mut sides;
        if first.is_done()
            && second.is_done()
            && second.fabric.is_some()
            && let (Some(fabric), Some(endpoint)) = (&mut first.fabric, connecting)
        {
            fabric.disconnect(endpoint);
        }
    }
    // Gives a slow peer time for late effects.
    let [first, second] = &mut sides;
    for _ in 0..200 {
        first.poll();
        second.poll();
    }
    for (side, other) in [(&*first, &*second), (&*second, &*first)] {
        if side.fabric.is_some() {
            side.check(other);
        }
    }
    sides
}

/// Runs the exchange without a loss; returns the number of steps of each side.
fn undisturbed(factory: &impl Factory, len: u32) -> [u64; 2] {
    let sides = exchange(factory, [Fate::Lives; 2], len);
    let ends = sides.each_ref().map(|side| side.end.clone());
    assert_eq!(ends, [Some(DisconnectReason::Local), Some(DisconnectReason::Peer)]);
    let steps = sides.map(|side| side.steps);
    assert!(steps.iter().all(|steps| *steps >= 16), "nothing was exchanged: {steps:?}");
    steps
}

/// Runs an exchange in which each side with a step is cut at that step.
fn cut(factory: &impl Factory, at: [Option<u64>; 2]) {
    let fates = at.map(|step| step.map_or(Fate::Lives, Fate::Cut));
    let sides = exchange(factory, fates, SHORT);
    let ends = sides.each_ref().map(|side| side.end.clone());
    let gone = Some(DisconnectReason::PeerGone);
    if let ([Some(_), None] | [None, Some(_)], Some(side)) =
        (at, sides.iter().find(|side| !matches!(side.fate, Fate::Lives)))
    {
        assert!(side.is_cut(), "{at:?}: it took {} steps", side.steps);
        assert_eq!(side.end, gone, "{at:?}: {ends:?}");
    }
    // If both are to be cut, the first cut may end the other side before its step.
    assert!(ends.contains(&gone), "{at:?}: nothing was cut: {ends:?}");
    // When everything is done, the first side disconnects, at whatever step the other side is.
    let hung_up = at[0].is_none() && sides.iter().all(Side::is_done);
    for end in ends.iter().flatten() {
        let is_expected = match end {
            DisconnectReason::PeerGone | DisconnectReason::Peer => true,
            DisconnectReason::Local => hung_up,
            DisconnectReason::Failed(_) => false,
        };
        assert!(is_expected, "{at:?}: {ends:?}");
    }
}

/// Cuts the connection at each step of either side, and at each step of both sides at once.
pub fn at_every_step(factory: &impl Factory) {
    let [first, second] = undisturbed(factory, SHORT);
    for step in 0..first {
        cut(factory, [Some(step), None]);
    }
    for step in 0..second {
        cut(factory, [None, Some(step)]);
    }
    for step in 0..first.min(second) {
        cut(factory, [Some(step), Some(step)]);
    }
}

/// Either side dies at each of its steps, without a goodbye and in the middle of its work.
pub fn by_death_at_every_step(factory: &impl Factory) {
    let steps = undisturbed(factory, LONG);
    for dying in [0, 1] {
        for step in 0..steps[dying] {
            let mut fates = [Fate::Lives; 2];
            fates[dying] = Fate::Dies(step);
            let sides = exchange(factory, fates, LONG);
            assert!(sides[dying].fabric.is_none(), "{fates:?}: it lives");
            let end = &sides[1 - dying].end;
            assert_eq!(*end, Some(DisconnectReason::PeerGone), "{fates:?}");
        }
    }
}
