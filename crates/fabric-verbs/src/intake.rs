use rackpool_fabric::{MAX_MESSAGE, Portion, ReceiveRoom};

/// Size of a receive buffer, in bytes. Larger messages need a slot.
pub(crate) const SMALL: usize = 2048;
/// The largest and the smallest number of slots that a side has for the peer's large messages.
pub(crate) const MOST_SLOTS: usize = 16;
const LEAST_SLOTS: usize = 4;
const MESSAGES_PER_SLOT: usize = 8;
/// The most messages that may be in flight to a side.
pub(crate) const MOST_MESSAGES: usize = MOST_SLOTS * MESSAGES_PER_SLOT;
/// The most receives that a side posts.
pub(crate) const MOST_RECEIVES: usize = Intake { slots: MOST_SLOTS }.receives();

/// The receive capacity of one side: the messages that may be in flight to it before it returns
/// credits. It is determined by the number of slots, which a side announces as their total length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Intake {
    slots: usize,
}

impl Intake {
    /// Selects the buffers for one more peer; they are a part of the room.
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

    /// The capacity of a side that announces slots of `bytes` bytes; `None` if that length is
    /// invalid.
    pub(crate) fn of_slot_bytes(bytes: u64) -> Option<Self> {
        let all = [LEAST_SLOTS, 2 * LEAST_SLOTS, MOST_SLOTS].map(|slots| Self { slots });
        all.into_iter().find(|intake| intake.slot_bytes() as u64 == bytes)
    }

    const fn twice(self) -> Self {
        Self { slots: 2 * self.slots }
    }

    /// The number of large messages that may be in flight: each is longer than a receive buffer and
    /// occupies a slot.
    pub(crate) const fn slots(self) -> usize {
        self.slots
    }

    /// The number of messages that may be in flight before this side returns credits.
    pub(crate) const fn messages(self) -> usize {
        self.slots * MESSAGES_PER_SLOT
    }

    /// The number of posted receives: one for each message, eight for sends that carry only
    /// credits, and one spare.
    pub(crate) const fn receives(self) -> usize {
        self.messages() + 8 + 1
    }

    pub(crate) const fn slot_bytes(self) -> usize {
        self.slots * MAX_MESSAGE
    }

    /// Memory into which the device writes incoming data, in bytes.
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
