use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{CONNECTOR_EVERY, EmulatedFabric, SCHEME};
use crate::emulated::connector::Command;
use crate::emulated::endpoint::QUEUE_DEPTH;
use crate::emulated::model::{Clock, now_ns};
use crate::{
    DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion, RegionId, Unsent,
    WorkRequest,
};
use rackpool_sync::eventfd::{drain, signal};

impl Fabric for EmulatedFabric {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.regions.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.regions.unregister(region, &mut self.stash);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        let path = address.strip_prefix(SCHEME).filter(|path| path.starts_with('/'));
        let Some(path) = path else {
            return Err(FabricError::BadAddress {
                address: address.into(),
                provider: "emulated",
                expected: "emulated: and the absolute path of a socket",
            });
        };
        let endpoint = self.new_endpoint();
        self.command(Command::Connect { endpoint, path: path.into() })?;
        self.connecting.insert(endpoint);
        Ok(endpoint)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.post(list, &mut self.regions, &mut Clock::default()),
            None => Err(self.missing(endpoint)),
        }
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.send(message, &mut Clock::default()),
            None => Err(Unsent { error: self.missing(endpoint), message }),
        }
    }

    fn flush(&mut self, endpoint: EndpointId) {
        if let Some(open) = self.endpoints.get_mut(&endpoint) {
            open.endpoint.flush();
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.stash);
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CONNECTOR_EVERY) || self.found.is_some() {
            while let Some(outcome) = self.next_outcome() {
                self.learn(outcome, events);
            }
        }
        let mut clock = Clock::default();
        let Self { endpoints, regions, commands, control, .. } = self;
        endpoints.retain(|_, open| {
            let ended = open.endpoint.poll(regions, &mut clock, events);
            if ended {
                // Fails only if the connector has ended, which then watches nothing.
                let _ = commands.send(Command::Forget { watch: open.watch });
                signal(&**control);
            }
            !ended
        });
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        let reason = DisconnectReason::Local;
        if let Some(open) = self.endpoints.get_mut(&endpoint) {
            open.endpoint.close(reason, &mut self.regions, &mut self.stash);
        } else if self.connecting.remove(&endpoint) {
            // Fails only if the connector has ended, which then connects nothing.
            let _ = self.command(Command::Abandon { endpoint });
            self.stash.push(Event::Disconnected { endpoint, reason });
        }
    }

    fn arm(&mut self) -> bool {
        // Every endpoint is armed, even after one that has something to do, because disarm()
        // expects all to be in the same state.
        let mut quiet = self.stash.is_empty();
        for open in self.endpoints.values_mut() {
            quiet &= open.endpoint.arm();
        }
        if self.found.is_none() {
            self.found = self.next_outcome();
        }
        quiet && self.found.is_none()
    }

    fn disarm(&mut self) {
        drain(&*self.wake);
        for open in self.endpoints.values_mut() {
            open.endpoint.disarm();
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        let due_ns =
            self.endpoints.values().filter_map(|open| open.endpoint.next_due_ns()).min()?;
        Some(Duration::from_nanos(due_ns.saturating_sub(now_ns())))
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}
