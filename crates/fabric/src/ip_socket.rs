//! The sockets and addresses of the fabrics whose peers meet over TCP.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::FabricError;

const BACKLOG: i32 = 1024;
/// Interval of keep-alive probes on an idle connection: the minimum that the kernel supports.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Creates a non-blocking socket for connections to an address.
pub fn new_socket(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Listens at an address. Returns the socket and its bound address.
pub fn listen(address: &SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = new_socket(address)?;
    // A restarted daemon gets its port although connections of its predecessor are in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, bound))
}

/// Begins to connect. The socket becomes writable when the attempt has succeeded or failed.
pub fn connect(socket: &OwnedFd, address: &SocketAddr) -> rustix::io::Result<()> {
    match rustix::net::connect(socket, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Sets the socket options: sends without delay, and an unreachable peer is detected within
/// `dead_after` plus two probes. The kernel sends no probes while data is unacknowledged; without
/// the limit it would retransmit for 15 minutes.
pub fn prepare(socket: impl AsFd, dead_after: Duration) -> Result<(), FabricError> {
    let set_up = |socket| {
        let dead_after_ms = u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_nodelay(socket, true)?;
        // Requests are small and each is waited for. After a link failure, the kernel retransmits
        // about every 200 ms instead of backing off exponentially, which would outlast the failure.
        sockopt::set_tcp_thin_linear_timeouts(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
        sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
        sockopt::set_tcp_user_timeout(socket, dead_after_ms)
    };
    set_up(socket.as_fd()).map_err(|errno: Errno| FabricError::local("set up a socket", errno))
}

/// Parses the address given to a fabric's `connect`: its scheme, an IP address and a port. Without
/// a key, only this host may be connected to.
pub fn parse(
    address: &str,
    scheme: &str,
    provider: &'static str,
    has_key: bool,
) -> Result<SocketAddr, FabricError> {
    let socket = address.strip_prefix(scheme).and_then(|rest| rest.parse::<SocketAddr>().ok());
    let valid = socket.filter(|socket| socket.port() != 0 && !socket.ip().is_unspecified());
    let Some(socket) = valid else {
        let expected = "its name, a colon and an IP address with a port, like tcp:192.0.2.7:7500";
        return Err(FabricError::BadAddress { address: address.into(), provider, expected });
    };
    if !has_key && !is_this_host(&socket) {
        return Err(FabricError::KeyNeeded { address: socket.to_string() });
    }
    Ok(socket)
}

/// Returns true if the address is a loopback address, which only this host can have.
#[must_use]
pub fn is_this_host(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use rackpool_testing::skipped;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn addresses_are_ip_addresses_with_a_port() {
        let parse = |address| parse(address, "tcp:", "tcp", true);
        for good in ["tcp:127.0.0.1:1", "tcp:[::1]:7500", "tcp:192.0.2.7:65535"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "tcp:",
            "127.0.0.1:1",
            "tcp:localhost:1",
            "tcp:127.0.0.1",
            "tcp:127.0.0.1:0",
            "tcp:0.0.0.0:1",
            "emulated:/a",
        ] {
            assert!(matches!(parse(bad), Err(FabricError::BadAddress { .. })), "{bad}");
        }
    }

    #[test]
    fn only_loopback_is_this_host_and_needs_no_key() {
        for (address, this_host) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("[2001:db8::1]:1", false),
        ] {
            assert_eq!(is_this_host(&address.parse().unwrap()), this_host, "{address}");
            let parsed = parse(&format!("tcp:{address}"), "tcp:", "tcp", false);
            assert_eq!(parsed.is_ok(), this_host, "{address}");
        }
    }

    /// Set in the process that runs `unheard`.
    const CUT: &str = "RACKPOOL_FABRIC_CUT";
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
        let one = new_socket(&address).unwrap();
        connect(&one, &address).unwrap();
        assert!(readable(&listener, BUSY), "no connection came");
        let other = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK).unwrap();
        for socket in [&one, &other] {
            prepare(socket, Duration::from_secs(4)).unwrap();
        }
        assert!(lo("down"));
        let cut = Instant::now();
        rustix::io::write(&one, b"ready").unwrap();
        for socket in [&one, &other] {
            assert!(readable(socket, BUSY), "after {:?} it is still open", cut.elapsed());
            assert!(matches!(rustix::io::read(socket, &mut [0; 8]), Ok(0) | Err(Errno::TIMEDOUT)));
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
            .args(["--exact", "ip_socket::tests::unheard", "--nocapture"])
            .env(CUT, "1")
            .stdin(Stdio::null())
            .status();
        assert!(cut.unwrap().success());
    }
}
