use rackpool_fabric::FabricError;

use crate::error::misbehaved;
use crate::intake::Intake;

/// A number of messages of one direction, and how many of them occupy slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    messages: u64,
    slots: u64,
}

/// The flow control of a connection: what may be sent, and the credits to be returned to the peer.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Receive capacities of this side and of the peer.
    own: Intake,
    peers: Intake,
    /// Messages sent by this side.
    sent: Count,
    /// The part of `sent` that the peer has reported as taken.
    acknowledged: Count,
    /// Messages taken from the peer.
    taken: Count,
    /// The part of `taken` that was reported to the peer.
    told: Count,
}

impl Count {
    const fn add(&mut self, is_large: bool) {
        self.messages += 1;
        self.slots += is_large as u64;
    }

    const fn since(self, earlier: Self) -> Self {
        Self { messages: self.messages - earlier.messages, slots: self.slots - earlier.slots }
    }
}

impl Credits {
    pub(crate) fn new(own: Intake, peers: Intake) -> Self {
        let [sent, acknowledged, taken, told] = [Count::default(); 4];
        Self { own, peers, sent, acknowledged, taken, told }
    }

    /// Returns true if the peer has room for a message.
    pub(crate) const fn has_room(&self, is_large: bool) -> bool {
        let on_the_way = self.sent.since(self.acknowledged);
        on_the_way.messages < self.peers.messages() as u64
            && (!is_large || on_the_way.slots < self.peers.slots() as u64)
    }

    /// Accounts for a message to be sent. Returns the index of its place, on both sides.
    pub(crate) fn send(&mut self, is_large: bool) -> usize {
        let place = if is_large {
            self.sent.slots % self.peers.slots() as u64
        } else {
            (self.sent.messages - self.sent.slots) % self.peers.messages() as u64
        };
        self.sent.add(is_large);
        usize::try_from(place).unwrap_or(0)
    }

    /// Accounts for a message taken from the peer. Returns its slot, which is valid if it is large.
    pub(crate) fn take(&mut self, is_large: bool) -> usize {
        let slot = self.taken.slots % self.own.slots() as u64;
        self.taken.add(is_large);
        usize::try_from(slot).unwrap_or(0)
    }

    /// Returns true if enough was taken that this side must return credits.
    pub(crate) const fn owes(&self) -> bool {
        let owed = self.taken.since(self.told);
        owed.messages >= self.own.messages() as u64 / 4 || owed.slots >= self.own.slots() as u64 / 4
    }

    /// The immediate value that reports what was taken; marks it as reported.
    pub(crate) const fn tell(&mut self) -> u32 {
        self.told = self.taken;
        ((self.taken.messages & 0xffff) as u32) << 16 | (self.taken.slots & 0xffff) as u32
    }

    /// Processes an immediate value of the peer.
    pub(crate) fn told(&mut self, number: u32) -> Result<(), FabricError> {
        let grown = |now: u32, before: u64| (u64::from(now).wrapping_sub(before)) & 0xffff;
        let new = Count {
            messages: grown(number >> 16, self.acknowledged.messages),
            slots: grown(number & 0xffff, self.acknowledged.slots),
        };
        let on_the_way = self.sent.since(self.acknowledged);
        if new.messages > on_the_way.messages || new.slots > on_the_way.slots {
            return Err(misbehaved("it says to have taken messages that were not sent"));
        }
        self.acknowledged.messages += new.messages;
        self.acknowledged.slots += new.slots;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::intake::MOST_SLOTS;

    fn intake(slots: usize) -> Intake {
        Intake::of_slot_bytes((slots * rackpool_fabric::MAX_MESSAGE) as u64).unwrap()
    }

    #[test]
    fn the_peer_gets_what_it_has_room_for() {
        for slots in [4, 8, MOST_SLOTS] {
            let peers = intake(slots);
            // The sequence of slots does not depend on returned credits.
            let mut credits = Credits::new(intake(4), peers);
            for slot in 0..slots {
                assert!(credits.has_room(true));
                assert_eq!(credits.send(true), slot);
            }
            assert!(!credits.has_room(true), "all slots are taken");
            for place in 0..peers.messages() - slots {
                assert!(credits.has_room(false));
                assert_eq!(credits.send(false), place);
            }
            assert!(!credits.has_room(false), "all receives are taken");
            assert_eq!(credits.told(4 << 16 | 4), Ok(()));
            assert!(credits.has_room(true));
            assert_eq!(credits.send(true), 0, "the first slot again");
        }
    }

    #[test]
    fn more_than_was_sent_is_never_taken() {
        let mut credits = Credits::new(intake(16), intake(16));
        credits.send(true);
        credits.send(false);
        for number in [3 << 16, 2 << 16 | 2, u32::MAX, 0xffff, 0xffff << 16] {
            assert!(credits.told(number).is_err(), "{number:#x}");
        }
        assert_eq!(credits.told(2 << 16 | 1), Ok(()));
        assert!(credits.told(1 << 16 | 1).is_err(), "it went back");
    }

    proptest! {
        /// In any interleaving of sends, receives and polls, every send finds a posted receive, and
        /// a waiting sender eventually gets room.
        #[test]
        fn every_send_finds_a_receive(
            slots in (0..3_u8, 0..3_u8),
            steps in proptest::collection::vec((0..4_u8, any::<bool>()), 1..2000),
        ) {
            // The capacities of the two sides need not be equal.
            let intakes = [intake(4 << slots.0), intake(4 << slots.1)];
            let [first, second] = intakes;
            let mut sides = [Credits::new(first, second), Credits::new(second, first)];
            // The receive queue of each side; `None` stands for a send with credits only.
            let mut queues: [VecDeque<(Option<bool>, u32)>; 2] = Default::default();
            for (step, large) in steps {
                let (from, to) = if step < 2 { (0, 1) } else { (1, 0) };
                if step % 2 == 0 {
                    if sides[from].has_room(large) {
                        sides[from].send(large);
                        let number = sides[from].tell();
                        queues[to].push_back((Some(large), number));
                    }
                } else if let Some((message, number)) = queues[from].pop_front() {
                    sides[from].told(number).unwrap();
                    if let Some(large) = message {
                        sides[from].take(large);
                    }
                    if sides[from].owes() {
                        let number = sides[from].tell();
                        queues[to].push_back((None, number));
                    }
                }
                for (queue, intake) in queues.iter().zip(intakes) {
                    prop_assert!(queue.len() <= intake.receives());
                    let large = queue.iter().filter(|(message, _)| *message == Some(true));
                    prop_assert!(large.count() <= intake.slots());
                }
            }
            for side in [0, 1, 0, 1] {
                while let Some((message, number)) = queues[side].pop_front() {
                    sides[side].told(number).unwrap();
                    if let Some(large) = message {
                        sides[side].take(large);
                    }
                    if sides[side].owes() {
                        let number = sides[side].tell();
                        queues[1 - side].push_back((None, number));
                    }
                }
            }
            prop_assert!(sides.iter().all(|side| side.has_room(true) && side.has_room(false)));
        }
    }
}
