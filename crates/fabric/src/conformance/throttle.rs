//! A decorator that limits a fabric to a latency and a bandwidth, as modelled by the emulated
//! fabric.
//!
//! The decorated fabric executes operations at its own speed. Their completions are reported when
//! the modelled wire could have completed them, and messages when the wire could have delivered
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::held::Held;
use crate::{
    DeviceCounters, EndpointId, Event, Fabric, FabricError, MemoryRegion, Operation, RegionId,
    Unsent, WorkRequest,
};

/// The latency and bandwidth of a modelled wire.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Time between the last byte leaving and its arrival.
    pub latency: Duration,
    /// Bandwidth of each direction of an endpoint, in Gbit/s; greater than 0.
    pub bandwidth_gbps: f64,
}

/// A fabric that is limited to a budget.
pub struct ThrottleFabric<F> {
    inner: F,
    budget: Budget,
    endpoints: BTreeMap<EndpointId, Wire>,
    held: Held,
    events: Vec<Event>,
}

/// The modelled wire of an endpoint.
#[derive(Default)]
struct Wire {
    /// Time until which the direction is busy with earlier bytes.
    outgoing: Option<Instant>,
    incoming: Option<Instant>,
    /// Due times of the requests that the decorated fabric has not completed, the oldest request
    /// first.
    due: VecDeque<Instant>,
    /// Number of requests posted and not yet reported as completed.
    in_flight: usize,
}

impl Budget {
    /// The arrival time of `bytes` bytes that are sent now; updates `busy`.
    fn due(&self, busy: &mut Option<Instant>, bytes: usize, now: Instant) -> Instant {
        #[expect(clippy::cast_precision_loss, reason = "sizes below 2^32")]
        let seconds = bytes as f64 * 8.0 / (self.bandwidth_gbps * 1e9);
        // Durations above a year are cut to a year, so that the addition cannot overflow.
        let on_wire = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(NEVER);
        let last = busy.map_or(now, |busy| busy.max(now)) + on_wire;
        *busy = Some(last);
        last + self.latency
    }
}

const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl<F: Fabric> ThrottleFabric<F> {
    /// Decorates `inner` with `budget`.
    pub const fn new(inner: F, budget: Budget) -> Self {
        Self { inner, budget, endpoints: BTreeMap::new(), held: Held::new(), events: Vec::new() }
    }

    fn learn(&mut self, event: Event, now: Instant, events: &mut Vec<Event>) {
        match &event {
            Event::Completed { endpoint, result, .. } => {
                let wire = self.endpoints.entry(*endpoint).or_default();
                let due = wire.due.pop_front().filter(|_| result.is_ok()).unwrap_or(now);
                self.held.hold(event, due);
            }
            Event::Message { endpoint, bytes } => {
                let wire = self.endpoints.entry(*endpoint).or_default();
                let due = self.budget.due(&mut wire.incoming, bytes.len(), now);
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
        let wire = self.endpoints.entry(endpoint).or_default();
        for request in list {
            let bytes = request.operation.transfer().len as usize;
            let direction = match request.operation {
                Operation::Read(_) => &mut wire.incoming,
                Operation::Write(_) => &mut wire.outgoing,
            };
            wire.due.push_back(self.budget.due(direction, bytes, now));
        }
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
        let Budget { latency, bandwidth_gbps } = self.budget;
        format!("{}; held to {latency:?} and {bandwidth_gbps} Gbit/s", self.inner.description())
    }
}
