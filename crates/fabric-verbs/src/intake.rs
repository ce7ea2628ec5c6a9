use rackpool_fabric::{MAX_MESSAGE, Portion, ReceiveRoom};

/// Bytes of the buffer of a receive. Larger messages need a slot.
pub(crate) const SMALL: usize = 2048;
/// The most slots that a side has for the other one's large messages, and the fewest.
pub(crate) const MOST_SLOTS: usize = 16;
const LEAST_SLOTS: usize = 4;
const MESSAGES_PER_SLOT: usize = 8;
/// The most messages that may be on the way to a side.
pub(crate) const MOST_MESSAGES: usize = MOST_SLOTS * MESSAGES_PER_SLOT;
/// The most receives that a side posts.
pub(crate) const MOST_RECEIVES: usize = Intake { slots: MOST_SLOTS }.receives();

/// How much one side takes in before it has to tell the other that it has: so much may be on the
/// way. The number of slots, which peers tell each other by their bytes, says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intake {
    slots: usize,
}

impl Intake {
    /// Buffers for one more peer. What they have is a part of the room.
    pub(crate) fn within(room: &ReceiveRoom) -> (Self, Portion) {
        let mut found = Self { slots: LEAST_SLOTS };
        let portion = room.take(|offered| {
            while found.slots < MOST_SLOTS && found.twice().bytes() <= offered {
                found = found.twice();
            }
            found.bytes()
        });
        (found, portion)
    }

    /// What a side takes in that has so many bytes of slots; `None` if none has.
    pub(crate) fn of_slot_bytes(bytes: u64) -> Option<Self> {
        let all = [LEAST_SLOTS, 2 * LEAST_SLOTS, MOST_SLOTS].map(|slots| Self { slots });
        all.into_iter().find(|intake| intake.slot_bytes() as u64 == bytes)
    }

    const fn twice(self) -> Self {
        Self { slots: 2 * self.slots }
    }

    /// Of the messages on the way, those that are too large for the buffer of a receive: each has a
    /// slot.
    pub(crate) const fn slots(self) -> usize {
        self.slots
    }

    /// Messages that may be on the way before this side says that it has taken some.
    pub(crate) const fn messages(self) -> usize {
        self.slots * MESSAGES_PER_SLOT
    }

    /// Receives that are posted: for the messages, for eight sends that only tell what was taken,
    /// and one more.
    pub(crate) const fn receives(self) -> usize {
        self.messages() + 8 + 1
    }

    pub(crate) const fn slot_bytes(self) -> usize {
        self.slots * MAX_MESSAGE
    }

    /// Memory that the device writes what arrives into.
    const fn bytes(self) -> u64 {
        (self.slot_bytes() + self.receives() * SMALL) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_share_the_room_and_each_has_its_least() {
        let room = ReceiveRoom::new(4 << 20);
        let mut all = Vec::new();
        let mut slots = Vec::new();
        for _ in 0..8 {
            let (intake, portion) = Intake::within(&room);
            assert_eq!(portion.bytes(), intake.bytes());
            assert_eq!(Intake::of_slot_bytes(intake.slot_bytes() as u64), Some(intake));
            slots.push(intake.slots());
            all.push(portion);
        }
        assert_eq!(slots, [16, 16, 8, 4, 4, 4, 4, 4]);
        drop(all);
        assert_eq!(Intake::within(&room).0.slots(), 16, "they have left");
        assert_eq!(Intake::within(&ReceiveRoom::new(1)).0.slots(), 4);
    }

    #[test]
    fn no_peer_has_other_slots() {
        for bytes in [0, 1, 64 << 10, 3 * (64 << 10), (256 << 10) + 1, 2 << 20, u64::MAX] {
            assert_eq!(Intake::of_slot_bytes(bytes), None, "{bytes}");
        }
    }

    #[test]
    fn a_quarter_of_either_kind_is_a_whole_number() {
        for slots in [LEAST_SLOTS, 2 * LEAST_SLOTS, MOST_SLOTS] {
            let intake = Intake { slots };
            assert_eq!((intake.slots() % 4, intake.messages() % 4), (0, 0));
        }
    }
}
