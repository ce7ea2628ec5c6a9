//! Throughput over time.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::counter::SharedCounter;
use super::progress::Bar;
use super::summary::Sample;

/// The sampling interval of throughput.
const PERIOD: Duration = Duration::from_millis(100);

/// Samples the workers' counters until all senders of `finished` are dropped.
pub(super) fn watch(finished: &Receiver<()>, done: &[SharedCounter], bar: &Bar) -> Vec<Sample> {
    let start = Instant::now();
    let mut timeline = Timeline::default();
    let mut due = PERIOD;
    loop {
        let wait = due.saturating_sub(start.elapsed());
        let answer = finished.recv_timeout(wait);
        let total = done.iter().map(SharedCounter::get).sum();
        let now = start.elapsed();
        bar.advance(total);
        if answer == Err(RecvTimeoutError::Disconnected) {
            timeline.end(now, total);
            return timeline.samples;
        }
        if now >= due {
            timeline.sample(now, total);
            while due <= now {
                due += PERIOD;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Timeline {
    samples: Vec<Sample>,
    last: Duration,
    counted: u64,
}

impl Timeline {
    fn sample(&mut self, now: Duration, total: u64) {
        let operations = total - self.counted;
        let seconds = now.saturating_sub(self.last).as_secs_f64();
        self.samples.push(Sample {
            seconds: now.as_secs_f64(),
            operations,
            throughput: operations as f64 / seconds.max(1e-9),
        });
        (self.last, self.counted) = (now, total);
    }

    /// Adds the last sample. A short one is merged into the sample before, since a few operations
    /// in a very short time are no meaningful rate.
    fn end(&mut self, now: Duration, total: u64) {
        if now.saturating_sub(self.last) < PERIOD / 2
            && let Some(previous) = self.samples.pop()
        {
            self.counted -= previous.operations;
            let before = self.samples.last().map_or(0.0, |sample| sample.seconds);
            self.last = Duration::from_secs_f64(before);
        }
        self.sample(now, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn samples_are_rates_over_their_own_time() {
        let mut timeline = Timeline::default();
        timeline.sample(ms(100), 1000);
        timeline.sample(ms(300), 2000);
        timeline.end(ms(400), 2500);
        let rates: Vec<_> = timeline.samples.iter().map(|s| s.throughput.round()).collect();
        assert_eq!(rates, [10_000.0, 5_000.0, 5_000.0]);
    }

    #[test]
    fn a_short_end_joins_the_sample_before() {
        let mut timeline = Timeline::default();
        timeline.sample(ms(100), 1000);
        timeline.sample(ms(200), 2000);
        timeline.end(ms(225), 2250);
        assert_eq!(timeline.samples.len(), 2);
        assert_eq!(timeline.samples[1].operations, 1250);
        assert!((timeline.samples[1].throughput - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn a_run_shorter_than_a_period_has_one_sample() {
        let mut timeline = Timeline::default();
        timeline.end(ms(10), 50);
        assert_eq!(timeline.samples.len(), 1);
        assert_eq!(timeline.samples[0].operations, 50);
    }
}
