use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rackpool_fabric::{
    DeviceCounters, DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion,
    RegionId, Unsent, WorkRequest,
};

use rackpool_sync::eventfd::drain;

use super::{CONNECTOR_EVERY, SCHEME, VerbsFabric, Wanted, is_this_host};
use crate::connector::Command;
use crate::endpoint::QUEUE_DEPTH;

impl Fabric for VerbsFabric {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.regions.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.regions.unregister(region, &mut self.stash);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        let parsed = address.strip_prefix(SCHEME).and_then(|rest| rest.parse::<SocketAddr>().ok());
        let parsed = parsed.filter(|parsed| parsed.port() != 0 && !parsed.ip().is_unspecified());
        let Some(parsed) = parsed else {
            return Err(FabricError::BadAddress {
                address: address.into(),
                provider: "verbs",
                expected: "verbs: and an IP address with a port, like verbs:192.0.2.7:7500",
            });
        };
        if !self.shared.key.is_used() && !is_this_host(&parsed) {
            return Err(FabricError::KeyNeeded { address: parsed.to_string() });
        }
        let endpoint = self.new_endpoint();
        self.command(Command::Connect { endpoint, address: parsed })?;
        self.connecting.insert(endpoint, Wanted::Yes);
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
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CONNECTOR_EVERY) || self.found.is_some() {
            while let Some(outcome) = self.next_outcome() {
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
        } else if let Some(wanted) = self.connecting.get_mut(&endpoint) {
            *wanted = Wanted::GivenUp;
            // If the connector has ended, the next check of its reports detects that.
            let _ = self.command(Command::Abandon { endpoint });
        }
    }

    fn arm(&mut self) -> bool {
        let mut quiet = true;
        for open in self.endpoints.values_mut() {
            quiet &= open.endpoint.arm(&mut self.regions, &mut self.stash);
        }
        if self.found.is_none() {
            self.found = self.next_outcome();
        }
        quiet && self.stash.is_empty() && self.found.is_none()
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
