mod ending;
mod events;
mod fabric;
mod start;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use super::connector::{self, FIRST_ACCEPTED};
use super::inbox::{Inbox, signal};
use super::poster::Poster;
use super::server::{self, ServerHandle};
use crate::regions::Regions;
use crate::{DeviceCounters, DisconnectReason, EndpointId, Event, FabricError, ReceiveRoom};

/// A fabric over TCP (see the [module](super)).
///
/// Dropping it ends its endpoints as a killed process would: the peers see `PeerGone`.
pub struct TcpFabric {
    address: String,
    description: String,
    /// Whether there is a key, so that peers may be on other hosts.
    has_key: bool,
    regions: Regions,
    /// For what comes through the posting channels.
    receive_room: ReceiveRoom,
    /// The next endpoint that this side connects: even, those of peers are odd.
    next_endpoint: u64,
    /// The endpoints of peers that were reported are below.
    next_accepted: u64,
    /// Whether the owner still wants the endpoint.
    connecting: BTreeMap<EndpointId, bool>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// What went through the posting channels of endpoints that are gone.
    past: DeviceCounters,
    /// Events that happened outside of `poll`.
    stash: Vec<Event>,
    inbox: Arc<Inbox>,
    /// Watches the inbox and the posting channels.
    epoll: OwnedFd,
    armed: bool,
    server: ServerHandle,
    commands: Sender<connector::Command>,
    /// Wakes the connector.
    control: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

struct Endpoint {
    state: State,
    /// Room that the messages taken so far had.
    taken: u64,
    /// How much of that the peer knows.
    told: u64,
}

enum State {
    Open(Poster),
    /// The posting channel has ended; the server will say how the other one does.
    Asking(Poster),
    /// Nothing is done any more; the server will say when nothing can land any more.
    Ending(DisconnectReason),
}

impl TcpFabric {
    fn connect_to(&mut self, address: SocketAddr) -> Result<EndpointId, FabricError> {
        let endpoint = EndpointId(self.next_endpoint);
        self.command(connector::Command::Connect { endpoint, address })?;
        self.next_endpoint += 2;
        self.connecting.insert(endpoint, true);
        Ok(endpoint)
    }

    fn command(&self, command: connector::Command) -> Result<(), FabricError> {
        let sent = self.commands.send(command);
        signal(&*self.control);
        sent.map_err(|_| FabricError::local("reach the connector", "its thread has ended"))
    }

    /// The error for an endpoint that is not open.
    fn missing(&self, endpoint: EndpointId) -> FabricError {
        let next =
            if endpoint.0 % 2 == FIRST_ACCEPTED { self.next_accepted } else { self.next_endpoint };
        match self.connecting.get(&endpoint) {
            Some(true) => FabricError::NotConnected,
            Some(false) => FabricError::Closed,
            None if endpoint.0 < next => FabricError::Closed,
            None => FabricError::UnknownEndpoint,
        }
    }
}

impl Drop for TcpFabric {
    fn drop(&mut self) {
        self.endpoints.clear();
        // These fail only when the threads have ended already.
        let _ = self.command(connector::Command::Stop);
        let _ = self.server.tell(server::Command::Stop);
        for thread in self.threads.drain(..) {
            // A panic of a thread has been printed; there is nothing left to save here.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpFabric").field("address", &self.address).finish_non_exhaustive()
    }
}
