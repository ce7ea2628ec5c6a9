//! The bytes that peers' one-sided writes into this rack may have in flight, divided among the
//! peers. See docs/design/in-flight.md.

use std::collections::BTreeMap;

use rackpool_fabric::EndpointId;

use crate::BytesInFlight;

/// Windows are multiples of this, in bytes.
const STEP: u64 = 4 << 10;
/// The smallest window, in bytes: the largest piece of a write.
pub(crate) const LEAST_WINDOW: u64 = 64 << 10;

/// The windows of all peers.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Bytes for all peers.
    part: u64,
    peers: BTreeMap<EndpointId, Window>,
    /// The most bytes that peers could have in flight so far.
    peak: u64,
}

/// The window of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// The peer has no more than this in flight: the larger of its last two windows until it has
    /// confirmed the last one.
    bytes: u64,
    /// The last window that the peer was told, until it has confirmed it.
    told: Option<u64>,
}

impl Windows {
    pub(crate) const fn new(part: u64) -> Self {
        Self { part, peers: BTreeMap::new(), peak: 0 }
    }

    /// A peer may write from now on.
    pub(crate) fn opened(&mut self, endpoint: EndpointId) {
        self.peers.insert(endpoint, Window::default());
    }

    /// No write of this peer is in flight any more, and none will be.
    pub(crate) fn ended(&mut self, endpoint: EndpointId) {
        self.peers.remove(&endpoint);
    }

    /// A peer says that no more than `bytes` are in flight. Returns false if it was not told so.
    pub(crate) fn confirmed(&mut self, endpoint: EndpointId, bytes: u64) -> bool {
        match self.peers.get_mut(&endpoint) {
            Some(window) if window.told == Some(bytes) => {
                *window = Window { bytes, told: None };
                true
            }
            _ => false,
        }
    }

    /// The next peer to be told its window, and the window in bytes. The caller sends it.
    pub(crate) fn next(&mut self) -> Option<(EndpointId, u64)> {
        let share = self.share();
        let free = self.part.max(self.least()).saturating_sub(self.granted());
        for (endpoint, window) in &mut self.peers {
            let grows_by = |to: u64| to.saturating_sub(window.bytes);
            let new = match window.told {
                Some(_) => continue,
                None if share <= window.bytes => share,
                None if grows_by(share) <= free => share,
                // For the time until the others have confirmed smaller windows.
                None if window.bytes == 0 && LEAST_WINDOW <= free => LEAST_WINDOW,
                None => continue,
            };
            if new == window.bytes {
                continue;
            }
            *window = Window { bytes: window.bytes.max(new), told: Some(new) };
            let told = (*endpoint, new);
            self.peak = self.peak.max(self.granted());
            return Some(told);
        }
        None
    }

    /// Bytes that peers may have in flight now.
    fn granted(&self) -> u64 {
        self.peers.values().map(|window| window.bytes).sum()
    }

    /// The bytes that peers may have in flight.
    pub(crate) fn bytes(&self) -> BytesInFlight {
        let limit = self.part.max(self.least());
        BytesInFlight { limit, used: self.granted(), peak: self.peak }
    }

    fn least(&self) -> u64 {
        LEAST_WINDOW * self.peers.len() as u64
    }

