//! The words that a program of a group stores, and the others read.

use super::{ALIGN, MOST_MEMBERS};

/// Members of a group, by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemberSet(u16);

impl MemberSet {
    /// The first `count` members.
    #[must_use]
    pub fn first(count: usize) -> Self {
        (0..count.min(MOST_MEMBERS)).fold(Self::default(), Self::with)
    }

    /// These members and `member`.
    #[must_use]
    pub const fn with(self, member: usize) -> Self {
        Self(self.0 | 1 << member)
    }

    /// These members without `member`.
    #[must_use]
    pub const fn without(self, member: usize) -> Self {
        Self(self.0 & !(1 << member))
    }

    /// Whether `member` is one of them.
    #[must_use]
    pub const fn contains(self, member: usize) -> bool {
        self.0 >> member & 1 == 1
    }

    /// The set as a word: bit i for member i.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        u64::from(self.0)
    }

    /// What a word says. Bits that mean nothing are ignored.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are the members")]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw as u16)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MOST_MEMBERS).filter(move |member| self.contains(*member))
    }
}

/// The words of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GroupWords {
    /// Changes as long as the root lives.
    pub beat: u64,
    /// The stream is in the program's ring up to this position.
    pub have: u64,
    /// The program has used all messages before this position.
    pub taken: u64,
    /// The members that the root waits for, by bits. None before all have joined.
    pub members: u64,
    /// Whether the program goes on without the root: its `have` grows only by what other members
    /// have.
    pub frozen: u64,
}

impl GroupWords {
    /// The number of words, with that of the group's number, which is the first.
    pub const COUNT: usize = 6;

    /// What is stored for the value of a word, other than the number of the group. A word that
    /// another program has stored says nothing that makes sense.
    #[must_use]
    pub const fn stored(value: u64, number: u64) -> u64 {
        value ^ number
    }

    /// What words in their order say, if they are those of a program of the group with this number.
    /// If the first word alone is, a part of the memory is another program's.
    #[must_use]
    pub fn found(words: [u64; Self::COUNT], number: u64) -> Found<Self> {
        if words[0] != number {
            return Found::Gone;
        }
        let [_, beat, have, taken, members, frozen] = words.map(|word| word ^ number);
        let is_position = |word: u64| word.is_multiple_of(ALIGN) && word >> 56 == 0;
        let makes_sense = beat >> 32 == 0
            && is_position(have)
            && is_position(taken)
            && members >> 16 == 0
            && frozen <= 1;
        if !makes_sense {
            return Found::Silent;
        }
        Found::Is(Self { beat, have, taken, members, frozen })
    }

    /// The members that the root waits for.
    #[must_use]
    pub const fn members(&self) -> MemberSet {
        MemberSet::from_raw(self.members)
    }

    /// Whether the program goes on without the root.
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        self.frozen != 0
    }
}

/// How a group has ended, the same for all programs: the first one that says it has decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The root has closed it: all members that were not lost have taken everything.
    Closed,
    /// The root was lost.
    RootLost(Survivors),
}

/// The members that go on without the root, and the position up to which they have the stream. None
/// if the root has closed the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Survivors {
    /// The end of the stream.
    pub end: u64,
    /// The members.
    pub members: MemberSet,
}

impl Survivors {
    /// No address has this bit.
    const DECIDED: u64 = 1 << 63;

    /// As a word, for the group of this number: the survivors of another group are others.
    #[must_use]
    pub fn to_raw(self, number: u64) -> u64 {
        Self::DECIDED | ((self.end / ALIGN) << 16 | self.members.to_raw()) ^ number
    }

    /// What a word says about the group of this number; `None` if it is an address.
    #[must_use]
    pub const fn from_raw(raw: u64, number: u64) -> Option<Self> {
        if raw & Self::DECIDED == 0 {
            return None;
        }
        let word = (raw ^ number) & !Self::DECIDED;
        Some(Self { end: (word >> 16) * ALIGN, members: MemberSet::from_raw(word) })
    }
}

/// What a read of another program's memory has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found<T> {
    /// This.
    Is(T),
    /// The memory is lost, or is not the program's any more.
    Gone,
    /// The rack did not answer.
    Silent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_put_in() {
        let all = MemberSet::first(MOST_MEMBERS);
        assert_eq!(all.iter().count(), MOST_MEMBERS);
        let some = MemberSet::first(3).without(1);
        assert_eq!(some.iter().collect::<alloc::vec::Vec<_>>(), [0, 2]);
        for members in [MemberSet::default(), some, all] {
            assert_eq!(MemberSet::from_raw(members.to_raw()), members);
            assert_eq!(Survivors::from_raw(0x0012_3456_789a_bcde, 7), None);
            for end in [0, ALIGN, ALIGN << 40] {
                let survivors = Survivors { end, members };
                for number in [1, 7 << 40, u64::MAX] {
                    let raw = survivors.to_raw(number);
                    assert_eq!(Survivors::from_raw(raw, number), Some(survivors));
                    assert_ne!(Survivors::from_raw(raw, number ^ 1 << 50), Some(survivors));
                }
            }
        }
    }
    #[test]
    fn words_of_another_program_make_no_sense() {
        let number = 0x9876_5432_10fe_dcba;
        let stored = |value| GroupWords::stored(value, number);
        let words = [number, stored(9), stored(64), stored(32), stored(3), stored(0)];
        let expected = GroupWords { beat: 9, have: 64, taken: 32, members: 3, frozen: 0 };
        assert_eq!(GroupWords::found(words, number), Found::Is(expected));
        assert_eq!(GroupWords::found(words, number + 1), Found::Gone);
        for at in 1..GroupWords::COUNT {
            for foreign in [0, 1, 64, 0x40_0000, u64::MAX] {
                let mut words = words;
                words[at] = foreign;
                assert_eq!(GroupWords::found(words, number), Found::Silent, "{at}: {foreign}");
            }
        }
    }
}
