use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

const BACKLOG: i32 = 1024;
/// Interval of keep-alive probes on an idle connection: the minimum that the kernel supports.
const PROBE_EVERY: Duration = Duration::from_secs(1);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn new_socket(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// Listens at an address.
pub(super) fn listen(address: &SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    // A restarted daemon gets its port although connections of its predecessor are in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Begins to connect. The socket becomes writable when the attempt has succeeded or failed.
pub(super) fn connect(address: &SocketAddr) -> rustix::io::Result<TcpStream> {
    let socket = new_socket(address)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
        Err(errno) => Err(errno),
    }
}

/// Accepts the next connection.
pub(super) fn accept(
    listener: &TcpListener,
) -> rustix::io::Result<(TcpStream, Option<SocketAddr>)> {
    let (socket, from) = rustix::net::acceptfrom_with(listener, FLAGS)?;
    Ok((socket.into(), from.and_then(|from| SocketAddr::try_from(from).ok())))
}

/// Sets the socket options: sends without delay, and an unreachable peer is detected within
/// `dead_after` plus two probes.
pub(super) fn prepare(socket: impl AsFd, dead_after: Duration) -> rustix::io::Result<()> {
    let socket = socket.as_fd();
    let dead_after_ms = u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_nodelay(socket, true)?;
    // Requests are small and each is waited for. After a link failure, the kernel retransmits about
    // every 200 ms instead of backing off exponentially, which would outlast the failure.
    sockopt::set_tcp_thin_linear_timeouts(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_user_timeout(socket, dead_after_ms)
}