    /// The part of each peer: three quarters are divided, so that a peer that comes finds some.
    fn share(&self) -> u64 {
        let peers = self.peers.len().max(1) as u64;
        let share = self.part / 4 * 3 / peers;
        // A window is a word of 32 bits in its message.
        (share - share % STEP).clamp(LEAST_WINDOW, 1 << 30)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn told(windows: &mut Windows) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| windows.next()).map(|(endpoint, bytes)| (endpoint.0, bytes)).collect()
    }

    #[test]
    fn a_peer_that_comes_has_some_at_once_and_its_part_when_others_have_confirmed() {
        let mut windows = Windows::new(MIB);
        windows.opened(EndpointId(1));
        assert_eq!(told(&mut windows), [(1, 768 << 10)]);
        assert!(windows.confirmed(EndpointId(1), 768 << 10));
        windows.opened(EndpointId(2));
        assert_eq!(told(&mut windows), [(1, 384 << 10), (2, 64 << 10)]);
        assert!(windows.confirmed(EndpointId(2), 64 << 10));
        assert_eq!(told(&mut windows), [], "the first one may still have more in flight");
        assert!(windows.confirmed(EndpointId(1), 384 << 10));
        assert_eq!(told(&mut windows), [(2, 384 << 10)]);
        windows.ended(EndpointId(1));
        assert_eq!(told(&mut windows), [], "one Window at a time");
        assert!(windows.confirmed(EndpointId(2), 384 << 10));
        assert_eq!(told(&mut windows), [(2, 768 << 10)]);
    }

    #[test]
    fn what_was_not_told_can_not_be_confirmed() {
        let mut windows = Windows::new(MIB);
        assert!(!windows.confirmed(EndpointId(1), 0));
        windows.opened(EndpointId(1));
        assert!(!windows.confirmed(EndpointId(1), 0));
        assert_eq!(told(&mut windows), [(1, 768 << 10)]);
        assert!(!windows.confirmed(EndpointId(1), 1));
        assert!(windows.confirmed(EndpointId(1), 768 << 10));
        assert!(!windows.confirmed(EndpointId(1), 768 << 10), "twice");
    }

    #[test]
    fn a_peer_that_confirms_nothing_leaves_others_what_they_need() {
        let mut windows = Windows::new(MIB);
        windows.opened(EndpointId(1));
        assert_eq!(told(&mut windows), [(1, 768 << 10)]);
        for endpoint in 2..=5 {
            windows.opened(EndpointId(endpoint));
            assert_eq!(told(&mut windows), [(endpoint, 64 << 10)]);
        }
        windows.opened(EndpointId(6));
        assert_eq!(told(&mut windows), [], "nothing is left until one confirms or ends");
        windows.ended(EndpointId(1));
        let all = told(&mut windows);
        assert!(all.iter().any(|(endpoint, bytes)| (*endpoint, *bytes >= 64 << 10) == (6, true)));
    }

    /// A peer as docs/design/in-flight.md has it: its bytes in flight and its window.
    #[derive(Default)]
    struct Writer {
        in_flight: u64,
        window: u64,
        received: Vec<u64>,
        confirms: Option<u64>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Opens(u64),
        Ends(u64),
        /// The peer receives its next Window.
        Receives(u64),
        Posts(u64),
        Completes(u64),
        /// The peer's confirmation arrives, if the window holds.
        Confirms(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        (0_u8..12, 0_u64..8).prop_map(|(kind, peer)| match kind {
            0 => Step::Opens(peer),
            1 => Step::Ends(peer),
            2..=4 => Step::Receives(peer),
            5..=7 => Step::Posts(peer),
            8..=9 => Step::Completes(peer),
            _ => Step::Confirms(peer),
        })
    }

    proptest! {
        #[test]
        fn peers_never_have_more_in_flight_than_the_part(
            steps in prop::collection::vec(step(), 0..400),
            part in prop::sample::select(vec![0, 256 << 10, MIB, 16 * MIB]),
        ) {
            let mut windows = Windows::new(part);
            let mut writers = BTreeMap::<u64, Writer>::new();
            for step in steps {
                match step {
                    Step::Opens(peer) => {
                        writers.entry(peer).or_insert_with(|| {
                            windows.opened(EndpointId(peer));
                            Writer::default()
                        });
                    }
                    Step::Ends(peer) => {
                        if writers.remove(&peer).is_some() {
                            windows.ended(EndpointId(peer));
                        }
                    }
                    Step::Receives(peer) => {
                        let Some(writer) = writers.get_mut(&peer) else { continue };
                        if !writer.received.is_empty() {
                            writer.window = writer.received.remove(0);
                            prop_assert!(writer.confirms.replace(writer.window).is_none());
                        }
                    }
                    Step::Posts(peer) => {
                        let Some(writer) = writers.get_mut(&peer) else { continue };
                        while writer.in_flight + LEAST_WINDOW <= writer.window {
                            writer.in_flight += LEAST_WINDOW;
                        }
                    }
                    Step::Completes(peer) => {
                        let Some(writer) = writers.get_mut(&peer) else { continue };
                        writer.in_flight = writer.in_flight.saturating_sub(LEAST_WINDOW);
                    }
                    Step::Confirms(peer) => {
                        let Some(writer) = writers.get_mut(&peer) else { continue };
                        if writer.in_flight <= writer.window && let Some(bytes) = writer.confirms.take() {
                            prop_assert!(windows.confirmed(EndpointId(peer), bytes));
                        }
                    }
                }
                for (endpoint, bytes) in std::iter::from_fn(|| windows.next()) {
                    prop_assert!(bytes >= LEAST_WINDOW);
                    writers.get_mut(&endpoint.0).unwrap().received.push(bytes);
                }
                let in_flight: u64 = writers.values().map(|writer| writer.in_flight).sum();
                prop_assert!(in_flight <= windows.granted(), "{in_flight} of {}", windows.granted());
            }
            // Peers beyond the part's room bring 64 KiB each; without one, the part is the limit.
            prop_assert!(windows.granted() <= part.max(8 * LEAST_WINDOW));
        }
    }
}
