//! Transfers that do not end: their rack is cut off, or its host has stopped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_fabric::EndpointId;

use super::DataPlane;

/// Rounds between two reads of the clock while there is always work, some milliseconds.
const LOOK_EVERY: u32 = 1 << 14;

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) id: u64,
    /// Number of its chunks that have ended. A transfer of many chunks is alive while this grows.
    pub(super) ended: u32,
    pub(super) endpoint: EndpointId,
}

/// The oldest transfer of each endpoint, and since when it is known to be the oldest with this
/// progress.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    oldest: BTreeMap<EndpointId, (Progress, Instant)>,
    rounds: u32,
}

impl Stalls {
    /// Updates the state with the transfers in flight, the oldest first. Returns the endpoints
    /// whose oldest transfer has made no progress for longer than a lease.
    fn look(
        &mut self,
        now: Instant,
        lease: Duration,
        on_the_way: impl Iterator<Item = Progress>,
    ) -> Vec<EndpointId> {
        let mut oldest = BTreeMap::new();
        for transfer in on_the_way {
            oldest.entry(transfer.endpoint).or_insert(transfer);
        }
        self.oldest.retain(|endpoint, (transfer, _)| oldest.get(endpoint) == Some(transfer));
        for (endpoint, transfer) in oldest {
            self.oldest.entry(endpoint).or_insert((transfer, now));
        }
        let overdue = |(endpoint, (_, since)): (&EndpointId, &(Progress, Instant))| {
            (now.saturating_duration_since(*since) > lease).then_some(*endpoint)
        };
        self.oldest.iter().filter_map(overdue).collect()
    }
}

impl DataPlane {
    /// Cuts off racks whose transfers do not end. Reads the clock now and then, and around each
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
        // What waits until other racks' reads have ended says nothing of its own rack.
        let on_the_way = on_the_way.filter(|transfer| !self.rrpc.is_held_up(transfer.endpoint));
        for endpoint in self.stalls.look(now, self.lease, on_the_way) {
            let Some(rack) = self.peers.rack_at(endpoint) else { continue };
            tracing::warn!("transfers with {rack} don't end: it is cut off");
            self.transfers.give_up(endpoint, rack);
            // Ends the transfers with an error.
            self.fabric.disconnect(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(3);
    const LATER: Duration = Duration::from_millis(100);

    fn way(ids: &[(u64, EndpointId)]) -> impl Iterator<Item = Progress> {
        ids.iter().map(|(id, endpoint)| Progress { id: *id, ended: 0, endpoint: *endpoint })
    }

    #[test]
    fn an_endpoint_whose_oldest_transfer_goes_on_piece_by_piece_does_not_stall() {
        let copy = |ended| std::iter::once(Progress { id: 1, ended, endpoint: EndpointId(1) });
        let mut stalls = Stalls::default();
        let start = Instant::now();
        for ended in 0..8 {
            assert_eq!(stalls.look(start + LEASE * ended, LEASE, copy(ended)), []);
        }
        let last = start + 7 * LEASE;
        assert_eq!(stalls.look(last + LEASE, LEASE, copy(7)), []);
        assert_eq!(stalls.look(last + LEASE + LATER, LEASE, copy(7)), [EndpointId(1)]);
    }

    #[test]
    fn an_endpoint_stalls_when_its_oldest_transfer_stays_the_oldest() {
        let [one, two] = [EndpointId(1), EndpointId(2)];
        let mut stalls = Stalls::default();
        let start = Instant::now();
        assert_eq!(stalls.look(start, LEASE, way(&[(1, one), (2, two), (3, one)])), []);
        // The transfers of the second endpoint make slow progress.
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
