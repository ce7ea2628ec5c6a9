use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{EmulatedFabric, SCHEME};
use crate::connector::Command;
use crate::emulated::endpoint::QUEUE_DEPTH;
use crate::emulated::model::{Clock, now_ns};
use crate::emulated::transport::SocketPath;
use crate::{
    DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion, RegionId, Unsent,
    WorkRequest,
};
use rackpool_sync::eventfd::drain;

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
        let address = SocketPath(path.into());
        self.connector.command(Command::Connect { endpoint, address })?;
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
        if self.outcomes.is_due() {
            while let Some(outcome) = self.outcomes.next(self.connecting.first().copied()) {
                self.learn(outcome, events);
            }
        }
        let mut clock = Clock::default();
        let Self { endpoints, regions, connector, .. } = self;
        endpoints.retain(|endpoint, open| {
            let ended = open.endpoint.poll(regions, &mut clock, events);
            if ended {
                // Fails only if the connector has ended, which then watches nothing.
                let (endpoint, watch) = (*endpoint, open.watch);
                let _ = connector.command(Command::Forget { endpoint, watch, remains: () });
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
            let _ = self.connector.command(Command::Abandon { endpoint });
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
        self.outcomes.arm(self.connecting.first().copied()) && quiet
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
