use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use rackpool_fabric::connector::{Connection, HANDSHAKE_MS, Next, Outcome, Transport};
use rackpool_fabric::handshake::{Identity, Protocol};
use rackpool_fabric::{FabricError, Role, ip_socket};
use rackpool_sync::eventfd::signal;

use crate::error::misbehaved;
use crate::link::{LocalEnd, Shared, VerbsLink};
use crate::pair::Pair;

/// Time after which an unanswered peer is given up.
const DEAD_AFTER: Duration = Duration::from_secs(4);

/// What the verbs fabric adds to the connector: queue pairs, and a probe of the path between them.
pub(crate) struct VerbsTransport {
    pub(crate) shared: Arc<Shared>,
    pub(crate) outcomes: Sender<Outcome<Self>>,
}

/// A connection during its handshake.
#[derive(Default)]
pub(crate) enum Half {
    /// Nothing is made for a peer that has not proved itself.
    #[default]
    Nothing,
    /// Initiator: its own end. The acceptor's offer is awaited.
    Offered(Box<LocalEnd>),
    /// Initiator: both ends. Its probe is under way.
    Probing(Box<VerbsLink>),
    /// Both ends. The acceptor waits for the ready packet; the initiator's probe has completed.
    Joined(Box<VerbsLink>),
}

impl VerbsTransport {
    pub(crate) const PROTOCOL: &'static Protocol =
        &Protocol { magic: *b"rackverb", name: "rackpool verbs" };
}

impl Transport for VerbsTransport {
    const PROTOCOL: &'static Protocol = Self::PROTOCOL;
    const CHANNELS: usize = 1;
    const CONNECT_MS: u64 = HANDSHAKE_MS;
    const WATCHES: bool = true;

    type Address = SocketAddr;
    type Half = Half;
    type Link = Box<VerbsLink>;
    type Remains = Box<VerbsLink>;

    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    fn begin(&self) -> Result<Vec<Half>, FabricError> {
        Ok(vec![Half::Nothing])
    }

    fn new_socket(&self, address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
        ip_socket::new_socket(address)
    }

    fn connect(&self, socket: &OwnedFd, address: &SocketAddr) -> rustix::io::Result<bool> {
        ip_socket::connect(socket, address).map(|()| true)
    }

    fn prepare(&self, socket: &OwnedFd) -> Result<(), FabricError> {
        ip_socket::prepare(socket, DEAD_AFTER)
    }

    fn offer(&self, connection: &mut Connection<Self>) -> Result<(), FabricError> {
        let end = LocalEnd::new(&self.shared)?;
        connection.send_offer(self, end.describe(&self.shared).encode(), &[])?;
        connection.half = Half::Offered(Box::new(end));
        Ok(())
    }

    fn offered(
        &self,
        connection: &mut Connection<Self>,
        content: &[u8],
    ) -> Result<Next, FabricError> {
        let theirs = Pair::decode(content)?;
        let end = match std::mem::take(&mut connection.half) {
            Half::Offered(end) => *end,
            _ => LocalEnd::new(&self.shared)?,
        };
        let own = end.describe(&self.shared);
        let socket = Arc::clone(&connection.stream.socket);
        let mut link = Box::new(end.join(&self.shared, connection.peer()?, theirs, socket)?);
        connection.half = match connection.role() {
            Role::Acceptor => {
                connection.send_offer(self, own.encode(), &[])?;
                Half::Joined(link)
            }
            Role::Initiator => {
                link.probe()?;
                Half::Probing(link)
            }
        };
        Ok(Next::Wait)
    }

    fn is_probing(half: &Half) -> bool {
        matches!(half, Half::Probing(_))
    }

    fn probe(&self, connection: &mut Connection<Self>) -> Result<Next, FabricError> {
        let Half::Probing(link) = &connection.half else { return Ok(Next::Wait) };
        let no_path = |cause| FabricError::NoPath { address: connection.address(), cause };
        if !link.is_probed().map_err(no_path)? {
            return Ok(Next::Wait);
        }
        connection.send_ready()?;
        if let Half::Probing(link) = std::mem::take(&mut connection.half) {
            connection.half = Half::Joined(link);
        }
        Ok(Next::Done)
    }

    /// The device may try for longer than the handshake lasts.
    fn too_late(half: &Half, address: &str) -> Option<FabricError> {
        match half {
            Half::Probing(link) => {
                Some(FabricError::NoPath { address: address.into(), cause: link.no_answer() })
            }
            _ => None,
        }
    }

    fn establish(&mut self, channels: Vec<Connection<Self>>) -> Result<Self::Link, FabricError> {
        match channels.into_iter().next().map(|one| one.half) {
            Some(Half::Joined(link)) => Ok(link),
            _ => Err(misbehaved("it offered nothing")),
        }
    }

    fn report(&mut self, outcome: Outcome<Self>) {
        // The channel is closed only while the fabric is being dropped; `Stop` follows.
        let _ = self.outcomes.send(outcome);
        signal(&self.shared.wake);
    }
}
