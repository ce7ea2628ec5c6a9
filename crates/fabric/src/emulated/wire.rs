use std::sync::Arc;

use super::card::{Card, Direction};
use super::model::transfer_ns;
use crate::Operation;

/// Where the bytes of a poster go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the peer: writes and messages.
    Out,
    /// From the peer: reads.
    In,
}

/// The modelled wire of one end of a link: the cards at both ends, and the latency between them.
pub(super) struct Wire {
    latency_ns: u64,
    own: Arc<Card>,
    peer: Card,
    last_due_ns: u64,
}

impl Wire {
    pub(super) const fn new(latency_ns: u64, own: Arc<Card>, peer: Card) -> Self {
        Self { latency_ns, own, peer, last_due_ns: 0 }
    }

    /// Puts bytes on the wire: charges them to the card that transmits and to the one that
    /// receives. Returns the due time, in ns, at which their message arrives or their operation
    /// completes. Due times never decrease, across both flows.
    pub(super) fn schedule(&mut self, now_ns: u64, flow: Flow, bytes: u64) -> u64 {
        let passed_ns = self.pass(now_ns, flow, bytes);
        self.due(passed_ns)
    }

    /// Does the same for a one-sided operation, which the peer's card executes.
    pub(super) fn schedule_operation(&mut self, now_ns: u64, operation: &Operation) -> u64 {
        let flow = match operation {
            Operation::Read(_) => Flow::In,
            Operation::Write(_) => Flow::Out,
        };
        let passed_ns = self.pass(now_ns, flow, operation.transfer().len.into());
        let executed_ns = self.peer.execute(now_ns, operation);
        self.due(passed_ns.max(executed_ns))
    }

    /// Charges bytes to both cards. Returns the time, in ns, by which both have passed them.
    fn pass(&self, now_ns: u64, flow: Flow, bytes: u64) -> u64 {
        let (from, to) = match flow {
            Flow::Out => (&*self.own, &self.peer),
            Flow::In => (&self.peer, &*self.own),
        };
        let sent_ns = from.charge(Direction::Transmit, now_ns, bytes);
        let received_ns = to.charge(Direction::Receive, now_ns, bytes);
        sent_ns.max(received_ns)
    }

    fn due(&mut self, end_ns: u64) -> u64 {
        self.last_due_ns = end_ns.saturating_add(self.latency_ns).max(self.last_due_ns);
        self.last_due_ns
    }

    /// The time, in ns, at which all but the last `left` bytes of an operation with this due time
    /// are moved. A card moves the bytes as they pass the wire and reports them later; here the
    /// bytes move half of the latency before they are reported.
    pub(super) fn moves_at(&self, due_ns: u64, left: u64) -> u64 {
        let ps_per_byte = self.own.ps_per_byte().max(self.peer.ps_per_byte());
        due_ns.saturating_sub(self.latency_ns / 2).saturating_sub(transfer_ns(left, ps_per_byte))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::conformance::memory::FileMapper;
    use crate::emulated::model::ps_per_byte;

    const LATENCY_NS: u64 = 2000;

    struct Rack {
        fd: OwnedFd,
        card: Arc<Card>,
    }

    impl Rack {
        fn new(gbps: f64) -> Self {
            let (fd, card) = Card::create(&FileMapper, ps_per_byte(gbps).unwrap(), None).unwrap();
            Self { fd, card: Arc::new(card) }
        }

        /// This rack's end of a link to `peer`.
        fn wire(&self, peer: &Self, latency_ns: u64) -> Wire {
            let peer = Card::of_peer(&FileMapper, peer.fd.try_clone().unwrap()).unwrap();
            Wire::new(latency_ns, Arc::clone(&self.card), peer)
        }
    }

    #[test]
    fn bytes_of_one_direction_wait_for_each_other() {
        let [a, b] = [100.0; 2].map(Rack::new);
        let mut wire = a.wire(&b, LATENCY_NS);
        // 1250 B at 100 Gbit/s take 100 ns.
        assert_eq!(wire.schedule(1000, Flow::Out, 1250), 1000 + 100 + 2000);
        assert_eq!(wire.schedule(1000, Flow::Out, 1250), 1000 + 200 + 2000);
        assert_eq!(wire.schedule(1000, Flow::In, 2500), 1000 + 200 + 2000);
        assert_eq!(wire.schedule(9000, Flow::In, 1250), 9000 + 100 + 2000);
    }

    #[test]
    fn a_root_that_seven_racks_read_has_one_card() {
        let root = Rack::new(100.0);
        for reads in 1..=7 {
            let mut wire = Rack::new(100.0).wire(&root, LATENCY_NS);
            assert_eq!(wire.schedule(0, Flow::In, 1250), reads * 100 + LATENCY_NS);
        }
        let other = Rack::new(100.0);
        assert_eq!(root.wire(&other, 0).schedule(0, Flow::Out, 1250), 800, "its own write too");
        assert_eq!(root.wire(&other, 0).schedule(0, Flow::In, 1250), 100, "it can still receive");
    }

    #[test]
    fn a_rack_that_seven_racks_write_has_one_card() {
        let target = Rack::new(100.0);
        for writes in 1..=7 {
            let mut wire = Rack::new(100.0).wire(&target, LATENCY_NS);
            assert_eq!(wire.schedule(0, Flow::Out, 1250), writes * 100 + LATENCY_NS);
        }
        let other = Rack::new(100.0);
        assert_eq!(other.wire(&target, 0).schedule(0, Flow::In, 1250), 100, "it can still be read");
    }

    #[test]
    fn members_of_a_chain_receive_and_transmit_at_the_same_time() {
        let racks = [100.0; 4].map(Rack::new);
        let reads = racks.windows(2).map(|pair| pair[1].wire(&pair[0], 0));
        for mut wire in reads {
            assert_eq!(wire.schedule(0, Flow::In, 1250), 100);
        }
    }

    #[test]
    fn the_slower_card_of_a_link_decides() {
        let (fast, slow) = (Rack::new(100.0), Rack::new(50.0));
        let mut wire = fast.wire(&slow, 0);
        assert_eq!(wire.schedule(0, Flow::In, 1250), 200);
        assert_eq!(wire.moves_at(200, 625), 100);
        assert_eq!(fast.wire(&Rack::new(100.0), 0).schedule(0, Flow::In, 1250), 200);
    }

    #[test]
    fn a_small_read_does_not_overtake_a_large_write() {
        let [a, b] = [8.0; 2].map(Rack::new);
        let mut wire = a.wire(&b, 0);
        let write = wire.schedule(0, Flow::Out, 1 << 20);
        assert_eq!(wire.schedule(0, Flow::In, 1), write);
    }

    #[test]
    fn bytes_move_while_the_others_pass_the_wire_and_before_it_is_told() {
        let [a, b] = [100.0; 2].map(Rack::new);
        let mut wire = a.wire(&b, LATENCY_NS);
        let due = wire.schedule(1000, Flow::In, 2500);
        assert_eq!(due, 1000 + 200 + 2000);
        assert_eq!(wire.moves_at(due, 1250), 1000 + 100 + 1000, "half of it has passed");
        assert_eq!(wire.moves_at(due, 0), 1000 + 200 + 1000);
        assert_eq!(wire.moves_at(due, u64::MAX), 0);
    }
}
