//! What a reservation record says: the state of an object that a program has and that nothing
//! points to yet, or that the program has unlinked. `docs/design/publication.md` describes each
//! state.

/// The number of words of a record: its state, then its fields.
pub const RESERVATION_WORDS: usize = 8;

/// The compare-and-swap that publishes a reservation, as an armed record states it. Addresses are
/// global, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Armed {
    /// The object to be published; 0 if one is only unlinked.
    pub object: u64,
    /// The value of the object's owner word until it is published.
    pub token: u64,
    /// Address of the link, the word that is swapped.
    pub link: u64,
    /// New value of the link.
    pub word: u64,
    /// The bits of the link that tell whether it holds `word`.
    pub mask: u64,
    /// The object that the link pointed to before. It is freed, or put back to the place of a
    /// borrowed object, if the swap was made.
    pub replaced: u64,
    /// The variant of the publication.
    pub mode: ArmedMode,
}

/// Variants of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArmedMode {
    /// The publication counts once the swap was made.
    #[default]
    Plain,
    /// The object was borrowed from the word at this address, which has held the token since. The
    /// unreachable object is put back there and not to the pool.
    Borrowed(u64),
    /// The publication counts only if the second word of `replaced` still has this value, its
    /// stamp.
    Compare(u64),
    /// The bits of `mask` in the link are set to those of this value before `replaced` is freed.
    Settle(u64),
}

/// A borrowed object, as its record states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borrowed {
    /// The borrowed object.
    pub object: u64,
    /// The value of the word while the object is borrowed.
    pub token: u64,
    /// Address of the word that the object was borrowed from.
    pub place: u64,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservationState {
    /// The record says nothing. A state that no release writes counts as this one.
    #[default]
    Free,
    /// The object belongs to the program alone.
    Held(u64),
    /// The object is about to be swapped out of its place, or was.
    Borrowed(Borrowed),
    /// The swap is about to be made, or was.
    Armed(Armed),
    /// The swap is known to be made; this object is unreachable.
    Replaced(u64),
    /// The swap is known to be made, and `replaced` is unreachable. The link has yet to be settled.
    Settling(Armed),
}

impl Armed {
    /// Returns true if `link`, the value of the link, proves that the swap was made.
    #[must_use]
    pub const fn is_linked(&self, link: u64) -> bool {
        (link ^ self.word) & self.mask == 0
    }

    /// Returns the value that settles a link with the value `link`, or `None` if it needs no
    /// settling.
    #[must_use]
    pub const fn settled(&self, link: u64) -> Option<u64> {
        match self.mode {
            ArmedMode::Settle(word) if self.is_linked(link) => {
                Some((link & !self.mask) | (word & self.mask))
            }
            _ => None,
        }
    }

    /// Returns the state's number and the last field of an armed record.
    #[must_use]
    pub const fn state_and_aside(&self) -> (u64, u64) {
        match self.mode {
            ArmedMode::Plain => (ReservationState::ARMED, 0),
            ArmedMode::Borrowed(place) => (ReservationState::BORROWED_ARMED, place),
            ArmedMode::Compare(stamp) => (ReservationState::COMPARE_ARMED, stamp),
            ArmedMode::Settle(word) => (ReservationState::SETTLE_ARMED, word),
        }
    }
}

impl ReservationState {
    /// The number of the state free.
    pub const FREE: u64 = 0;
    /// The number of the state held.
    pub const HELD: u64 = 1;
    /// The number of the state armed, for a plain publication.
    pub const ARMED: u64 = 2;
    /// The number of the state replaced.
    pub const REPLACED: u64 = 3;
    /// The number of the state borrowed.
    pub const BORROWED: u64 = 4;
    /// The number of the state armed, for a borrowed object.
    pub const BORROWED_ARMED: u64 = 5;
    /// The number of the state armed, for a publication that compares.
    pub const COMPARE_ARMED: u64 = 6;
    /// The number of the state armed, for a link to settle.
    pub const SETTLE_ARMED: u64 = 7;
    /// The number of the state replaced, with a link to settle.
    pub const SETTLE_REPLACED: u64 = 8;

    /// Decodes a record's words: state, object, token, link, word, mask, replaced, aside. Nothing
    /// in them is trusted.
    #[must_use]
    pub const fn decode(words: [u64; RESERVATION_WORDS]) -> Self {
        let [state, object, token, link, word, mask, replaced, aside] = words;
        let mode = match state {
            Self::BORROWED_ARMED => ArmedMode::Borrowed(aside),
            Self::COMPARE_ARMED => ArmedMode::Compare(aside),
            Self::SETTLE_ARMED | Self::SETTLE_REPLACED => ArmedMode::Settle(aside),
            _ => ArmedMode::Plain,
        };
        let armed = Armed { object, token, link, word, mask, replaced, mode };
        match state {
            Self::HELD => Self::Held(object),
            Self::REPLACED => Self::Replaced(replaced),
            Self::BORROWED => Self::Borrowed(Borrowed { object, token, place: aside }),
            Self::SETTLE_REPLACED => Self::Settling(armed),
            Self::ARMED | Self::BORROWED_ARMED | Self::COMPARE_ARMED | Self::SETTLE_ARMED => {
                Self::Armed(armed)
            }
            _ => Self::Free,
        }
    }

    /// Returns the object that goes back to the pool after the client's death; `None` if there is
    /// none, or if the record is armed and not resolved.
    #[must_use]
    pub fn noted(&self) -> Option<u64> {
        let noted = match self {
            Self::Held(object) | Self::Replaced(object) => *object,
            Self::Settling(made) => made.replaced,
            Self::Free | Self::Borrowed(_) | Self::Armed(_) => 0,
        };
        Some(noted).filter(|noted| *noted != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_fields() {
        let words = |state| [state, 16, 1, 2, 3, 4, 32, 5];
        let armed =
            |mode| Armed { object: 16, token: 1, link: 2, word: 3, mask: 4, replaced: 32, mode };
        let states = [
            (ReservationState::Free, None),
            (ReservationState::Held(16), Some(16)),
            (ReservationState::Armed(armed(ArmedMode::Plain)), None),
            (ReservationState::Replaced(32), Some(32)),
            (ReservationState::Borrowed(Borrowed { object: 16, token: 1, place: 5 }), None),
            (ReservationState::Armed(armed(ArmedMode::Borrowed(5))), None),
            (ReservationState::Armed(armed(ArmedMode::Compare(5))), None),
            (ReservationState::Armed(armed(ArmedMode::Settle(5))), None),
            (ReservationState::Settling(armed(ArmedMode::Settle(5))), Some(32)),
        ];
        for (number, (state, noted)) in (0..).zip(states) {
            assert_eq!(ReservationState::decode(words(number)), state);
            assert_eq!(state.noted(), noted);
            if let ReservationState::Armed(armed) = state {
                assert_eq!(armed.state_and_aside().0, number);
            }
        }
        assert_eq!(ReservationState::decode(words(77)), ReservationState::Free);
    }

    #[test]
    fn only_bits_of_the_mask_tell_whether_a_link_is_the_word() {
        let armed = Armed { word: 0xf0, mask: 0xff, ..Armed::default() };
        assert!(armed.is_linked(0xf0) && armed.is_linked(0xabf0));
        assert!(!armed.is_linked(0xf1));
    }
}
