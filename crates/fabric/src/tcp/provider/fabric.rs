use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::start::SCHEME;
use super::{State, TcpFabric};
use crate::connector::Command;
use crate::ip_socket;
use crate::tcp::poster::QUEUE_DEPTH;
use crate::{
    DeviceCounters, DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion,
    RegionId, Unsent, WorkRequest,
};

impl Fabric for TcpFabric {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.regions.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.regions.unregister(region, &mut self.stash);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        self.connect_to(ip_socket::parse(address, SCHEME, "tcp", self.has_key)?)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        match self.endpoints.get_mut(&endpoint).map(|open| &mut open.state) {
            Some(State::Open(poster)) => poster.take(list, &mut self.regions),
            Some(State::Asking(_) | State::Ending(_)) => Err(FabricError::Closed),
            None => Err(self.missing(endpoint)),
        }
    }

    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent> {
        self.look_for_room(endpoint, message.len());
        let error = match self.endpoints.get_mut(&endpoint).map(|open| &mut open.state) {
            Some(State::Open(poster)) => return poster.send(message),
            Some(State::Asking(_) | State::Ending(_)) => FabricError::Closed,
            None => self.missing(endpoint),
        };
        Err(Unsent { error, message })
    }

    fn flush(&mut self, endpoint: EndpointId) {
        let state = self.endpoints.get_mut(&endpoint).map(|open| &mut open.state);
        if let Some(State::Open(poster)) = state {
            poster.try_flush(&self.regions);
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.stash);
        self.poll_channels(events);
        self.take_events(events);
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        if let Some(wanted) = self.connecting.get_mut(&endpoint) {
            if std::mem::take(wanted) {
                // The connector reports the result as an event.
                let _ = self.connector.command(Command::Abandon { endpoint });
            }
            return;
        }
        let mut events = std::mem::take(&mut self.stash);
        self.end(endpoint, DisconnectReason::Local, &mut events);
        self.stash = events;
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        self.flush_all();
        self.watch_full_sockets(true);
        let quiet = self.stash.is_empty() && !self.has_stirred();
        self.inbox.arm() && quiet
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.inbox.disarm();
            self.find_stirred();
            self.watch_full_sockets(false);
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Always `None`: every response wakes the owner.
    fn next_completion(&self) -> Option<Duration> {
        None
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn device_counters(&self) -> DeviceCounters {
        let mut all = self.past;
        for open in self.endpoints.values() {
            if let State::Open(poster) | State::Asking(poster) = &open.state {
                all += poster.metrics;
            }
        }
        all
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}
