//! A decorator that injects faults into a fabric: delays, reordering where the trait allows it, and
//! the loss of a connection at a chosen step. A seed determines all choices.
//!
//! Only events are delayed: the bytes land when the decorated fabric moves them. Late writes are
//! covered by each provider's own tests of fencing.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_sync::SplitMix64;

use super::held::Held;
use crate::{
    DeviceCounters, DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion,
    RegionId, Unsent, WorkRequest,
};

/// The faults to inject.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Determines every delay.
    pub seed: u64,
    /// Maximum delay of completions and messages. Events of different endpoints, and completions
    /// and messages of one endpoint, overtake each other.
    pub longest_delay: Duration,
    /// The step, counted from 0, at which the step's endpoint loses its connection. A step is a
    /// posted request, a sent message or an event of an endpoint. This side sees `PeerGone`; the
    /// peer sees a [`Fabric::disconnect`].
    pub lose_at: Option<u64>,
}

/// A fabric with injected faults.
pub struct FaultFabric<F> {
    inner: F,
    faults: Faults,
    random: SplitMix64,
    steps: u64,
    held: Held,
    /// Endpoints that this side has cut. Their events report `PeerGone`.
    cut: BTreeSet<EndpointId>,
    events: Vec<Event>,
}

impl<F: Fabric> FaultFabric<F> {
    /// Decorates `inner` with `faults`.
    pub const fn new(inner: F, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            random: SplitMix64::new(faults.seed),
            steps: 0,
            held: Held::new(),
            cut: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// The number of steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts a step of an endpoint; cuts the endpoint at step `lose_at`.
    fn step(&mut self, endpoint: EndpointId) {
        let now = self.steps;
        self.steps += 1;
        if self.faults.lose_at == Some(now) {
            self.cut.insert(endpoint);
            self.inner.disconnect(endpoint);
        }
    }

    /// A pseudo-random delay from zero to the longest delay.
    fn delay(&mut self) -> Duration {
        let part = u32::try_from(self.random.draw() >> 32).unwrap_or(0);
        self.faults.longest_delay.mul_f64(f64::from(part) / f64::from(u32::MAX))
    }

    /// Changes the events of an endpoint that was cut so that they report `PeerGone`.
    fn disguise(&self, mut event: Event) -> Event {
        match &mut event {
            Event::Completed { endpoint, result: Err(error), .. }
                if self.cut.contains(endpoint) && *error == FabricError::Closed =>
            {
                *error = FabricError::PeerGone;
            }
            Event::Disconnected { endpoint, reason }
                if self.cut.contains(endpoint) && *reason == DisconnectReason::Local =>
            {
                *reason = DisconnectReason::PeerGone;
            }
            _ => {}
        }
        event
    }

    fn learn(&mut self, event: Event, now: Instant, events: &mut Vec<Event>) {
        let event = self.disguise(event);
        match &event {
            Event::Completed { endpoint, .. } | Event::Message { endpoint, .. } => {
                self.step(*endpoint);
                let due = now + self.delay();
                self.held.hold(event, due);
            }
            Event::Connected { endpoint, .. } | Event::Accepted { endpoint, .. } => {
                let endpoint = *endpoint;
                events.push(event);
                self.step(endpoint);
            }
            Event::Disconnected { endpoint, .. } => {
                // The last event of the endpoint: the held events go first.
                events.append(&mut self.held.take(*endpoint));
                self.cut.remove(endpoint);
                events.push(event);
            }
            Event::Unregistered { .. } => self.held.hold(event, now),
            Event::ConnectFailed { .. } | Event::Fenced { .. } => events.push(event),
        }
    }
}

impl<F: Fabric> Fabric for FaultFabric<F> {
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
        self.inner.post(endpoint, list)?;
        list.iter().for_each(|_| self.step(endpoint));
        Ok(())
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        self.inner.send(endpoint, message)?;
        self.step(endpoint);
        Ok(())
    }

