//! Determines the user of the process at the other end of a loopback connection.
//!
//! Loopback proves only that the peer is on this host. The kernel's tables of TCP sockets name the
//! user of each socket. They show only this network namespace, and no other namespace reaches its
//! loopback.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::{CredentialsError, socket_query};

const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

pub(crate) const ESTABLISHED: u8 = 0x01;
const SYN_RECEIVED: u8 = 0x03;
/// FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK and CLOSING: at least one side sends no more.
const HALF_CLOSED: [u8; 5] = [0x04, 0x05, 0x08, 0x09, 0x0b];
const LISTEN: u8 = 0x0a;

/// Reads of a table. The kernel may omit a line of a table that changes during the read.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(2);

/// Returns `Ok` when the peer of an accepted loopback connection is a process of this user or of
/// root. May read the kernel's tables, which takes milliseconds: do not call it in an event loop.
///
/// # Errors
/// Names the other user, or says that no process of this host has the connection.
pub fn require_same_user(local: SocketAddr, peer: SocketAddr) -> Result<(), CredentialsError> {
    look(|| match accepted(peer, local) {
        Some(end) => verdict(Some(&end), peer, &[]),
        None => verdict(sockets(|socket| socket.is_end(peer, local))?.first(), peer, &[]),
    })
}

/// Returns `Ok` when the server of a loopback connection is a process of this user or of root. A
/// connection that the server has not accepted yet belongs to its listener. May read the kernel's
/// tables, which takes milliseconds: do not call it in an event loop.
///
/// # Errors
/// Names the other user, or says that no process of this host has the connection.
pub fn require_server_of_same_user(
    local: SocketAddr,
    server: SocketAddr,
) -> Result<(), CredentialsError> {
    look(|| {
        if let Some(end) = accepted(server, local) {
            return verdict(Some(&end), server, &[]);
        }
        let found = sockets(|socket| socket.is_end(server, local) || socket.listens_at(server))?;
        let (listeners, ends): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|socket| socket.state == LISTEN);
        // A connection that waits to be accepted is closed with its listener. A listener found in
        // the same read of the tables is therefore the one at which the connection waits.
        let listeners: Vec<_> = listeners.iter().map(|socket| socket.user).collect();
        verdict(ends.first(), server, &listeners)
    })
}

/// Returns the end of a connection that a process has accepted, if the kernel answers a query for
/// this one socket.
fn accepted(own: SocketAddr, other: SocketAddr) -> Option<Socket> {
    socket_query::find(own, other).filter(|end| end.is_end(own, other) && end.inode != 0)
}

fn look(mut once: impl FnMut() -> Result<(), CredentialsError>) -> Result<(), CredentialsError> {
    for _ in 1..LOOKS {
        match once() {
            Err(CredentialsError::NobodysConnection { .. }) => std::thread::sleep(PAUSE),
            found => return found,
        }
    }
    once()
}

/// A TCP socket of this host, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: u8,
    pub(crate) user: u32,
    /// Is 0 when no process has the socket; `user` is meaningless then.
    pub(crate) inode: u64,
}

impl Socket {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        // The queues, the timer and the retransmissions precede the user; a timeout precedes the
        // inode.
        let user = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Self { local, remote, state, user, inode })
    }

    /// Returns true if this is the end at `own` of a connection with `other`.
    pub(crate) fn is_end(&self, own: SocketAddr, other: SocketAddr) -> bool {
        // A process may have half closed the connection and wait for answers. A closed socket
        // belongs to no process.
        let is_open = matches!(self.state, ESTABLISHED | SYN_RECEIVED)
            || (HALF_CLOSED.contains(&self.state) && self.inode != 0);
        is_open && self.local == canonical(own) && self.remote == canonical(other)
    }

    fn listens_at(&self, server: SocketAddr) -> bool {
        let (own, server) = (self.local, canonical(server));
        self.state == LISTEN
            && own.port() == server.port()
            && (own.ip().is_unspecified() || own.ip() == server.ip())
    }
}

