//! A Zipfian distribution whose popular records are scattered over the whole key space.

use rand::Rng;

use super::{Zipfian, fnv_hash64};

/// YCSB's `ScrambledZipfianGenerator`: ranks of a Zipfian over 10^10 items, hashed onto the
/// records. The popularity of the top records does not depend on the number of records.
#[derive(Debug, Clone)]
pub(crate) struct ScrambledZipfian {
    ranks: Zipfian,
    items: u64,
}

impl ScrambledZipfian {
    /// YCSB's `ITEM_COUNT`.
    const ITEM_COUNT: u64 = 10_000_000_000;
    /// YCSB's `ZETAN`: zeta of `ITEM_COUNT` items at 0.99.
    const ZETA: f64 = 26.469_028_201_783_02;

    /// Draws from `0..items`; `items` is at least 1.
    pub(crate) fn new(items: u64) -> Self {
        // YCSB's range is inclusive at both ends, hence one more.
        let ranks = Zipfian::with_zeta(Self::ITEM_COUNT + 1, Self::ZETA);
        Self { ranks, items: items.max(1) }
    }

    pub(crate) fn next(&self, rng: &mut impl Rng) -> u64 {
        fnv_hash64(self.ranks.next(rng)) % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::super::zipfian::THETA;
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};
    use std::collections::HashMap;

    #[test]
    fn the_top_records_are_where_the_hash_puts_them_and_as_frequent_as_zipf_says() {
        const DRAWS: u32 = 1_000_000;
        const ITEMS: u64 = 100_001;
        let zipfian = ScrambledZipfian::new(ITEMS);
        let mut rng = SmallRng::seed_from_u64(11);
        let mut seen = HashMap::<u64, u32>::new();
        for _ in 0..DRAWS {
            *seen.entry(zipfian.next(&mut rng)).or_default() += 1;
        }
        for rank in 0..2_u32 {
            let item = fnv_hash64(u64::from(rank)) % ITEMS;
            let frequency = f64::from(seen[&item]) / f64::from(DRAWS);
            let theory = f64::from(rank + 1).powf(-THETA) / ScrambledZipfian::ZETA;
            assert!((frequency / theory - 1.0).abs() < 0.02, "rank {rank}: {frequency}, {theory}");
        }
        assert!(seen.keys().all(|item| *item < ITEMS));
        let top = seen.values().max();
        assert_eq!(top, seen.get(&(fnv_hash64(0) % ITEMS)));
    }
}
