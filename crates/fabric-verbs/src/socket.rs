//! The TCP connections of handshakes, which also detect the end of peers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rackpool_fabric::FabricError;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::error::local;
use crate::packet::Packet;

const BACKLOG: i32 = 256;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Interval of keep-alive probes on an idle connection.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time after which an unanswered peer is given up.
const GIVE_UP_AFTER_MS: u32 = 4000;
/// Bytes read at a time.
const CHUNK: usize = 1024;

/// The result of a receive.
pub(crate) enum Received {
    /// Bytes were appended.
    Bytes,
    /// No bytes are available.
    Nothing,
    /// The connection has ended.
    End,
}

fn new_socket(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// Listens at an address. Returns the socket and its bound address.
pub(crate) fn listen(address: &SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = new_socket(address)?;
    // A restarted daemon gets its port although connections of its predecessor are in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Begins to connect. The socket becomes writable when the attempt has succeeded or failed.
pub(crate) fn connect(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket(address)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => prepare(&socket).map(|()| socket),
        Err(errno) => Err(errno),
    }
}

/// The result of connecting, once the socket is writable.
pub(crate) fn connected(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::socket_error(socket)?
}

/// Accepts the next connection; returns it with the peer's address.
pub(crate) fn accept(listener: &OwnedFd) -> rustix::io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, from) = rustix::net::acceptfrom_with(listener, FLAGS)?;
    Ok((socket, from.and_then(|from| SocketAddr::try_from(from).ok())))
}

/// Sets the socket options: sends without delay, and detects an unreachable peer.
pub(crate) fn prepare(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, ASK_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    // The kernel sends no keep-alive probes while data is unacknowledged; without this limit, it
    // would retransmit for 15 minutes.
    sockopt::set_tcp_user_timeout(socket, GIVE_UP_AFTER_MS)
}

/// Sends a packet. The few packets of a connection fit into its send buffer.
pub(crate) fn send(socket: &OwnedFd, packet: &Packet) -> Result<(), FabricError> {
    let bytes = packet.encode();
    match rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(local("talk to the peer", "its connection is full")),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(FabricError::PeerGone),
        Err(errno) => Err(local("talk to the peer", errno)),
    }
}

/// Receives bytes of the peer.
pub(crate) fn receive(socket: &OwnedFd, into: &mut Vec<u8>) -> Received {
    let mut chunk = [0; CHUNK];
    match rustix::net::recv(socket, &mut chunk, RecvFlags::empty()) {
        Ok((0, _)) => Received::End,
        Ok((count, _)) => {
            into.extend(&chunk[..count]);
            Received::Bytes
        }
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use rackpool_skip::skipped;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Set in the process that runs `unheard`.
    const CUT: &str = "RACKPOOL_VERBS_CUT";
    /// Tolerance for delays on a busy host.
    const BUSY: Duration = Duration::from_secs(20);

    fn lo(state: &str) -> bool {
        let set = Command::new("ip").args(["link", "set", "lo", state]).status();
        set.is_ok_and(|status| status.success())
    }

    fn readable(socket: &OwnedFd, within: Duration) -> bool {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(within).unwrap())).unwrap() == 1
    }

    /// Not a test: a connection in a network namespace of its own, cut before its last data
    /// arrives.
    #[test]
    fn unheard() {
        if std::env::var_os(CUT).is_none() {
            return;
        }
        assert!(lo("up"));
        let (listener, address) = listen(&(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let one = connect(&address).unwrap();
        assert!(readable(&listener, BUSY), "no connection came");
        let (other, _) = accept(&listener).unwrap();
        prepare(&other).unwrap();
        assert!(lo("down"));
        let cut = Instant::now();
        send(&one, &Packet::Ready).unwrap();
        for socket in [&one, &other] {
            assert!(readable(socket, BUSY), "after {:?} it is still open", cut.elapsed());
            assert!(matches!(receive(socket, &mut Vec::new()), Received::End));
        }
    }

    #[test]
    fn a_peer_that_vanishes_before_it_acknowledges_a_word_is_given_up_in_time() {
        let namespace = ["--net", "--map-root-user"];
        let possible = Command::new("unshare")
            .args(namespace)
            .args(["ip", "link", "set", "lo", "up"])
            .stderr(Stdio::null())
            .status();
        if !possible.is_ok_and(|status| status.success()) {
            return skipped("a network to be cut needs ip and the right to unshare one");
        }
        let cut = Command::new("unshare")
            .args(namespace)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "socket::tests::unheard", "--nocapture"])
            .env(CUT, "1")
            .stdin(Stdio::null())
            .status();
        assert!(cut.unwrap().success());
    }
}
