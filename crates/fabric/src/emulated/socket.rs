use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::hello::{MAX_EXPORTS, MAX_PACKET};
use crate::FabricError;

/// Descriptors that a packet may carry: the wake eventfd, the link memory and the exported regions.
const MAX_FDS: usize = MAX_EXPORTS + 2;

/// A handshake packet, unchecked.
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// The result of a receive.
pub(super) enum Received {
    /// A packet.
    Packet(Packet),
    /// No packet is available yet.
    Nothing,
    /// The peer has closed the socket.
    End,
}

/// Creates a non-blocking socket that preserves packet boundaries.
pub(super) fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a packet. It fits into the buffer of an empty socket, so the call cannot block.
pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet if one is available. Checks only its size.
pub(super) fn receive(socket: impl AsFd) -> Result<Received, FabricError> {
    let mut bytes = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received =
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(_) => return Ok(Received::End),
        };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(FabricError::misbehaved("its handshake packet is too large"));
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    bytes.truncate(received.bytes);
    Ok(Received::Packet(Packet { bytes, fds }))
}

/// Returns true if the peer has closed the socket or ended, or if that cannot be determined.
pub(super) fn has_ended(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&at_once))) {
        Ok(_) => fds[0].revents().intersects(PollFlags::HUP),
        Err(_) => true,
    }
}

/// The process at the other end of a socket, for log messages.
#[derive(Clone, Copy)]
pub(super) struct Process(i32);

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// The process that made the connection.
pub(super) fn process(socket: &OwnedFd) -> Option<Process> {
    credentials(socket).ok().map(|credentials| Process(credentials.pid()))
}

fn credentials(socket: &OwnedFd) -> nix::Result<UnixCredentials> {
    getsockopt(socket, PeerCredentials)
}

/// Checks that the process at the other end runs as the same user as this one.
pub(super) fn check_user(socket: &OwnedFd) -> Result<(), FabricError> {
    let credentials =
        credentials(socket).map_err(|errno| FabricError::local("ask who the peer is", errno))?;
    let (ours, theirs) = (rustix::process::geteuid().as_raw(), credentials.uid());
    if ours != theirs {
        return Err(FabricError::OtherUser { ours, theirs });
    }
    Ok(())
}
