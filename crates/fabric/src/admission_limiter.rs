use std::collections::BTreeMap;
use std::net::SocketAddr;

use rackpool_model::Network;

/// Whose place a newcomer takes when there is no more room for unauthenticated peers, of whom the
/// oldest comes first: the oldest of the address that most of them came from. So one that connects
/// again and again, however fast, takes the places of its own and not those of others. `None` when
/// there is nobody.
pub fn give_way(unauthenticated_peers: impl Iterator<Item = Option<SocketAddr>>) -> Option<usize> {
    let networks: Vec<Option<Network>> =
        unauthenticated_peers.map(|from| from.map(Network::from)).collect();
    let mut counts = BTreeMap::new();
    for network in &networks {
        *counts.entry(network).or_insert(0_usize) += 1;
    }
    let most = counts.values().max()?;
    networks.iter().position(|network| counts.get(network) == Some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(unauthenticated_peers: &[&str]) -> Option<usize> {
        give_way(unauthenticated_peers.iter().map(|text| text.parse().ok()))
    }

    #[test]
    fn the_oldest_of_the_address_with_most_gives_way() {
        assert_eq!(gone(&[]), None);
        assert_eq!(gone(&["192.0.2.1:1"]), Some(0));
        assert_eq!(
            gone(&["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"]),
            Some(0),
            "no admission_limiter"
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
}
