use std::collections::BTreeMap;
use std::net::SocketAddr;

use rackpool_model::Network;

/// Selects the unauthenticated peer that a new connection replaces when the limit is reached. The
/// iterator yields the peers' addresses, the oldest peer first. Returns the index of the oldest
/// peer of the network with the most peers, so that a host that reconnects again and again replaces
/// its own connections and not those of others. Returns `None` if the iterator is empty.
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
}
