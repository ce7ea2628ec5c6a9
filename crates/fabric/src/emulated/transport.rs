use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rackpool_model::{Incarnation, RackId};
use rackpool_sync::eventfd::signal;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::link::{self, LINK_BYTES, SharedLink, Side};
use super::listener::SocketFile;
use super::peer::{PeerMemory, map, next_fd};
use super::socket;
use super::{ExportedRegion, Mapper};
use crate::connector::{Connection, Next, Outcome, Source, Transport};
use crate::handshake::{Identity, Protocol, encode_regions};
use crate::{FabricError, Role};

/// What the emulated fabric adds to the connector: a link memory, and descriptors of what each side
/// exports.
pub(super) struct EmulatedTransport {
    pub(super) identity: Identity,
    pub(super) exports: Vec<ExportedRegion>,
    pub(super) mapper: Arc<dyn Mapper>,
    /// Wakes the thread that polls the fabric.
    pub(super) wake: Arc<OwnedFd>,
    /// The memory of the rack's card.
    pub(super) card: OwnedFd,
    pub(super) outcomes: Sender<Outcome<Self>>,
    /// Removed with the connector.
    pub(super) _socket_file: SocketFile,
}

/// The path of a rack's socket.
#[derive(Clone)]
pub(super) struct SocketPath(pub(super) PathBuf);

/// A connection during its handshake.
#[derive(Default)]
pub(super) struct Half {
    link: Option<SharedLink>,
    theirs: Option<PeerMemory>,
}

/// A link whose handshake is complete.
pub(super) struct Established {
    pub(super) peer: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) link: SharedLink,
    pub(super) theirs: PeerMemory,
    pub(super) socket: Arc<OwnedFd>,
}

impl std::fmt::Display for SocketPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

impl EmulatedTransport {
    /// Sends this side's offer; the initiator's carries the link memory.
    fn send(
        &self,
        connection: &Connection<Self>,
        memory: Option<&OwnedFd>,
    ) -> Result<(), FabricError> {
        let regions: Vec<u64> = self.exports.iter().map(|export| export.len).collect();
        let mut fds: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
        fds.push(self.wake.as_fd());
        fds.push(self.card.as_fd());
        fds.extend(self.exports.iter().map(|export| export.fd.as_fd()));
        connection.send_offer(self, encode_regions(&regions), &fds)
    }

    fn link(&self, memory: OwnedFd, side: Side) -> Result<SharedLink, FabricError> {
        let link = SharedLink::new(map(&*self.mapper, memory, LINK_BYTES)?, side)?;
        link.touch()?;
        Ok(link)
    }
}

impl Transport for EmulatedTransport {
    const PROTOCOL: &'static Protocol =
        &Protocol { magic: *b"rackfab\0", name: "rackpool emulated" };
    const CHANNELS: usize = 1;
    const CONNECT_MS: u64 = crate::connector::HANDSHAKE_MS;
    const WATCHES: bool = true;

    type Address = SocketPath;
    type Half = Half;
    type Link = Box<Established>;
    type Remains = ();

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn begin(&self) -> Result<Vec<Half>, FabricError> {
        Ok(vec![Half::default()])
    }

    fn new_socket(&self, _: &SocketPath) -> rustix::io::Result<OwnedFd> {
        socket::new_socket()
    }

    /// Returns false if the listener's backlog is full.
    fn connect(&self, socket: &OwnedFd, path: &SocketPath) -> rustix::io::Result<bool> {
        let SocketPath(path): &SocketPath = path;
        match rustix::net::connect(socket, &SocketAddrUnix::new::<&Path>(path)?) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn prepare(&self, socket: &OwnedFd) -> Result<(), FabricError> {
        socket::check_user(socket)
    }

    fn source(socket: &OwnedFd, _: Option<SocketAddr>) -> Source {
        socket::process(socket)
    }

    fn offer(&self, connection: &mut Connection<Self>) -> Result<(), FabricError> {
        let memory = link::create_memory()?;
        let copy =
            memory.try_clone().map_err(|error| FabricError::local("copy a descriptor", error))?;
        connection.half.link = Some(self.link(copy, Side::Initiator)?);
        self.send(connection, Some(&memory))
    }

    fn offered(
        &self,
        connection: &mut Connection<Self>,
        content: &[u8],
    ) -> Result<Next, FabricError> {
        let mut fds = connection.stream.take_fds().into_iter();
        let is_acceptor = connection.role() == Role::Acceptor;
        if is_acceptor {
            let memory = next_fd(&mut fds)?;
            link::check_memory(&memory)?;
            connection.half.link = Some(self.link(memory, Side::Acceptor)?);
        }
        connection.half.theirs = Some(PeerMemory::new(&*self.mapper, content, fds)?);
        if is_acceptor {
            self.send(connection, None)?;
        }
        Ok(Next::Done)
    }

    fn establish(&mut self, channels: Vec<Connection<Self>>) -> Result<Self::Link, FabricError> {
        let missing = || FabricError::misbehaved("it offered nothing");
        let one = channels.into_iter().next().ok_or_else(missing)?;
        let (peer, incarnation) = one.peer()?;
        let (Some(link), Some(theirs)) = (one.half.link, one.half.theirs) else {
            return Err(missing());
        };
        let socket = one.stream.socket;
        Ok(Box::new(Established { peer, incarnation, link, theirs, socket }))
    }

    fn report(&mut self, outcome: Outcome<Self>) {
        // The channel is closed only while the fabric is being dropped; `Stop` follows.
        let _ = self.outcomes.send(outcome);
        signal(&*self.wake);
    }
}
