//! The choice of the next operation's record: a distribution over the existing records.

use rand::Rng;

use super::generator::{AcknowledgedCounter, Latest, ScrambledZipfian, Uniform};
use super::workload::{Distribution, Mix, Workload};

/// Draws record numbers from a workload's distribution.
#[derive(Debug, Clone)]
pub(super) enum KeyChooser {
    Uniform(Uniform),
    Zipfian(ScrambledZipfian),
    Latest(Latest),
}

impl KeyChooser {
    /// Returns a chooser among `records` records at the start of a run of `operations` operations.
    ///
    /// For the latest distribution this takes time in proportion to `records`: create one chooser,
    /// then clone it.
    pub(super) fn new(workload: &Workload, records: u64, operations: u64) -> Self {
        match workload.distribution {
            Distribution::Uniform => Self::Uniform(Uniform::new(records)),
            Distribution::Latest => Self::Latest(Latest::new(records.saturating_sub(1))),
            // As in YCSB: room for twice the expected inserts, so that the popular records stay the
            // same while records are inserted. A number without a record is drawn again.
            Distribution::Zipfian => {
                let (insert, whole) = (u128::from(workload.mix.insert), u128::from(Mix::WHOLE));
                let expected = u128::from(operations) * insert * 2 / whole;
                let expected = u64::try_from(expected).unwrap_or(u64::MAX);
                Self::Zipfian(ScrambledZipfian::new(records.saturating_add(expected) + 1))
            }
        }
    }

    /// Returns the number of an existing record.
    pub(super) fn next(&mut self, records: &AcknowledgedCounter, rng: &mut impl Rng) -> u64 {
        loop {
            let number = match self {
                Self::Uniform(uniform) => uniform.next(rng),
                Self::Zipfian(zipfian) => zipfian.next(rng),
                Self::Latest(latest) => latest.next(records.newest(), rng),
            };
            if number < records.present() {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkloadName;
    use rand::{SeedableRng, rngs::SmallRng};

    #[test]
    fn only_records_that_are_there_are_drawn() {
        let records = AcknowledgedCounter::new(20);
        let mut rng = SmallRng::seed_from_u64(5);
        for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            let workload = Workload { distribution, ..WorkloadName::D.into() };
            let mut chooser = KeyChooser::new(&workload, 20, 10_000);
            assert!((0..10_000).all(|_| chooser.next(&records, &mut rng) < 20), "{distribution}");
        }
    }

    #[test]
    fn inserted_records_are_drawn_once_acknowledged() {
        let records = AcknowledgedCounter::new(20);
        let mut rng = SmallRng::seed_from_u64(6);
        for distribution in [Distribution::Zipfian, Distribution::Latest] {
            let workload = Workload { distribution, ..WorkloadName::D.into() };
            let mut chooser = KeyChooser::new(&workload, 20, 1000);
            let new = records.take();
            records.acknowledge(new);
            assert!((0..10_000).any(|_| chooser.next(&records, &mut rng) == new), "{distribution}");
        }
    }
}
