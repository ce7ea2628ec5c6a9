use std::cmp::Ordering;
use std::ops::Bound;

/// The score of a member: any `f64` but NaN; infinities are allowed, and -0 is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score(f64);

const SIGN: u64 = 1 << 63;

impl Score {
    /// The least score.
    pub const LEAST: Self = Self(f64::NEG_INFINITY);
    /// The greatest score.
    pub const GREATEST: Self = Self(f64::INFINITY);

    /// The score with this value; `None` for NaN.
    #[must_use]
    pub fn new(score: f64) -> Option<Self> {
        // Adding 0 turns -0 into 0 and changes nothing else.
        (!score.is_nan()).then_some(Self(score + 0.0))
    }

    /// The score's value.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Bits that compare as the scores do.
    pub(super) const fn ordered_bits(self) -> u64 {
        let bits = self.0.to_bits();
        if bits & SIGN != 0 { !bits } else { bits | SIGN }
    }

    pub(super) fn from_ordered_bits(bits: u64) -> Option<Self> {
        let bits = if bits & SIGN != 0 { bits & !SIGN } else { !bits };
        Self::from_bits(bits)
    }

    /// The score with these bits of an `f64`, which may come from another program.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        Self::new(f64::from_bits(bits))
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A range of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreRange {
    /// The lower bound.
    pub min: Bound<Score>,
    /// The upper bound.
    pub max: Bound<Score>,
}

impl ScoreRange {
    /// All scores.
    pub const ALL: Self = Self { min: Bound::Unbounded, max: Bound::Unbounded };

    /// Whether `score` is in the range.
    #[must_use]
    pub fn contains(&self, score: Score) -> bool {
        !self.is_above(score) && !self.is_below(score)
    }

    /// Whether all scores of the range are greater than `score`.
    pub(super) fn is_above(&self, score: Score) -> bool {
        match self.min {
            Bound::Included(min) => score < min,
            Bound::Excluded(min) => score <= min,
            Bound::Unbounded => false,
        }
    }

    /// Whether all scores of the range are less than `score`.
    pub(super) fn is_below(&self, score: Score) -> bool {
        match self.max {
            Bound::Included(max) => score > max,
            Bound::Excluded(max) => score >= max,
            Bound::Unbounded => false,
        }
    }
}
