//! The uniform distribution.

use rand::Rng;

/// YCSB's `UniformLongGenerator` over the records loaded.
#[derive(Debug, Clone)]
pub struct Uniform {
    items: u64,
}

impl Uniform {
    /// Draws from `0..items`; `items` is at least 1.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self { items: items.max(1) }
    }

    /// Returns the next item.
    pub fn next(&self, rng: &mut impl Rng) -> u64 {
        rng.random_range(0..self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn every_item_comes_about_equally_often() {
        let mut rng = SmallRng::seed_from_u64(1);
        let uniform = Uniform::new(10);
        let mut seen = [0_u32; 10];
        for _ in 0..100_000 {
            seen[usize::try_from(uniform.next(&mut rng)).unwrap()] += 1;
        }
        // 10,000 expected; the standard deviation is 95.
        assert!(seen.iter().all(|n| (9_600..=10_400).contains(n)), "{seen:?}");
    }
}
