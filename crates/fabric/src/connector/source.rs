use std::fmt;
use std::net::SocketAddr;

use rackpool_model::Network;

/// Where a connection comes from, for the log and for the admission limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An address.
    Host(SocketAddr),
    /// A process of this host.
    Process(i32),
    /// The kernel did not say.
    Unknown,
}

/// The unit that the admission limiter counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Network(Network),
    Process(i32),
    Unknown,
}

impl Source {
    fn group(self) -> Group {
        match self {
            Self::Host(address) => Group::Network(address.into()),
            Self::Process(id) => Group::Process(id),
            Self::Unknown => Group::Unknown,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Process(id) => write!(f, "process {id}"),
            Self::Unknown => f.write_str("somebody"),
        }
    }
}

/// Selects the unauthenticated peer that a new connection replaces when the limit is reached. The
/// iterator yields the peers' sources, the oldest peer first. Returns the index of the oldest peer
/// of the network or process with the most peers, so that one that reconnects again and again
/// replaces its own connections and not those of others. Returns `None` if the iterator is empty.
pub(super) fn give_way(unauthenticated_peers: impl Iterator<Item = Source>) -> Option<usize> {
    let groups: Vec<Group> = unauthenticated_peers.map(Source::group).collect();
    let mut sorted = groups.clone();
    sorted.sort_unstable();
    let most = sorted.chunk_by(|one, other| one == other).map(<[Group]>::len).max()?;
    let is_most = |group: &Group| groups.iter().filter(|other| *other == group).count() == most;
    groups.iter().position(is_most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(unauthenticated_peers: &[&str]) -> Option<usize> {
        let source = |text: &&str| text.parse().map_or(Source::Unknown, Source::Host);
        give_way(unauthenticated_peers.iter().map(source))
    }

    #[test]
    fn the_oldest_of_the_address_with_most_gives_way() {
        assert_eq!(gone(&[]), None);
        assert_eq!(gone(&["192.0.2.1:1"]), Some(0));
        assert_eq!(
            gone(&["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"]),
            Some(0),
            "none from one place"
        );
        let honest_first =
            ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.1:2", "192.0.2.2:9", "192.0.2.2:3"];
        assert_eq!(gone(&honest_first), Some(1));
        assert_eq!(gone(&["192.0.2.1:1", "?", "?"]), Some(1), "those without an address are one");
    }

    #[test]
    fn one_host_has_many_addresses_of_ipv6() {
        let from = ["[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1", "[2001:db8:0:2::2]:1"];
        assert_eq!(gone(&from), Some(1));
        assert_eq!(gone(&["192.0.2.1:1", "192.0.2.2:1", "[::ffff:192.0.2.2]:1"]), Some(1));
    }

    #[test]
    fn a_process_that_connects_again_and_again_replaces_its_own_connections() {
        let processes = [7, 8, 8, 7, 8].map(Source::Process);
        assert_eq!(give_way(processes.into_iter()), Some(1));
    }
}
