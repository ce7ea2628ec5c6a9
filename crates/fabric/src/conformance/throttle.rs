//! A decorator that limits a fabric to a latency and a bandwidth, as modelled by the emulated
//! fabric.
//!
//! The decorated fabric executes operations at its own speed. Their completions are reported when
//! the modelled wire could have completed them, and messages when the wire could have delivered
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rackpool_model::RackId;

use super::Hardware;
use super::held::Held;
use crate::{
    DeviceCounters, EndpointId, Event, Fabric, FabricError, MemoryRegion, Operation, RegionId,
    Unsent, WorkRequest,
};

/// The modelled cards of the racks of one process, which their throttled fabrics share.
#[derive(Debug, Default)]
pub struct Cards(Mutex<BTreeMap<RackId, Card>>);

/// The times until which the directions of a rack's card are busy with earlier bytes.
#[derive(Debug, Default)]
struct Card {
    transmit: Option<Instant>,
    receive: Option<Instant>,
}

/// A fabric that is limited to modelled hardware.
pub struct ThrottleFabric<F> {
    inner: F,
    rack: RackId,
    hardware: Hardware,
    cards: Arc<Cards>,
    endpoints: BTreeMap<EndpointId, Wire>,
    held: Held,
    events: Vec<Event>,
}

/// The modelled wire of an endpoint.
#[derive(Default)]
struct Wire {
    peer: Option<RackId>,
    /// Due times of the requests that the decorated fabric has not completed, the oldest request
    /// first.
    due: VecDeque<Instant>,
    /// Number of requests posted and not yet reported as completed.
    in_flight: usize,
}

impl Cards {
    /// Charges bytes to the card that transmits and to the one that receives. Returns the time at
    /// which both have passed them.
    fn charge(&self, from: RackId, to: RackId, on_wire: Duration, now: Instant) -> Instant {
        let mut cards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pass = |busy: &mut Option<Instant>| {
            let end = busy.map_or(now, |busy| busy.max(now)) + on_wire;
            *busy = Some(end);
            end
        };
        let sent = pass(&mut cards.entry(from).or_default().transmit);
        let received = pass(&mut cards.entry(to).or_default().receive);
        sent.max(received)
    }
}

/// Durations above a year are cut to a year, so that additions to the present cannot overflow.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl<F: Fabric> ThrottleFabric<F> {
    /// Decorates the fabric of a rack.
    pub const fn new(inner: F, rack: RackId, hardware: Hardware, cards: Arc<Cards>) -> Self {
        Self {
            inner,
            rack,
            hardware,
            cards,
            endpoints: BTreeMap::new(),
            held: Held::new(),
            events: Vec::new(),
        }
    }

    /// The time at which bytes from or to a peer arrive that are put on the wire now.
    fn due(&self, endpoint: EndpointId, is_read: bool, bytes: usize, now: Instant) -> Instant {
        let peer = self.endpoints.get(&endpoint).and_then(|wire| wire.peer);
        let peer = peer.unwrap_or(self.rack);
        let (from, to) = if is_read { (peer, self.rack) } else { (self.rack, peer) };
        #[expect(clippy::cast_precision_loss, reason = "sizes below 2^32")]
        let seconds = bytes as f64 * 8.0 / (self.hardware.bandwidth_gbps * 1e9);
        let on_wire = Duration::try_from_secs_f64(seconds).unwrap_or(NEVER).min(NEVER);
        self.cards.charge(from, to, on_wire, now) + self.hardware.latency
    }

    fn learn(&mut self, event: Event, now: Instant, events: &mut Vec<Event>) {
        match &event {
            Event::Connected { endpoint, peer, .. } | Event::Accepted { endpoint, peer, .. } => {
                self.endpoints.entry(*endpoint).or_default().peer = Some(*peer);
                events.push(event);
            }
            Event::Completed { endpoint, result, .. } => {
                let wire = self.endpoints.entry(*endpoint).or_default();
                let due = wire.due.pop_front().filter(|_| result.is_ok()).unwrap_or(now);
                self.held.hold(event, due);
            }
            Event::Message { endpoint, bytes } => {
                // Comes from the peer, as the bytes of a read do.
                let due = self.due(*endpoint, true, bytes.len(), now);
                self.held.hold(event, due);
            }
            Event::Disconnected { endpoint, reason } => {
                // The wire is gone: held messages are dropped and held completions fail.
                for late in self.held.take(*endpoint) {
                    if let Event::Completed { endpoint, id, result } = late {
                        let result = result.and(Err(reason.error()));
                        events.push(Event::Completed { endpoint, id, result });
                    }
                }
                self.endpoints.remove(endpoint);
                events.push(event);
            }
            Event::Unregistered { .. } => self.held.hold(event, now),
            _ => events.push(event),
        }
    }

    /// Subtracts the reported completions from the requests in flight.
    fn count(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Completed { endpoint, .. } = event
                && let Some(wire) = self.endpoints.get_mut(endpoint)
            {
                wire.in_flight -= 1;
            }
        }
    }
}

impl<F: Fabric> Fabric for ThrottleFabric<F> {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.inner.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.inner.unregister(region);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        self.inner.connect(address)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        let in_flight = self.endpoints.get(&endpoint).map_or(0, |wire| wire.in_flight);
        let depth = self.inner.queue_depth();
        if list.len() <= depth && in_flight + list.len() > depth {
            return Err(FabricError::QueueFull { in_flight, asked: list.len() });
        }
        self.inner.post(endpoint, list)?;
        let now = Instant::now();
        let due = list.iter().map(|request| {
            let is_read = matches!(request.operation, Operation::Read(_));
            self.due(endpoint, is_read, request.operation.transfer().len as usize, now)
        });
        let due: Vec<Instant> = due.collect();
        let wire = self.endpoints.entry(endpoint).or_default();
        wire.due.extend(due);
        wire.in_flight += list.len();
        Ok(())
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        self.inner.send(endpoint, message)
    }

    fn flush(&mut self, endpoint: EndpointId) {
        self.inner.flush(endpoint);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        let before = events.len();
        let mut fresh = std::mem::take(&mut self.events);
        self.inner.poll(&mut fresh);
        let now = Instant::now();
        for event in fresh.drain(..) {
            self.learn(event, now, events);
        }
        self.events = fresh;
        self.held.release(now, events);
        self.count(&events[before..]);
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        self.inner.disconnect(endpoint);
    }

    fn arm(&mut self) -> bool {
        self.inner.arm() && self.held.is_empty()
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.inner.wake_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        let now = Instant::now();
        let posted = self.endpoints.values().filter_map(|wire| wire.due.front());
        let posted = posted.map(|due| due.saturating_duration_since(now));
        posted.chain(self.held.next_due(now)).chain(self.inner.next_completion()).min()
    }

    fn queue_depth(&self) -> usize {
        self.inner.queue_depth()
    }

    fn device_counters(&self) -> DeviceCounters {
        self.inner.device_counters()
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    fn description(&self) -> String {
        let Hardware { latency, bandwidth_gbps } = self.hardware;
        format!("{}; held to {latency:?} and {bandwidth_gbps} Gbit/s", self.inner.description())
    }
}
