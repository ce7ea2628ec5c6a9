//! A fabric that is worse than the one it decorates: late, out of order where that is allowed, and
//! cut off at a chosen step. What it chooses follows from a seed.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::held::Held;
use crate::{
    DeviceFigures, DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion,
    RegionId, Unsent, WorkRequest,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Decides every delay.
    pub seed: u64,
    /// Completions and messages come up to so much later. Those of different endpoints, and
    /// completions and messages of one, overtake each other.
    pub longest_delay: Duration,
    /// At this step, counted from 0, the endpoint of the step loses its connection. A step is a
    /// request that is posted, a message that is sent, or an event of an endpoint.
    pub lose_at: Option<u64>,
}

/// A fabric with faults.
pub struct FaultFabric<F> {
    inner: F,
    faults: Faults,
    random: u64,
    steps: u64,
    held: Held,
    /// Endpoints that this side has cut: for everybody else their peer is gone.
    cut: BTreeSet<EndpointId>,
    events: Vec<Event>,
}

impl<F: Fabric> FaultFabric<F> {
    /// Decorates a fabric.
    pub const fn new(inner: F, faults: Faults) -> Self {
        Self {
            inner,
            faults,
            random: faults.seed,
            steps: 0,
            held: Held::new(),
            cut: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    /// Steps so far.
    #[must_use]
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts a step of an endpoint; cuts it off if this is the one.
    fn step(&mut self, endpoint: EndpointId) {
        let now = self.steps;
        self.steps += 1;
        if self.faults.lose_at == Some(now) {
            self.cut.insert(endpoint);
            self.inner.disconnect(endpoint);
        }
    }

    /// A random time up to the longest delay.
    fn delay(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = u32::try_from(mixed >> 32).unwrap_or(0);
        self.faults.longest_delay.mul_f64(f64::from(part) / f64::from(u32::MAX))
    }

    /// A connection that is cut looks like a peer that is gone.
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
                // Its last event.
                events.append(&mut self.held.take(*endpoint));
                self.cut.remove(endpoint);
                events.push(event);
            }
            Event::Unregistered { .. } => self.held.hold(event, now),
            Event::ConnectFailed { .. } => events.push(event),
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

    fn device_figures(&self) -> DeviceFigures {
        self.inner.device_figures()
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
