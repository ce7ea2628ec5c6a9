//! The state of a pool's racks, as the metadata server and the daemons of this host report it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use rackpool_output::chain;
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;
use rackpool_wire::metadata::{Member, PoolStatus};

use super::daemon::{rack_status, top_pages};

/// Whether a rack's daemon can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberReach {
    /// The daemon runs on this host.
    Here,
    /// The daemon runs on another host, where it serves its socket.
    Elsewhere,
    /// The rack's lease has expired.
    Down,
    /// The daemon has given its lease back: it ended on purpose.
    Left,
}

/// Returns whether the rack's daemon can be asked from the host with the addresses `own`.
#[must_use]
pub fn reach(pool: &PoolStatus, member: &Member, own: &[IpAddr]) -> MemberReach {
    let is_here =
        is_on_this_host(&member.fabric_address, own) && Path::new(&member.control_path).exists();
    match (member.alive, is_here) {
        (false, _) if pool.left.contains(&member.rack) => MemberReach::Left,
        (false, _) => MemberReach::Down,
        (true, true) => MemberReach::Here,
        (true, false) => MemberReach::Elsewhere,
    }
}

/// The state of a rack, as printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackHealth {
    /// The rack has a lease.
    Up,
    /// The rack has a lease, but its daemon does not answer.
    Silent,
    /// The rack's lease has expired.
    Down,
    /// The daemon has ended on purpose.
    Left,
}

impl RackHealth {
    /// The state in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Down => "down",
            Self::Left => "left",
        }
    }
}

/// The state of one rack at one point in time.
#[derive(Clone, Debug)]
pub struct RackLook {
    /// The rack, as the metadata server knows it.
    pub member: Member,
    /// Its state.
    pub state: RackHealth,
    /// The daemon's report, or why there is none.
    pub status: Result<RackStatus, String>,
    /// The rack's hottest pages.
    pub pages: Vec<PageHeat>,
}

/// Asks all racks of the pool, for at most `pages` of their hottest pages each.
#[must_use]
pub fn look_at_racks(pool: &PoolStatus, pages: u16) -> Vec<RackLook> {
    let own = own_addresses();
    let look = |member: &Member| {
        let (state, status) = match reach(pool, member, &own) {
            MemberReach::Here => match rack_status(&member.control_path) {
                Ok(status) => (RackHealth::Up, Ok(status)),
                Err(error) => (RackHealth::Silent, Err(chain(error.as_ref()))),
            },
            MemberReach::Elsewhere => {
                (RackHealth::Up, Err(format!("on another host, {}", member.fabric_address)))
            }
            MemberReach::Down => (RackHealth::Down, Err("its lease has expired".into())),
            MemberReach::Left => (RackHealth::Left, Err("its daemon was stopped".into())),
        };
        let pages = match (&status, pages) {
            (Ok(_), 1..) => top_pages(&member.control_path, pages).unwrap_or_default(),
            _ => Vec::new(),
        };
        RackLook { member: member.clone(), state, status, pages }
    };
    pool.members.iter().map(look).collect()
}

/// The addresses of this host.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    let interfaces = getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or(address.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip())))
    });
    addresses.collect()
}

/// Returns whether a rack with this fabric address is on the host with the addresses `own`. If it
/// is not, a socket at its daemon's path was left there by another daemon.
fn is_on_this_host(fabric_address: &str, own: &[IpAddr]) -> bool {
    let of_network = fabric_address.split_once(':').and_then(|(_, rest)| rest.parse().ok());
    of_network.is_none_or(|address: SocketAddr| {
        let ip = address.ip().to_canonical();
        ip.is_loopback() || own.contains(&ip)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_on_the_host_that_has_its_address() {
        let own = [[127, 0, 0, 1].into(), [192, 0, 2, 7].into()];
        for (address, is_here) in [
            ("emulated:/dev/shm/pool/rack-1/fabric.sock", true),
            ("tcp:127.0.0.1:7500", true),
            ("tcp:192.0.2.7:7500", true),
            ("verbs:192.0.2.7:40001", true),
            ("tcp:192.0.2.8:7500", false),
            ("verbs:[::ffff:192.0.2.7]:7500", true),
            ("verbs:[2001:db8::1]:7500", false),
        ] {
            assert_eq!(is_on_this_host(address, &own), is_here, "{address}");
        }
        assert!(own_addresses().iter().any(IpAddr::is_loopback));
    }
}
