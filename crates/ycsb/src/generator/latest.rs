//! A distribution that prefers the newest records.

use rand::Rng;

use super::Zipfian;

/// YCSB's `SkewedLatestGenerator`: a Zipfian distance back from the newest acknowledged record.
#[derive(Debug, Clone)]
pub(crate) struct Latest {
    distances: Zipfian,
}

impl Latest {
    /// `newest` is the number of the newest record at the start.
    pub(crate) fn new(newest: u64) -> Self {
        Self { distances: Zipfian::new(newest) }
    }

    /// Returns a record number up to `newest`. As in YCSB, record 0 is never drawn unless it is the
    /// only one.
    pub(crate) fn next(&mut self, newest: u64, rng: &mut impl Rng) -> u64 {
        self.distances.grow(newest);
        newest.saturating_sub(self.distances.next(rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn the_newest_is_the_most_frequent_and_stays_so_as_records_come() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut latest = Latest::new(999);
        for newest in [999, 1500, 4000] {
            let mut newest_seen = 0_u32;
            let mut older_half = 0_u32;
            for _ in 0..100_000 {
                let number = latest.next(newest, &mut rng);
                assert!((1..=newest).contains(&number));
                newest_seen += u32::from(number == newest);
                older_half += u32::from(number < newest / 2);
            }
            let theory = 100_000.0 / zeta(newest);
            let seen = f64::from(newest_seen);
            assert!((seen / theory - 1.0).abs() < 0.05, "of {newest}: {seen}, {theory}");
            assert!(older_half < 15_000, "older half of {newest}: {older_half}");
        }
    }

    #[test]
    fn one_record_is_enough() {
        let mut rng = SmallRng::seed_from_u64(4);
        assert_eq!(Latest::new(0).next(0, &mut rng), 0);
        assert_eq!(Latest::new(1).next(1, &mut rng), 1);
    }

    fn zeta(items: u64) -> f64 {
        (1..=items).map(|i| (i as f64).powf(-super::super::zipfian::THETA)).sum()
    }
}
