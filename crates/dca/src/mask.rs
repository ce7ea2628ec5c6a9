//! Way masks, in the form of the IIO LLC WAYS register and of CAT class masks.

use std::fmt;

use crate::OptionsError;

/// The largest number of ways a cache of the model can have.
pub const MAX_WAYS: u32 = 32;

/// A set of LLC ways: bit `n` stands for way `n`.
///
/// DDIO uses the two highest of eleven ways by default (0x600, register 0xC8B of Skylake servers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WayMask(pub u32);

impl WayMask {
    /// The default of the IIO LLC WAYS register: ways 9 and 10 of 11.
    pub const DDIO_DEFAULT: Self = Self(0x600);

    /// All of `ways` ways.
    #[must_use]
    pub fn all(ways: u32) -> Self {
        Self(u32::MAX.checked_shr(MAX_WAYS.saturating_sub(ways)).unwrap_or(0))
    }

    /// The `count` highest of `ways` ways, as DDIO uses them.
    #[must_use]
    pub fn highest(count: u32, ways: u32) -> Self {
        Self(Self::all(ways).0 & !Self::all(ways.saturating_sub(count)).0)
    }

    /// The number of ways in the mask.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the mask contains `way`.
    #[must_use]
    pub fn contains(self, way: usize) -> bool {
        u32::try_from(way).is_ok_and(|way| self.0.checked_shr(way).unwrap_or(0) & 1 == 1)
    }

    /// Whether the two masks share a way.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The ways of the mask, lowest first.
    pub fn ways(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let way = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(way)
        })
    }

    /// Checks that the mask is not empty and lies within `ways` ways.
    pub(crate) fn check(self, option: &'static str, ways: u32) -> Result<(), OptionsError> {
        let valid = self.0 != 0 && self.0 & !Self::all(ways).0 == 0;
        let advice = format_args!(
            "set at least one bit, and only bits of the {ways} ways (at most {})",
            Self::all(ways)
        );
        OptionsError::check(valid, option, &self, &advice)
    }
}

impl fmt::Display for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_two_highest_of_eleven_ways() {
        assert_eq!(WayMask::highest(2, 11), WayMask::DDIO_DEFAULT);
        assert_eq!(WayMask::all(11), WayMask(0x7ff));
        assert_eq!(WayMask::all(32), WayMask(u32::MAX));
        assert_eq!(WayMask::highest(40, 32), WayMask(u32::MAX));
        assert_eq!(WayMask::all(0), WayMask(0));
        assert_eq!(WayMask::DDIO_DEFAULT.ways().collect::<Vec<_>>(), [9, 10]);
    }

    #[test]
    fn empty_masks_and_masks_outside_the_ways_are_rejected() {
        assert!(WayMask(0).check("ddio_ways", 11).is_err());
        assert!(WayMask(0x800).check("ddio_ways", 11).is_err());
        assert!(WayMask(0x7ff).check("ddio_ways", 11).is_ok());
    }
}
