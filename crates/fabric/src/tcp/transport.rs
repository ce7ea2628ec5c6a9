use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rackpool_sync::random_bytes;

use super::inbox::{Inbox, InboxEvent, Ready};
use super::offer::{ChannelNumber, Offer};
use super::server::{Command, ServerHandle};
use crate::connector::{Connection, Next, Outcome, Transport};
use crate::handshake::{Identity, Protocol};
use crate::{EndpointId, FabricError, Role, ip_socket};

/// Id of the first endpoint that a peer connects. Peers' endpoints have odd ids, the owner's even
/// ones.
pub(super) const FIRST_ACCEPTED: u64 = 1;

/// What the TCP fabric adds to the connector: an endpoint is two connections, which become the
/// channels of the server and of the owner.
pub(super) struct TcpTransport {
    pub(super) identity: Identity,
    /// Length of each exported region, in bytes.
    pub(super) regions: Vec<u64>,
    pub(super) dead_after: Duration,
    pub(super) inbox: Arc<Inbox>,
    pub(super) server: ServerHandle,
    pub(super) next_accepted: u64,
}

/// The offers of a connection.
#[derive(Default)]
pub(super) struct Half {
    /// The channel and session of the initiator; `None` at the acceptor until the offer comes.
    number: Option<(ChannelNumber, [u8; 16])>,
    /// Length of each region that the peer exports, in bytes.
    regions: Vec<u64>,
}

impl TcpTransport {
    fn own_offer(&self, half: &Half) -> Vec<u8> {
        let (channel, session) = half.number.unwrap_or_default();
        Offer { channel, session, regions: self.regions.clone() }.encode()
    }
}

impl Transport for TcpTransport {
    const PROTOCOL: &'static Protocol = &Protocol { magic: *b"racktcp\0", name: "rackpool tcp" };
    const CHANNELS: usize = ChannelNumber::BOTH.len();
    /// The kernels retransmit a lost SYN after a second, so a new attempt is quicker after a link
    /// failure.
    const CONNECT_MS: u64 = 250;
    /// The server and the owner read the sockets.
    const WATCHES: bool = false;

    type Address = SocketAddr;
    type Half = Half;
    type Link = (TcpStream, Box<Ready>);
    type Remains = ();

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&self) -> Result<Vec<Half>, FabricError> {
        let session =
            random_bytes().map_err(|error| FabricError::local("get random bytes", error))?;
        let half = |channel| Half { number: Some((channel, session)), regions: Vec::new() };
        Ok(ChannelNumber::BOTH.map(half).into())
    }

    fn new_socket(&self, address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
        ip_socket::new_socket(address)
    }

    fn connect(&self, socket: &OwnedFd, address: &SocketAddr) -> rustix::io::Result<bool> {
        ip_socket::connect(socket, address).map(|()| true)
    }

    fn prepare(&self, socket: &OwnedFd) -> Result<(), FabricError> {
        ip_socket::prepare(socket, self.dead_after)
    }

    fn offer(&self, connection: &mut Connection<Self>) -> Result<(), FabricError> {
        connection.send_offer(self, self.own_offer(&connection.half), &[])
    }

    fn offered(
        &self,
        connection: &mut Connection<Self>,
        content: &[u8],
    ) -> Result<Next, FabricError> {
        let Offer { channel, session, regions } = Offer::decode(content)?;
        let own = connection.half.number.get_or_insert((channel, session));
        if *own != (channel, session) {
            return Err(FabricError::misbehaved("it answered another offer"));
        }
        connection.half.regions = regions;
        Ok(Next::Done)
    }

    fn belong_together(one: &Connection<Self>, other: &Connection<Self>) -> bool {
        let alike = |connection: &Connection<Self>| {
            let session = connection.half.number.map(|(_, session)| session);
            (session, connection.peer(), connection.half.regions.clone())
        };
        one.half.number != other.half.number && alike(one) == alike(other)
    }

    fn establish(
        &mut self,
        mut channels: Vec<Connection<Self>>,
    ) -> Result<Self::Link, FabricError> {
        channels.sort_by_key(|one| one.half.number);
        let [first, second] = <[_; 2]>::try_from(channels)
            .map_err(|_| FabricError::misbehaved("it opened one channel of two"))?;
        let (peer, incarnation) = first.peer()?;
        let endpoint = if let Some(endpoint) = first.endpoint() {
            if (first.peer(), &first.half.regions) != (second.peer(), &second.half.regions) {
                return Err(FabricError::misbehaved("two racks answer at its address"));
            }
            endpoint
        } else {
            for one in [&first, &second] {
                one.send_offer(self, self.own_offer(&one.half), &[])?;
            }
            self.next_accepted += 2;
            EndpointId(self.next_accepted - 2)
        };
        let accepted = first.role() == Role::Acceptor;
        let regions = first.half.regions;
        let [first, second] = [first.stream.socket, second.stream.socket].map(|socket| {
            let owned = Arc::into_inner(socket).map(TcpStream::from);
            owned.ok_or_else(|| FabricError::local("hand over a socket", "it is in use"))
        });
        let (posting, serving) = if accepted { (second?, first?) } else { (first?, second?) };
        let ready = Ready { endpoint, accepted, peer, incarnation, regions, posting };
        Ok((serving, Box::new(ready)))
    }

    fn report(&mut self, outcome: Outcome<Self>) {
        match outcome {
            Outcome::Ready { link: (socket, ready), .. } => {
                // The server informs the owner. Fails only if the server has ended because the
                // fabric is being dropped; `Stop` follows.
                let _ = self.server.tell(Command::Serve { socket, ready });
            }
            Outcome::Failed { endpoint, error } => {
                self.inbox.tell(InboxEvent::Failed { endpoint, error });
            }
            Outcome::Abandoned { endpoint } => self.inbox.tell(InboxEvent::Abandoned { endpoint }),
            // Nothing is watched.
            Outcome::Gone { .. }
            | Outcome::Broken { .. }
            | Outcome::Superseded { .. }
            | Outcome::Forgotten { .. } => {}
        }
    }
}
