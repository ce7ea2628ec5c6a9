/// How far a replica is filled: the word `filling` of its head.
///
/// ```text
/// bit   63      62 ... 32            31 ... 0
///      +-------+--------------------+-----------------------+
///      | ready | pieces of the      | extents + 1, or 0     |
///      |       | bytes that are     | while their words are |
///      |       | there              | not in the head       |
///      +-------+--------------------+-----------------------+
/// ```
///
/// A piece has 64 KiB, the last one of an object perhaps less. They come in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filling {
    /// The number of extents, as soon as their words are in the head.
    pub(crate) extents: Option<u32>,
    pieces: u32,
    /// Set when programs may use the replica.
    pub(crate) is_ready: bool,
}

impl Filling {
    /// The length of a piece in bytes.
    const PIECE: u64 = 64 << 10;
    const PIECES_BITS: u32 = 31;

    /// Of a replica with `extents` extents, of whose `len` bytes the first `done` are there.
    pub(crate) fn of(extents: u32, done: u64, len: u64) -> Self {
        let pieces = if done < len { done / Self::PIECE } else { len.div_ceil(Self::PIECE) };
        let most = (1 << Self::PIECES_BITS) - 1;
        let pieces = u32::try_from(pieces).map_or(most, |pieces| pieces.min(most));
        Self { extents: Some(extents), pieces, is_ready: false }
    }

    pub(crate) const fn ready(mut self) -> Self {
        self.is_ready = true;
        self
    }

    /// How many of the `len` bytes are there, from the first one on.
    pub(crate) fn bytes(self, len: u64) -> u64 {
        if self.is_ready { len } else { len.min(u64::from(self.pieces) * Self::PIECE) }
    }

    pub(crate) fn encode(self) -> u64 {
        let extents = self.extents.map_or(0, |extents| u64::from(extents) + 1);
        u64::from(self.is_ready) << 63 | u64::from(self.pieces) << 32 | extents
    }

    /// Another program has written the word.
    pub(crate) fn decode(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
        let (upper, lower) = ((word >> 32) as u32, word as u32);
        let pieces = upper & ((1 << Self::PIECES_BITS) - 1);
        Self { extents: lower.checked_sub(1), pieces, is_ready: word >> 63 == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_comes_back_as_it_went() {
        assert_eq!(Filling::decode(0), Filling::default());
        let begun = Filling::of((1 << 22) - 1, 5 * Filling::PIECE, 1 << 30);
        for filling in [begun, begun.ready(), Filling::of(0, 0, 1), Filling::of(7, u64::MAX, 9)] {
            assert_eq!(Filling::decode(filling.encode()), filling);
        }
        assert_eq!(Filling::of(2, 0, 1 << 20).encode(), 3);
    }

    #[test]
    fn only_whole_pieces_count_until_the_last_byte_is_there() {
        let len = 3 * Filling::PIECE + 5;
        let bytes = |done| Filling::of(1, done, len).bytes(len);
        assert_eq!(bytes(0), 0);
        assert_eq!(bytes(Filling::PIECE - 1), 0);
        assert_eq!(bytes(2 * Filling::PIECE), 2 * Filling::PIECE);
        assert_eq!(bytes(len - 1), 3 * Filling::PIECE);
        assert_eq!(bytes(len), len);
        // A word of an object that is longer says no more than this one has.
        assert_eq!(Filling::of(1, 1 << 40, 1 << 40).bytes(len), len);
        assert_eq!(Filling::of(1, 0, len).ready().bytes(len), len);
        assert_eq!(Filling::of(1, u64::MAX, u64::MAX).bytes(u64::MAX), ((1 << 31) - 1) << 16);
    }
}
