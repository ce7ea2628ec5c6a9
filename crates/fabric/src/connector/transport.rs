use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::{Connection, Outcome, Source};
use crate::FabricError;
use crate::handshake::{Identity, Protocol};

/// What becomes of a connection after a step of its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The peer, or the transport's device, has to do something.
    Wait,
    /// This connection has done its part; the endpoint exists when all its connections have.
    Done,
}

/// What a fabric adds to the handshake and the connector that all fabrics share.
pub trait Transport: Send + Sized + 'static {
    /// The protocol of its packets.
    const PROTOCOL: &'static Protocol;
    /// Connections of an endpoint.
    const CHANNELS: usize;
    /// Time in which the kernel has to connect, in milliseconds.
    const CONNECT_MS: u64;
    /// Whether the connector watches the socket of an established endpoint for the peer's end.
    const WATCHES: bool;

    /// Where peers listen.
    type Address: Clone + Display + Send;
    /// What the transport keeps for a connection during its handshake; the default for an accepted
    /// one.
    type Half: Default + Send;
    /// An established endpoint.
    type Link: Send;
    /// What is left of an endpoint that has ended, for the connector to destroy.
    type Remains: Send;

    /// This side's identity.
    fn identity(&self) -> &Identity;

    /// Begins an endpoint: the state of each of its connections.
    fn begin(&self) -> Result<Vec<Self::Half>, FabricError>;

    /// Creates a non-blocking socket for connecting.
    fn new_socket(&self, address: &Self::Address) -> rustix::io::Result<OwnedFd>;

    /// Begins to connect. Returns false if the listener has no room now; the connector tries again.
    fn connect(&self, socket: &OwnedFd, address: &Self::Address) -> rustix::io::Result<bool>;

    /// Sets up or checks a connected socket, before anything is sent or read.
    fn prepare(&self, socket: &OwnedFd) -> Result<(), FabricError>;

    /// Where an accepted connection comes from.
    fn source(socket: &OwnedFd, from: Option<SocketAddr>) -> Source {
        let _ = socket;
        from.map_or(Source::Unknown, Source::Host)
    }

    /// Initiator: makes and sends the offer. The acceptor has proved itself.
    fn offer(&self, connection: &mut Connection<Self>) -> Result<(), FabricError>;

    /// Processes the peer's offer. An acceptor sends its own, now or when the endpoint exists.
    fn offered(
        &self,
        connection: &mut Connection<Self>,
        content: &[u8],
    ) -> Result<Next, FabricError>;

    /// Whether the connection waits for a probe of the transport's device.
    fn is_probing(half: &Self::Half) -> bool {
        let _ = half;
        false
    }

    /// Looks after the probe.
    fn probe(&self, connection: &mut Connection<Self>) -> Result<Next, FabricError> {
        let _ = connection;
        Ok(Next::Wait)
    }

    /// The error of a connection whose time is over, if the transport knows the cause.
    fn too_late(half: &Self::Half, address: &str) -> Option<FabricError> {
        let _ = (half, address);
        None
    }

    /// Acceptor: whether two connections that have done their part are of one endpoint.
    fn belong_together(one: &Connection<Self>, other: &Connection<Self>) -> bool {
        let _ = (one, other);
        false
    }

    /// Makes an endpoint of its connections, which have all done their part.
    fn establish(&mut self, channels: Vec<Connection<Self>>) -> Result<Self::Link, FabricError>;

    /// Passes a report to the owner of the fabric and wakes it.
    fn report(&mut self, outcome: Outcome<Self>);
}
