//! What a measurement counts, and how the connections' counts are combined.

use hdrhistogram::Histogram;

/// What was measured with one placement, once. Times and rates are undilated.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Completed operations that were recorded.
    pub operations: u64,
    /// Throughput in operations a second: for each connection the mean of its samples of 10 ms,
    /// added up. Below 0.1 s it is the quotient of operations and time.
    pub per_second: f64,
    /// Latency; `None` for an open loop.
    pub latency: Option<Latency>,
}

/// Latency of operations in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Mean of the connections' means.
    pub mean_ns: f64,
    /// Mean of the connections' standard deviations.
    pub deviation_ns: f64,
    /// Median of all operations.
    pub p50_ns: f64,
    /// 99th percentile of all operations.
    pub p99_ns: f64,
}

/// Counts of one connection.
#[derive(Debug)]
pub(crate) struct Recorder {
    is_recording: bool,
    /// Operations are recorded up to this number.
    limit: u64,
    /// Completions since the start, recorded or not.
    pub(crate) completed: u64,
    pub(crate) recorded: u64,
    mean_ns: f64,
    /// Sum of squared differences from the mean (Welford's algorithm).
    squares: f64,
    latencies: Histogram<u64>,
    /// Completions since recording began, and since the last sample.
    counted: u64,
    in_sample: u64,
    rates: Vec<f64>,
}

/// Fewer samples than this have no mean worth its name: the whole recorded time counts instead.
const MIN_SAMPLES: usize = 10;

impl Recorder {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            is_recording: false,
            limit: limit.unwrap_or(u64::MAX),
            completed: 0,
            recorded: 0,
            mean_ns: 0.0,
            squares: 0.0,
            latencies: histogram(),
            counted: 0,
            in_sample: 0,
            rates: Vec::new(),
        }
    }

    /// Records from now on.
    pub(crate) const fn record(&mut self) {
        self.is_recording = true;
    }

    /// Returns true if as many operations as wanted were recorded.
    pub(crate) const fn is_full(&self) -> bool {
        self.recorded >= self.limit
    }

    /// Counts a completion, with its latency if it is measured.
    pub(crate) fn complete(&mut self, latency_ns: Option<u64>) {
        self.completed += 1;
        if !self.is_recording {
            return;
        }
        self.counted += 1;
        self.in_sample += 1;
        if self.is_full() {
            return;
        }
        self.recorded += 1;
        let Some(ns) = latency_ns else { return };
        self.latencies.saturating_record(ns.max(1));
        let ns = ns as f64;
        let difference = ns - self.mean_ns;
        self.mean_ns += difference / self.recorded as f64;
        self.squares += difference * (ns - self.mean_ns);
    }

    /// Ends a sample of the throughput.
    pub(crate) fn sample(&mut self, seconds: f64) {
        self.rates.push(self.in_sample as f64 / seconds);
        self.in_sample = 0;
    }

    /// Operations a second; `seconds` is the length of the recorded time.
    fn rate(&self, seconds: f64) -> f64 {
        if self.rates.len() < MIN_SAMPLES {
            return self.counted as f64 / seconds;
        }
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }

    fn deviation_ns(&self) -> f64 {
        if self.recorded < 2 {
            return 0.0;
        }
        (self.squares / (self.recorded - 1) as f64).sqrt()
    }
}

/// Latencies from 1 ns to 1000 s with an error below 0.1 %.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3)
        .unwrap_or_else(|error| panic!("the bounds are constants: {error:?}"))
}

/// A connection's counts, and the length of its recorded time in seconds.
pub(crate) type Recorded = (Recorder, f64);

impl Measurement {
    /// Combines the connections' counts. Times are divided and rates multiplied by `dilation`.
    pub(crate) fn combine(connections: &[Recorded], has_latency: bool, dilation: u32) -> Self {
        let dilation = f64::from(dilation);
        let rates = connections.iter().map(|(recorder, seconds)| recorder.rate(*seconds));
        let latency = has_latency.then(|| {
            let mut all = histogram();
            for (recorder, _) in connections {
                // Has the same bounds.
                let _ = all.add(&recorder.latencies);
            }
            let count = connections.len().max(1) as f64;
            let mean = |of: fn(&Recorder) -> f64| {
                connections.iter().map(|(recorder, _)| of(recorder)).sum::<f64>() / count / dilation
            };
            Latency {
                mean_ns: mean(|recorder| recorder.mean_ns),
                deviation_ns: mean(Recorder::deviation_ns),
                p50_ns: all.value_at_quantile(0.50) as f64 / dilation,
                p99_ns: all.value_at_quantile(0.99) as f64 / dilation,
            }
        });
        Self {
            operations: connections.iter().map(|(recorder, _)| recorder.recorded).sum(),
            per_second: rates.sum::<f64>() * dilation,
            latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_averaged_and_undilated() {
        let one = |latencies: &[u64]| {
            let mut recorder = Recorder::new(Some(3));
            recorder.complete(Some(1_000_000));
            recorder.record();
            latencies.iter().for_each(|ns| recorder.complete(Some(*ns)));
            recorder.sample(0.01);
            (recorder, 0.01)
        };
        // Of the first connection three operations are recorded; all count for the throughput.
        let both = [one(&[100, 200, 300, 90_000]), one(&[400, 400])];
        let combined = Measurement::combine(&both, true, 10);
        assert_eq!(combined.operations, 5);
        assert!((combined.per_second - 6000.0).abs() < 1e-6);
        let latency = combined.latency.unwrap();
        assert!((latency.mean_ns - 30.0).abs() < 1e-9, "{latency:?}");
        assert!((latency.deviation_ns - 5.0).abs() < 1e-9, "{latency:?}");
        assert!((29.9..30.1).contains(&latency.p50_ns), "{latency:?}");
        assert!((39.9..40.1).contains(&latency.p99_ns), "{latency:?}");
        assert_eq!(Measurement::combine(&both, false, 1).latency, None);
    }

    #[test]
    fn the_rate_is_the_mean_of_samples_or_that_of_a_short_run() {
        let mut recorder = Recorder::new(None);
        recorder.record();
        recorder.sample(0.002);
        recorder.complete(None);
        let combined = Measurement::combine(&[(recorder, 0.002)], false, 1);
        assert!((combined.per_second - 500.0).abs() < 1e-9);
        let mut recorder = Recorder::new(None);
        recorder.record();
        for _ in 0..MIN_SAMPLES {
            recorder.complete(None);
            recorder.sample(0.01);
        }
        let combined = Measurement::combine(&[(recorder, 99.0)], false, 1);
        assert!((combined.per_second - 100.0).abs() < 1e-9);
    }
}
