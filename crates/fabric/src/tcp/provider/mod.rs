mod ending;
mod events;
mod fabric;
mod start;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::inbox::Inbox;
use super::poster::Poster;
use super::server::{self, ServerHandle};
use super::transport::{FIRST_ACCEPTED, TcpTransport};
use crate::connector::{Command, ConnectorHandle};
use crate::regions::Regions;
use crate::{DeviceCounters, DisconnectReason, EndpointId, Event, FabricError, ReceiveRoom};

/// A fabric over TCP (see the [module](super)).
///
/// Dropping the fabric ends its endpoints as if the process were killed: the peers see `PeerGone`.
pub struct TcpFabric {
    address: String,
    description: String,
    /// True if the fabric uses a key, so that peers may be on other hosts.
    has_key: bool,
    regions: Regions,
    /// Room for the input buffers of the posting channels.
    receive_room: ReceiveRoom,
    /// Id of the next endpoint that this side connects; even, whereas those of peers are odd.
    next_endpoint: u64,
    /// Lower bound of the ids of peers' endpoints that have not been reported yet.
    next_accepted: u64,
    /// Endpoints being connected; false once the owner has given them up.
    connecting: BTreeMap<EndpointId, bool>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Counts of the posting channels of endpoints that have ended.
    past: DeviceCounters,
    /// Events that occurred outside of `poll`.
    stash: Vec<Event>,
    inbox: Arc<Inbox>,
    /// Watches the inbox and the posting channels.
    epoll: OwnedFd,
    armed: bool,
    server: ServerHandle,
    connector: ConnectorHandle<TcpTransport>,
    server_thread: Option<JoinHandle<()>>,
}

struct Endpoint {
    state: State,
    /// Total room of the messages taken so far, in bytes.
    taken: u64,
    /// The part of `taken` that was reported to the peer, in bytes.
    told: u64,
}

/// The state of an endpoint after its handshake. If this process dies in any state, the kernel
/// closes both channels.
enum State {
    /// Both channels stand. Left by `disconnect()`, a bye, the end of a channel, or a violation of
    /// the protocol.
    Open(Poster),
    /// The posting channel has ended without a bye. Left by `disconnect()`, or when the server
    /// reports how the serving channel ends, at the latest after 1 s.
    Asking(Poster),
    /// All requests have failed. Left when the server reports that nothing can land any more.
    Ending(DisconnectReason),
}

impl TcpFabric {
    fn connect_to(&mut self, address: SocketAddr) -> Result<EndpointId, FabricError> {
        let endpoint = EndpointId(self.next_endpoint);
        self.connector.command(Command::Connect { endpoint, address })?;
        self.next_endpoint += 2;
        self.connecting.insert(endpoint, true);
        Ok(endpoint)
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
        // Fails only if the server has already ended.
        let _ = self.server.tell(server::Command::Stop);
        if let Some(thread) = self.server_thread.take() {
            // A panic of the server has been printed; nothing else is to be done here.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpFabric").field("address", &self.address).finish_non_exhaustive()
    }
}
