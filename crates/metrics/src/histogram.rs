use std::time::Duration;

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// A histogram of durations. Any number of threads may record while another reads.
///
/// ```
/// use std::time::Duration;
/// use rackpool_metrics::Histogram;
/// let pauses = Histogram::times();
/// pauses.record(Duration::from_micros(30));
/// assert_eq!(pauses.count(), 1);
/// assert_eq!(pauses.quantile(0.99), Some(Duration::from_micros(50)));
/// ```
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds of the buckets, in nanoseconds; the last bucket has none.
    ends_ns: &'static [u64],
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

/// 1 us to 10 s, three buckets a decade: 1, 2, 5.
const TIMES_NS: [u64; 22] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

impl Default for Histogram {
    fn default() -> Self {
        Self::times()
    }
}

/// The contents of a histogram in seconds.
pub(crate) struct BucketCounts {
    /// Each bucket's upper bound (the last one infinite) with its count, not cumulated.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// The sum of all durations.
    pub(crate) sum: f64,
}

impl Histogram {
    /// Creates a histogram for 1 us to 10 s, with three buckets a decade.
    #[must_use]
    pub fn times() -> Self {
        let buckets = TIMES_NS.iter().map(|_| AtomicU64::new(0)).chain([AtomicU64::new(0)]);
        Self { ends_ns: &TIMES_NS, buckets: buckets.collect(), sum_ns: AtomicU64::new(0) }
    }

    /// Records one duration.
    pub fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.ends_ns.partition_point(|end| *end < ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Returns an upper bound of the quantile `share` (0 to 1): the upper bound of its bucket.
    /// `None` when nothing was recorded; `Duration::MAX` when the quantile lies in the last bucket.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let counts = self.counts();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * to_f64(total);
        let mut sum = 0;
        let bucket = counts.iter().position(|count| {
            sum += count;
            sum > 0 && to_f64(sum) >= wanted
        });
        let end = bucket.and_then(|bucket| self.ends_ns.get(bucket));
        Some(end.map_or(Duration::MAX, |end| Duration::from_nanos(*end)))
    }

    /// Returns each bucket's upper bound in microseconds and its count, not cumulated. The last
    /// bucket has no bound: `None`.
    #[must_use]
    pub fn micros(&self) -> Vec<(Option<u64>, u64)> {
        let ends = self.ends_ns.iter().map(|ns| Some(ns / 1000)).chain([None]);
        ends.zip(self.counts()).collect()
    }

    fn counts(&self) -> Vec<u64> {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect()
    }

    /// Returns the counts of the buckets.
    pub(crate) fn buckets(&self) -> BucketCounts {
        let ends = self.ends_ns.iter().map(|ns| to_f64(*ns) / 1e9).chain([f64::INFINITY]);
        let sum = to_f64(self.sum_ns.load(Ordering::Relaxed)) / 1e9;
        BucketCounts { buckets: ends.zip(self.counts()).collect(), sum }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_the_bucket_that_ends_at_or_above_them() {
        let histogram = Histogram::times();
        for micros in [1, 2, 3, 10_000_000, 10_000_001] {
            histogram.record(Duration::from_micros(micros));
        }
        let BucketCounts { buckets, sum } = histogram.buckets();
        let filled: Vec<_> = buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        let ends = [(1e-6, 1), (2e-6, 1), (5e-6, 1), (10.0, 1), (f64::INFINITY, 1)];
        assert_eq!(filled, ends);
        assert!((sum - 20.000_007).abs() < 1e-9, "{sum}");
        assert_eq!(histogram.count(), 5);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let histogram = Histogram::times();
        assert_eq!(histogram.quantile(0.5), None);
        for _ in 0..99 {
            histogram.record(Duration::from_micros(15));
        }
        histogram.record(Duration::from_secs(100));
        assert_eq!(histogram.quantile(0.0), Some(Duration::from_micros(20)));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(20)));
        assert_eq!(histogram.quantile(1.0), Some(Duration::MAX));
    }
}
