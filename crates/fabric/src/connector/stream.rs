use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::FabricError;
use crate::handshake::{MAX_EXPORTS, Protocol};

/// Descriptors that a peer may send: the exported regions and three more.
const MAX_FDS: usize = MAX_EXPORTS + 3;

/// The socket of a handshake, and what it received of the next packet.
#[derive(Debug)]
pub struct Stream {
    /// The socket.
    pub socket: Arc<OwnedFd>,
    got: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Received {
    Packet(Vec<u8>),
    /// The packet is not complete yet.
    Nothing,
    End,
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self::of(Arc::new(socket))
    }

    /// A stream over a socket of which nothing was received yet.
    #[must_use]
    pub const fn of(socket: Arc<OwnedFd>) -> Self {
        Self { socket, got: Vec::new(), fds: Vec::new() }
    }

    /// Receives the next packet and no byte beyond it: what follows a handshake may be no packet.
    pub(super) fn receive(&mut self, protocol: &Protocol) -> Result<Received, FabricError> {
        loop {
            let have = self.got.len();
            let wanted = protocol.len(&self.got)?;
            if wanted == have {
                return Ok(Received::Packet(std::mem::take(&mut self.got)));
            }
            self.got.resize(wanted, 0);
            let result = self.read(have);
            self.got.truncate(have + result.as_ref().map_or(0, |read| *read));
            match result {
                Ok(0) => return Ok(Received::End),
                Ok(_) if self.fds.len() <= MAX_FDS => {}
                Ok(_) => return Err(FabricError::misbehaved("it sent too many descriptors")),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
                Err(_) => return Ok(Received::End),
            }
        }
    }

    fn read(&mut self, at: usize) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.got[at..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&*self.socket, &mut into, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.fds.extend(rights);
            }
        }
        // The kernel dropped descriptors, more than any honest peer sends.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::TOOMANYREFS);
        }
        Ok(received.bytes)
    }

    /// The descriptors received so far.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    /// Sends bytes, which fit into the send buffer of a peer that follows the protocol, with
    /// descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FabricError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let failed = |cause: &str| FabricError::local("talk to the peer", cause);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(failed("there are too many descriptors"));
        }
        let bytes = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(&*self.socket, &bytes, &mut control, SendFlags::NOSIGNAL) {
            Ok(count) if count == bytes[0].len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(failed("its connection is full")),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(FabricError::PeerGone),
            Err(errno) => Err(FabricError::local("talk to the peer", errno)),
        }
    }
}
