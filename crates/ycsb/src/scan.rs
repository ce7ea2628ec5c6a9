//! The number of records that a scan reads.

use rand::Rng;

use super::generator::Zipfian;
use super::workload::{Distribution, ScanLengths};

/// Draws lengths from the distribution of a [`ScanLengths`].
#[derive(Debug, Clone)]
pub(super) struct ScanLength {
    lengths: ScanLengths,
    /// Set if short scans are preferred.
    zipfian: Option<Zipfian>,
}

impl ScanLength {
    pub(super) fn new(lengths: ScanLengths) -> Self {
        let prefers_short = lengths.distribution == Distribution::Zipfian;
        let zipfian = prefers_short.then(|| Zipfian::new(Self::choices(lengths)));
        Self { lengths, zipfian }
    }

    /// Number of different lengths.
    fn choices(lengths: ScanLengths) -> u64 {
        lengths.most.saturating_sub(lengths.least) + 1
    }

    pub(super) fn next(&self, rng: &mut impl Rng) -> u64 {
        let more = match &self.zipfian {
            Some(zipfian) => zipfian.next(rng),
            None => rng.random_range(0..Self::choices(self.lengths)),
        };
        self.lengths.least + more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn lengths_are_within_their_bounds_and_short_ones_preferred_if_so_wanted() {
        let mut rng = SmallRng::seed_from_u64(9);
        let mut mean = |distribution| {
            let lengths = ScanLength::new(ScanLengths { least: 3, most: 12, distribution });
            let drawn: Vec<u64> = (0..10_000).map(|_| lengths.next(&mut rng)).collect();
            assert_eq!(drawn.iter().min().zip(drawn.iter().max()), Some((&3, &12)));
            drawn.iter().sum::<u64>() as f64 / 10_000.0
        };
        assert!((mean(Distribution::Uniform) - 7.5).abs() < 0.2);
        assert!(mean(Distribution::Zipfian) < 6.5);
    }
}
