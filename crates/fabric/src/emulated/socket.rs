use std::os::fd::OwnedFd;

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::FabricError;
use crate::connector::Source;

/// Creates a non-blocking Unix socket.
pub(super) fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
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

/// The process that made the connection, for log messages and for the admission limiter.
pub(super) fn process(socket: &OwnedFd) -> Source {
    credentials(socket).map_or(Source::Unknown, |credentials| Source::Process(credentials.pid()))
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
