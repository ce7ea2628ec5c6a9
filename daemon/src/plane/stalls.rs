//! Transfers that don't end: their rack is cut off, or its host has stopped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_fabric::EndpointId;

use super::DataPlane;

/// Rounds between two looks at the clock while there is always something to do: some milliseconds.
const LOOK_EVERY: u32 = 1 << 14;

/// The oldest transfer on each endpoint, and since when it is known to be that.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    oldest: BTreeMap<EndpointId, (u64, Instant)>,
    rounds: u32,
}

impl Stalls {
    /// Takes in what is on the way, oldest first, and gives the endpoints whose oldest transfer has
    /// been that for longer than a lease.
    fn look(
        &mut self,
        now: Instant,
        lease: Duration,
        on_the_way: impl Iterator<Item = (u64, EndpointId)>,
    ) -> Vec<EndpointId> {
        let mut oldest = BTreeMap::new();
        for (id, endpoint) in on_the_way {
            oldest.entry(endpoint).or_insert(id);
        }
        self.oldest.retain(|endpoint, (id, _)| oldest.get(endpoint) == Some(id));
        for (endpoint, id) in oldest {
            self.oldest.entry(endpoint).or_insert((id, now));
        }
        let overdue = |(endpoint, (_, since)): (&EndpointId, &(u64, Instant))| {
            (now.saturating_duration_since(*since) > lease).then_some(*endpoint)
        };
        self.oldest.iter().filter_map(overdue).collect()
    }
}

impl DataPlane {
    /// Cuts off racks whose transfers don't end. Looks at the clock now and then, and around each
    /// sleep.
    pub(super) fn cut_off_stalled(&mut self, sleeps: bool) {
        self.stalls.rounds = self.stalls.rounds.wrapping_add(1);
        if sleeps || self.stalls.rounds.is_multiple_of(LOOK_EVERY) {
            self.cut_off_stalled_at(Instant::now());
        }
    }

    pub(super) fn cut_off_stalled_at(&mut self, now: Instant) {
        let copies = self.swaps.copies_on_their_way();
        let copies = copies.chain(self.sharing.copies_on_their_way());
        let on_the_way = self.transfers.on_their_way().chain(copies);
        for endpoint in self.stalls.look(now, self.lease, on_the_way) {
            let Some(rack) = self.peers.rack_at(endpoint) else { continue };
            tracing::warn!("transfers with {rack} don't end: it is cut off");
            self.transfers.give_up(endpoint, rack);
            // They end now, with an error.
            self.fabric.disconnect(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn way(ids: &[(u64, EndpointId)]) -> impl Iterator<Item = (u64, EndpointId)> {
        ids.iter().copied()
    }

    #[test]
    fn an_endpoint_stalls_when_its_oldest_transfer_stays_the_oldest() {
        const LEASE: Duration = Duration::from_secs(3);
        const LATER: Duration = Duration::from_millis(100);
        let [one, two] = [EndpointId(1), EndpointId(2)];
        let mut stalls = Stalls::default();
        let start = Instant::now();
        assert_eq!(stalls.look(start, LEASE, way(&[(1, one), (2, two), (3, one)])), []);
        // The second goes on, slowly.
        assert_eq!(stalls.look(start + LEASE, LEASE, way(&[(1, one), (3, one), (4, two)])), []);
        let now = start + LEASE + LATER;
        assert_eq!(stalls.look(now, LEASE, way(&[(1, one), (3, one), (4, two)])), [one]);
        assert_eq!(stalls.look(now, LEASE, way(&[(3, one), (4, two)])), [], "the first has ended");
        assert_eq!(stalls.look(now + LEASE, LEASE, way(&[])), []);
        assert_eq!(
            stalls.look(now + 2 * LEASE, LEASE, way(&[(5, one)])),
            [],
            "a new one is not late"
        );
    }
}
