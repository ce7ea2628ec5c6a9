//! Latency histograms of one thread, and their sums.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::summary::{Bucket, LatencySummary, OperationResult};
use super::workload::Operation;

/// The longest latency recorded, in nanoseconds: one minute. Longer ones count as this.
const MAX_NS: u64 = 60_000_000_000;
/// Significant decimal digits of a histogram.
const DIGITS: u8 = 3;
/// The ratio of widths of successive buckets in results.
const BUCKET_RATIO: f64 = 1.1;
/// Upper bound of the first bucket in results, in nanoseconds.
const FIRST_BUCKET_NS: u64 = 20;

/// Latencies by kind of operation, and of all operations of a workload.
///
/// As in YCSB, a read-modify-write also counts as a read and as an update.
#[derive(Debug, Clone)]
pub(super) struct LatencyRecorder {
    all: Histogram<u64>,
    kinds: [Histogram<u64>; Operation::ALL.len()],
}

impl LatencyRecorder {
    pub(super) fn new() -> Self {
        let empty = Histogram::new_with_bounds(1, MAX_NS, DIGITS)
            .expect("1 ns to a minute with three digits is within what a histogram can hold");
        Self { kinds: std::array::from_fn(|_| empty.clone()), all: empty }
    }

    /// Records the latency of one operation of the workload.
    pub(super) fn record(&mut self, operation: Operation, time: Duration) {
        self.all.saturating_record(nanoseconds(time));
        self.record_part(operation, time);
    }

    /// Records the latency of a part of a read-modify-write.
    pub(super) fn record_part(&mut self, operation: Operation, time: Duration) {
        self.kinds[operation as usize].saturating_record(nanoseconds(time));
    }

    /// Adds another thread's latencies.
    pub(super) fn merge(&mut self, other: &Self) {
        // Adding fails only for different bounds, and both have the same.
        let _ = self.all.add(&other.all);
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            let _ = mine.add(theirs);
        }
    }

    /// Number of operations recorded, without parts.
    pub(super) fn operations(&self) -> u64 {
        self.all.len()
    }

    /// Latencies of all operations of the workload.
    pub(super) fn overall(&self) -> LatencySummary {
        summary(&self.all)
    }

    /// Latencies of each kind of operation that occurred.
    pub(super) fn by_kind(&self) -> Vec<OperationResult> {
        Operation::ALL
            .iter()
            .zip(&self.kinds)
            .filter(|(_, histogram)| !histogram.is_empty())
            .map(|(operation, histogram)| OperationResult {
                operation: operation.to_string(),
                latency: summary(histogram),
            })
            .collect()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn summary(histogram: &Histogram<u64>) -> LatencySummary {
    let at = |quantile| histogram.value_at_quantile(quantile).min(histogram.max());
    LatencySummary {
        count: histogram.len(),
        mean_ns: histogram.mean(),
        p50_ns: at(0.5),
        p95_ns: at(0.95),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: histogram.max(),
        buckets: buckets(histogram),
    }
}

/// The histogram in logarithmic buckets, without empty ones.
fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    histogram
        .iter_log(FIRST_BUCKET_NS, BUCKET_RATIO)
        .filter(|step| step.count_since_last_iteration() > 0)
        .map(|step| Bucket {
            upper_ns: step.value_iterated_to(),
            count: step.count_since_last_iteration(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_for_their_kind_only() {
        let mut recorder = LatencyRecorder::new();
        recorder.record(Operation::ReadModifyWrite, Duration::from_micros(5));
        recorder.record_part(Operation::Read, Duration::from_micros(2));
        recorder.record_part(Operation::Update, Duration::from_micros(3));
        let kinds: Vec<_> = recorder
            .by_kind()
            .into_iter()
            .map(|kind| (kind.operation, kind.latency.count))
            .collect();
        let one = |kind: &str| (kind.to_owned(), 1);
        assert_eq!(kinds, [one("read"), one("update"), one("read-modify-write")]);
        assert_eq!(recorder.operations(), 1);
    }

    #[test]
    fn quantiles_and_buckets_follow_the_values_of_all_threads() {
        let mut all = LatencyRecorder::new();
        for thread in 0..4 {
            let mut one = LatencyRecorder::new();
            for i in 0..250 {
                one.record(Operation::Read, Duration::from_micros(1 + thread * 250 + i));
            }
            all.merge(&one);
        }
        let summary = all.overall();
        assert_eq!(summary.count, 1000);
        for (found_ns, expected_us) in
            [(summary.p50_ns, 500.0), (summary.p99_ns, 990.0), (summary.max_ns, 1000.0)]
        {
            let found_us = found_ns as f64 / 1e3;
            assert!((found_us / expected_us - 1.0).abs() < 0.002, "{found_us} for {expected_us}");
        }
        assert_eq!(summary.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 1000);
        assert!(summary.buckets.is_sorted_by_key(|bucket| bucket.upper_ns));
        let last = summary.buckets.last().unwrap().upper_ns;
        assert!(last >= summary.max_ns, "{last} < {}", summary.max_ns);
    }

    #[test]
    fn more_than_a_minute_counts_as_a_minute() {
        let mut recorder = LatencyRecorder::new();
        recorder.record(Operation::Insert, Duration::from_secs(3600));
        let summary = recorder.overall();
        assert_eq!(summary.count, 1);
        assert!(summary.max_ns >= MAX_NS && summary.max_ns < MAX_NS + MAX_NS / 100);
    }
}
