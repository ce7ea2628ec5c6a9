use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rackpool_model::Network;

/// The unauthenticated peers, by network and in the order of their connection. Decides which of
/// them is dropped for a new one when all places are taken. The fabrics of racks use the same rule;
/// here the peers are many, so they are counted as they come and go.
#[derive(Debug, Default)]
pub(crate) struct AdmissionLimiter {
    by_network: BTreeMap<Network, BTreeSet<u64>>,
}

impl AdmissionLimiter {
    /// Adds an unauthenticated peer. `number` must be larger than any before.
    pub(crate) fn come(&mut self, number: u64, from: SocketAddr) {
        self.by_network.entry(from.into()).or_default().insert(number);
    }

    /// Removes a peer that is authenticated or gone.
    pub(crate) fn leave(&mut self, number: u64, from: SocketAddr) {
        let network = Network::from(from);
        if let Some(numbers) = self.by_network.get_mut(&network) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_network.remove(&network);
            }
        }
    }

    /// Returns the oldest peer of the network with the most peers; `None` when there are no peers.
    /// A host that connects again and again, however fast, therefore displaces its own connections.
    pub(crate) fn gives_way(&self) -> Option<u64> {
        let numbers = self.by_network.values();
        let oldest = numbers.filter_map(|numbers| Some((numbers.len(), *numbers.first()?)));
        let (_, number) =
            oldest.max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)))?;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(host: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, host], port).into()
    }

    /// An admission limiter with peers from these hosts, in this order.
    fn admission_limiter(hosts: &[u8]) -> AdmissionLimiter {
        let mut admission_limiter = AdmissionLimiter::default();
        for (number, host) in (0..).zip(hosts) {
            admission_limiter.come(number, from(*host, 1000 + u16::try_from(number).unwrap()));
        }
        admission_limiter
    }

    #[test]
    fn the_oldest_of_the_address_with_most_gives_way() {
        assert_eq!(admission_limiter(&[]).gives_way(), None);
        assert_eq!(admission_limiter(&[1]).gives_way(), Some(0));
        assert_eq!(
            admission_limiter(&[1, 2, 3]).gives_way(),
            Some(0),
            "none from one place: the oldest of all"
        );
        assert_eq!(admission_limiter(&[1, 2, 1, 2, 2]).gives_way(), Some(1));
        assert_eq!(
            admission_limiter(&[2, 1, 1, 2]).gives_way(),
            Some(0),
            "of two limiters the older one"
        );
    }

    #[test]
    fn who_leaves_counts_no_more() {
        let mut admission_limiter = admission_limiter(&[1, 2, 1, 2, 2]);
        admission_limiter.leave(1, from(2, 1001));
        assert_eq!(admission_limiter.gives_way(), Some(0));
        admission_limiter.leave(0, from(1, 1000));
        assert_eq!(admission_limiter.gives_way(), Some(3));
        for (number, host) in [(2, 1), (3, 2), (4, 2)] {
            admission_limiter.leave(number, from(host, 1000));
        }
        assert_eq!(admission_limiter.gives_way(), None);
        assert!(admission_limiter.by_network.is_empty(), "nothing is kept of who was here");
    }
}
