//! Random numbers that follow from a seed.

use rackpool_sync::SplitMix64;

/// Numbers from a sequence. Equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    /// A generator for `seed`; generators with different `stream` numbers are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let stream = SplitMix64::mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Self(SplitMix64::new(SplitMix64::mix(seed ^ stream)))
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number in `0..bound`. `bound` must be at most 2^32; 0 gives 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }

    /// A number in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_the_range() {
        let mut rng = Rng::new(1, 0);
        let mut counts = [0_u32; 11];
        for _ in 0..11_000 {
            counts[usize::try_from(rng.below(11)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
        assert_eq!(Rng::new(5, 1).next(), Rng::new(5, 1).next());
        assert_ne!(Rng::new(5, 1).next(), Rng::new(5, 2).next());
    }
}
