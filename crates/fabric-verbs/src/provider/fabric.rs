use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rackpool_fabric::connector::Command;
use rackpool_fabric::{
    DeviceCounters, DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion,
    RegionId, Unsent, WorkRequest, ip_socket,
};

use rackpool_sync::eventfd::drain;

use super::{ConnectAttempt, SCHEME, VerbsFabric};
use crate::endpoint::QUEUE_DEPTH;

impl Fabric for VerbsFabric {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.regions.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.regions.unregister(region, &mut self.stash);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        let has_key = self.shared.identity.key.is_used();
        let address = ip_socket::parse(address, SCHEME, "verbs", has_key)?;
        let endpoint = self.new_endpoint();
        self.connector.command(Command::Connect { endpoint, address })?;
        self.connecting.insert(endpoint, ConnectAttempt::Awaited);
        Ok(endpoint)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.post(list, &mut self.regions),
            None => Err(self.missing(endpoint)),
        }
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        let sent = match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.send(&message, &mut self.regions, &mut self.stash),
            None => Err(self.missing(endpoint)),
        };
        sent.map_err(|error| Unsent { error, message })
    }

    fn flush(&mut self, endpoint: EndpointId) {
        if let Some(open) = self.endpoints.get_mut(&endpoint) {
            open.endpoint.flush(&self.regions);
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.stash);
        if self.outcomes.is_due() {
            while let Some(outcome) = self.outcomes.next(self.first_connecting()) {
                self.learn(outcome, events);
            }
        }
        let mut ended = None;
        for (id, open) in &mut self.endpoints {
            if let Some(link) = open.endpoint.poll(&mut self.regions, events) {
                ended = Some((*id, open.watch, link));
                // The remaining endpoints are polled next time.
                break;
            }
        }
        if let Some((endpoint, watch, link)) = ended {
            self.bury(endpoint, watch, link);
        }
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        if let Some(open) = self.endpoints.get_mut(&endpoint) {
            let reason = DisconnectReason::Local;
            let link = open.endpoint.end(reason, &mut self.regions, &mut self.stash);
            let watch = open.watch;
            if let Some(link) = link {
                self.bury(endpoint, watch, link);
            }
        } else if let Some(attempt) = self.connecting.get_mut(&endpoint) {
            *attempt = ConnectAttempt::GivenUp;
            // If the connector has ended, the next check of its reports detects that.
            let _ = self.connector.command(Command::Abandon { endpoint });
        }
    }

    fn arm(&mut self) -> bool {
        let mut quiet = true;
        for open in self.endpoints.values_mut() {
            quiet &= open.endpoint.arm(&mut self.regions, &mut self.stash);
        }
        self.outcomes.arm(self.first_connecting()) && quiet && self.stash.is_empty()
    }

    fn disarm(&mut self) {
        drain(&self.shared.wake);
        self.shared.channel.drain();
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        // A one-sided operation takes less time than a wake-up.
        let busy = self.endpoints.values().any(|open| open.endpoint.is_busy());
        busy.then_some(Duration::ZERO)
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn device_counters(&self) -> DeviceCounters {
        let mut all = self.past;
        self.endpoints.values().for_each(|open| all += open.endpoint.metrics());
        all
    }

    fn address(&self) -> String {
        format!("{SCHEME}{}", self.address)
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}
