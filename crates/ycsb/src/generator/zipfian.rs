//! Ranks with Zipf's frequencies: rank `r` (from 0) has a probability proportional to `1 / (r +
//! 1)^theta`.

use rand::Rng;

/// The skew of the Zipfian distributions: YCSB's `ZIPFIAN_CONSTANT`.
pub(super) const THETA: f64 = 0.99;

/// YCSB's `ZipfianGenerator`: the method of Gray et al., "Quickly Generating Billion-Record
/// Synthetic Databases", SIGMOD 1994, exact for the first two ranks and approximate for the others.
///
/// When the number of items grows, YCSB keeps the first number in `eta`. Here `eta` follows, as the
/// paper defines it. From 100,000 items to 105,000 (workload D) `eta` differs by less than 0.1 %.
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// Draws from `0..items`; `items` is at least 1. Takes time in proportion to `items`.
    #[must_use]
    pub fn new(items: u64) -> Self {
        let items = items.max(1);
        Self::with_zeta(items, extend_zeta(0.0, 0, items))
    }

    /// Draws from `0..items`, given `zeta`, the sum of `1 / i^theta` up to `items`.
    pub(super) fn with_zeta(items: u64, zeta: f64) -> Self {
        let two = extend_zeta(0.0, 0, 2);
        let eta = if items > 2 {
            (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - two / zeta)
        } else {
            0.0 // Never used: the two first ranks are all there are.
        };
        Self { items, zeta, eta }
    }

    /// Raises the number of items to `items`, if that is larger. Takes time in proportion to the
    /// difference.
    pub(super) fn grow(&mut self, items: u64) {
        if items > self.items {
            *self = Self::with_zeta(items, extend_zeta(self.zeta, self.items, items));
        }
    }

    /// Returns the next rank.
    pub fn next(&self, rng: &mut impl Rng) -> u64 {
        let u: f64 = rng.random();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1.min(self.items - 1);
        }
        let share = (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        #[expect(clippy::cast_possible_truncation, reason = "the rank is the whole part")]
        let rank = (self.items as f64 * share) as u64;
        rank.min(self.items - 1)
    }
}

/// Adds the terms of items `from..to` to a `zeta` that ends at `from`.
fn extend_zeta(zeta: f64, from: u64, to: u64) -> f64 {
    (from + 1..=to).fold(zeta, |sum, i| sum + (i as f64).powf(THETA).recip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    const DRAWS: u32 = 1_000_000;

    fn frequencies(zipfian: &Zipfian, seed: u64) -> Vec<f64> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut seen = vec![0_u32; usize::try_from(zipfian.items).unwrap()];
        for _ in 0..DRAWS {
            seen[usize::try_from(zipfian.next(&mut rng)).unwrap()] += 1;
        }
        seen.iter().map(|n| f64::from(*n) / f64::from(DRAWS)).collect()
    }

    #[test]
    fn zeta_is_the_sum_it_is_defined_as() {
        assert!((Zipfian::new(1000).zeta - 7.728_953_217_284_729).abs() < 1e-9);
        assert!((Zipfian::new(100_000).zeta - 12.778_338_062_551_246).abs() < 1e-9);
    }

    #[test]
    fn the_top_ranks_come_as_often_as_the_theory_says() {
        let zipfian = Zipfian::new(1000);
        let frequencies = frequencies(&zipfian, 7);
        for (rank, frequency) in frequencies.iter().enumerate().take(2) {
            let theory = ((rank + 1) as f64).powf(-THETA) / zipfian.zeta;
            assert!((frequency / theory - 1.0).abs() < 0.02, "rank {rank}: {frequency}, {theory}");
        }
        // Gray's method only approximates single later ranks; their sum is accurate.
        let hundred: f64 = frequencies[..100].iter().sum();
        let theory = Zipfian::new(100).zeta / zipfian.zeta;
        assert!((hundred / theory - 1.0).abs() < 0.02, "first hundred: {hundred}, {theory}");
    }

    #[test]
    fn growing_equals_starting_large() {
        let mut grown = Zipfian::new(900);
        grown.grow(1000);
        grown.grow(10);
        let fresh = Zipfian::new(1000);
        assert_eq!(grown.items, 1000);
        assert!((grown.zeta - fresh.zeta).abs() < 1e-9 && (grown.eta - fresh.eta).abs() < 1e-9);
    }

    #[test]
    fn few_items_are_all_drawn_and_no_others() {
        for items in 1..=5 {
            let seen = frequencies(&Zipfian::new(items), items);
            assert!(seen.iter().all(|f| *f > 0.0), "{items} items: {seen:?}");
        }
    }
}