/// Parses an address as the kernel prints it: 32-bit words in network byte order, printed as
/// numbers of the host's byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?;
        Some(u32::from_be(word))
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bits = words.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
            IpAddr::from(Ipv6Addr::from(bits))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the sockets of this network namespace that satisfy `wanted`.
pub(crate) fn sockets(wanted: impl Fn(&Socket) -> bool) -> Result<Vec<Socket>, CredentialsError> {
    let mut found = Vec::new();
    for table in TABLES {
        let unreadable = |source| CredentialsError::UnknownPeers { table, source };
        let file = match File::open(table) {
            Ok(file) => BufReader::new(file),
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table != TABLES[0] => continue,
            Err(error) => return Err(unreadable(error)),
        };
        for line in file.lines().skip(1) {
            found.extend(Socket::parse(&line.map_err(unreadable)?).filter(&wanted));
        }
    }
    Ok(found)
}

fn verdict(
    end: Option<&Socket>,
    peer: SocketAddr,
    listeners: &[u32],
) -> Result<(), CredentialsError> {
    let own = rustix::process::geteuid().as_raw();
    let users = match end {
        Some(end) if end.inode != 0 => std::slice::from_ref(&end.user),
        Some(_) => listeners,
        None => &[],
    };
    if users.is_empty() {
        return Err(CredentialsError::NobodysConnection { peer });
    }
    match users.iter().find(|user| **user != 0 && **user != own) {
        None => Ok(()),
        Some(user) => Err(CredentialsError::OtherUser { peer, user: *user, own }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = "   3: 0100007F:1F90 0200007F:A1B2 01 00000000:00000000 00:00000000 00000000 \
                    65534        0 4711 1 0000000000000000 20 4 30 10 -1";
        let socket = Socket::parse(line).unwrap();
        assert_eq!(socket.local, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(socket.remote, "127.0.0.2:41394".parse().unwrap());
        assert_eq!((socket.state, socket.user, socket.inode), (ESTABLISHED, 65534, 4711));
        let six = address("00000000000000000000000001000000:0050");
        assert_eq!(six, Some("[::1]:80".parse().unwrap()));
        let mapped = address("0000000000000000FFFF00000100007F:0050");
        assert_eq!(mapped, Some("127.0.0.1:80".parse().unwrap()));
        for bad in ["", "x", "0: 1 2", "0: 0100007F:1F90", "0: é100007F:1F90 0:0 01 0 0 0 0 0 0"] {
            assert_eq!(Socket::parse(bad), None);
        }
    }

    #[test]
    fn both_ends_of_an_own_connection_are_known() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, there) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            require_server_of_same_user(here, there).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            require_server_of_same_user(here, there).unwrap();
            require_same_user(accepted.local_addr().unwrap(), peer).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            require_same_user(accepted.local_addr().unwrap(), peer).unwrap();
            drop(client);
            let gone = require_same_user(accepted.local_addr().unwrap(), peer);
            assert!(matches!(gone, Err(CredentialsError::NobodysConnection { .. })), "{gone:?}");
        }
    }

    #[test]
    fn another_user_and_a_socket_of_no_process_are_refused() {
        let own = rustix::process::geteuid().as_raw();
        let unauthenticated_peer = own + 1;
        let peer = "127.0.0.1:5".parse().unwrap();
        let end = |user, inode| {
            Some(Socket { local: peer, remote: peer, state: ESTABLISHED, user, inode })
        };
        verdict(end(own, 1).as_ref(), peer, &[unauthenticated_peer]).unwrap();
        verdict(end(0, 1).as_ref(), peer, &[]).unwrap();
        verdict(end(0, 0).as_ref(), peer, &[own]).unwrap();
        let text =
            verdict(end(unauthenticated_peer, 1).as_ref(), peer, &[own]).unwrap_err().to_string();
        assert!(text.contains("rackpool credentials init"), "{text}");
        for (end, listeners) in [
            (end(0, 0), &[own, unauthenticated_peer][..]),
            (end(0, 0), &[]),
            (end(unauthenticated_peer, 0), &[]),
            (None, &[own]),
        ] {
            verdict(end.as_ref(), peer, listeners).unwrap_err();
        }
    }
}
