//! Asks the kernel for one TCP socket of this host by its two addresses.
//!
//! The query takes microseconds; reading the tables in `/proc` takes milliseconds. A kernel without
//! `tcp_diag` does not answer.
#![expect(clippy::host_endian_bytes, reason = "netlink messages are in the host's byte order")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::same_user::{Socket, canonical};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` of `linux/netlink.h`.
const REQUEST: u16 = 1;
const INET: u8 = 2;
const INET6: u8 = 10;
const TCP: u8 = 6;

/// Returns the socket with local address `own` and remote address `other`, if the kernel knows it.
pub(crate) fn find(own: SocketAddr, other: SocketAddr) -> Option<Socket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(rustix::net::netlink::SOCK_DIAG);
    let kernel =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    // The kernel executes the query within `send`: the answer can be received at once.
    rustix::net::send(&kernel, &request(canonical(own), canonical(other)), SendFlags::empty())
        .ok()?;
    let mut answer = [0; 512];
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::empty()).ok()?;
    parse(answer.get(..length)?)
}

/// ```text
/// 0 length u32 | 4 type u16 | 6 flags u16 | 8 sequence u32 | 12 port u32
/// 16 family u8 | 17 protocol u8 | 18 extensions u8 | 19 zero u8 | 20 states u32
/// 24 own port, 2 B | 26 other port, 2 B | 28 own address, 16 B | 44 other address, 16 B
/// 60 interface u32 | 64 cookie, 8 B: all ones for any
/// ```
fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let family = if own.is_ipv4() { INET } else { INET6 };
    let mut body = vec![family, TCP, 0, 0];
    body.extend(u32::MAX.to_ne_bytes());
    body.extend(own.port().to_be_bytes());
    body.extend(other.port().to_be_bytes());
    body.extend(address_bytes(own.ip()));
    body.extend(address_bytes(other.ip()));
    body.extend([0; 4]);
    body.extend([0xff; 8]);
    let length = u32::try_from(16 + body.len()).unwrap_or(0);
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    request
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

/// ```text
/// 16 family u8 | 17 state u8 | 18 timers, 2 B
/// 20 own port, 2 B | 22 other port, 2 B | 24 own address, 16 B | 40 other address, 16 B
/// 56 interface u32 | 60 cookie, 8 B | 68 timer and queues, 12 B | 80 user u32 | 84 inode u32
/// ```
fn parse(answer: &[u8]) -> Option<Socket> {
    if field(answer, 4).map(u16::from_ne_bytes)? != BY_FAMILY {
        return None;
    }
    let [family, state] = field(answer, 16)?;
    let address = |port: usize, at: usize| {
        let ip = match family {
            INET => IpAddr::from(Ipv4Addr::from(field::<4>(answer, at)?)),
            INET6 => IpAddr::from(Ipv6Addr::from(field::<16>(answer, at)?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip.to_canonical(), u16::from_be_bytes(field(answer, port)?)))
    };
    Some(Socket {
        local: address(20, 24)?,
        remote: address(22, 40)?,
        state,
        user: u32::from_ne_bytes(field(answer, 80)?),
        inode: u32::from_ne_bytes(field(answer, 84)?).into(),
    })
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::same_user::{ESTABLISHED, sockets};

    #[test]
    fn the_kernel_says_of_one_socket_what_its_tables_do() {
        let mut looked = false;
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let Some(found) = find(own, other) else { continue };
            looked = true;
            assert_eq!((found.local, found.remote, found.state), (own, other, ESTABLISHED));
            let mut tables = sockets(|socket| socket.is_end(own, other)).unwrap();
            while tables.is_empty() {
                // The table may omit a line while other sockets change.
                tables = sockets(|socket| socket.is_end(own, other)).unwrap();
            }
            assert_eq!(tables, [found]);
            drop(client);
            assert!(find(own, other).is_none_or(|left| left.inode == 0));
        }
        if !looked {
            rackpool_testing::skipped("this kernel has no tcp_diag");
        }
    }

    #[test]
    fn an_answer_that_is_cut_or_of_another_type_is_none() {
        let mut answer = vec![0; 88];
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[16] = INET;
        assert!(parse(&answer).is_some());
        (0..88).for_each(|length| assert_eq!(parse(&answer[..length]), None));
        answer[16] = 77;
        assert_eq!(parse(&answer), None);
        answer[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(parse(&answer), None);
    }
}