    fn flush(&mut self, endpoint: EndpointId) {
        self.inner.flush(endpoint);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        let mut fresh = std::mem::take(&mut self.events);
        self.inner.poll(&mut fresh);
        let now = Instant::now();
        for event in fresh.drain(..) {
            self.learn(event, now, events);
        }
        self.events = fresh;
        self.held.release(now, events);
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
        let held = self.held.next_due(Instant::now());
        held.into_iter().chain(self.inner.next_completion()).min()
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
        let Faults { seed, longest_delay, lose_at } = self.faults;
        let cut = lose_at.map_or_else(String::new, |step| format!(", cut off at step {step}"));
        format!(
            "{}; with delays up to {longest_delay:?}{cut}, seed {seed}",
            self.inner.description()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rackpool_model::{Incarnation, RackId};

    use super::*;
    use crate::conformance::memory::{FileMapper, FileMemory};
    use crate::conformance::pair::ok;
    use crate::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};

    const LONGEST: Duration = Duration::from_millis(1);
    const ENDPOINTS: u8 = 64;

    /// A fabric without peers, whose events are delayed.
    fn late(seed: u64) -> FaultFabric<EmulatedFabric> {
        let folder = ok(tempfile::tempdir());
        let frames = FileMemory::anonymous(4096);
        let (listen, mapper) = (folder.path().join("rack"), Arc::new(FileMapper));
        let mut options = EmulatedOptions::new(RackId(1), Incarnation(1), listen, mapper);
        options.exports = vec![ExportedRegion { fd: ok(frames.share()), len: 4096 }];
        let faults = Faults { seed, longest_delay: LONGEST, lose_at: None };
        FaultFabric::new(ok(EmulatedFabric::new(options)), faults)
    }

    /// The order in which simultaneous events are reported: for each endpoint, two completions
    /// followed by a message.
    fn said(fabric: &mut FaultFabric<EmulatedFabric>) -> Vec<Event> {
        let (now, mut events) = (Instant::now(), Vec::new());
        for endpoint in (0..ENDPOINTS).map(|id| EndpointId(id.into())) {
            for id in 0..2 {
                fabric.learn(Event::Completed { endpoint, id, result: Ok(()) }, now, &mut events);
            }
            fabric.learn(Event::Message { endpoint, bytes: vec![7] }, now, &mut events);
        }
        assert_eq!(events, [], "what is late was said at once");
        fabric.held.release(now + LONGEST, &mut events);
        assert_eq!(events.len(), 3 * usize::from(ENDPOINTS), "it was later than the longest delay");
        events
    }

    #[test]
    fn delays_follow_from_the_seed_and_reach_from_nothing_to_the_longest() {
        let delays = |seed| {
            let mut fabric = late(seed);
            (0..2000).map(|_| fabric.delay()).collect::<Vec<_>>()
        };
        let first = delays(1);
        assert_eq!(first, delays(1));
        assert_ne!(first, delays(2));
        assert!(first.iter().all(|delay| *delay <= LONGEST));
        assert!(first.iter().any(|delay| *delay > LONGEST.mul_f64(0.99)));
        assert!(first.iter().any(|delay| *delay < LONGEST.mul_f64(0.01)));
    }

    #[test]
    fn messages_overtake_completions_and_endpoints_each_other() {
        let events = said(&mut late(3));
        let mut completed = vec![0; usize::from(ENDPOINTS)];
        let mut overtaken = BTreeSet::new();
        let mut order = Vec::new();
        for event in &events {
            match event {
                Event::Completed { endpoint, id, .. } => {
                    let before = &mut completed[ok(usize::try_from(endpoint.0))];
                    assert_eq!(*id, *before, "completions of one endpoint keep their order");
                    *before += 1;
                }
                Event::Message { endpoint, .. } => {
                    order.push(endpoint.0);
                    overtaken.insert(completed[ok(usize::try_from(endpoint.0))]);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(overtaken, BTreeSet::from([0, 1, 2]), "completions that messages came after");
        assert!(!order.is_sorted(), "no endpoint overtook another");
        assert_eq!(events, said(&mut late(3)), "the same seed");
        assert_ne!(events, said(&mut late(4)), "another seed");
    }
}
