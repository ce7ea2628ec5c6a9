/// The generation of a segment's memory. Retired segments are reused only as segments. Each use has
/// the next life, so words of an earlier life are recognized. 0 is not a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentLife(u32);

impl SegmentLife {
    /// The width of a life in a word, in bits; it wraps around.
    pub(crate) const BITS: u32 = 17;
    const MASK: u64 = (1 << Self::BITS) - 1;

    /// Before the first use.
    pub(crate) const NONE: Self = Self(0);

    /// The first use of fresh memory.
    pub(crate) const FIRST: Self = Self(1);

    /// Keeps the low [`Self::BITS`] bits.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self((bits & Self::MASK) as u32)
    }

    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }

    pub(crate) const fn next(self) -> Self {
        let next = (self.0 as u64 + 1) & Self::MASK;
        if next == 0 { Self::FIRST } else { Self(next as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_past_zero() {
        assert_eq!(SegmentLife::from_bits(SegmentLife::MASK).next(), SegmentLife::FIRST);
        assert_eq!(SegmentLife::NONE.next(), SegmentLife::FIRST);
        assert_eq!(SegmentLife::FIRST.next().bits(), 2);
    }
}
