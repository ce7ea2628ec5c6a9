use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::connection::Connection;

/// The most latencies that are kept.
const MAX_SAMPLES: usize = 1 << 20;
/// The part of the time before latencies and operations count.
const WARM_UP: f64 = 0.1;
const TIMEOUT: Duration = Duration::from_secs(20);

/// What clients saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Mean latency in ns.
    pub latency_ns: f64,
    /// Standard deviation of the latency in ns.
    pub deviation_ns: f64,
    /// Half of the operations took at most this time, in ns.
    pub p50_ns: f64,
    /// 99 % of the operations took at most this time, in ns.
    pub p99_ns: f64,
    /// Operations a second of all clients.
    pub rate: f64,
    /// Operations that were counted.
    pub operations: u64,
}

/// Lets the calling thread run the clients in turn for a time, and then until nothing is in flight.
/// Times are divided by `dilation`.
pub(crate) fn measure(
    clients: &mut [Connection],
    time: Duration,
    dilation: f64,
) -> anyhow::Result<Measurement> {
    let mut latencies: Vec<f64> = Vec::new();
    let mut operations = 0_u64;
    let start = Instant::now();
    let begin = start + time.mul_f64(WARM_UP);
    let end = start + time;
    let mut now = start;
    while now < end {
        let counts = now >= begin;
        for client in clients.iter_mut() {
            client.fill()?;
            client.poll(|took| {
                if counts {
                    operations += 1;
                    if latencies.len() < MAX_SAMPLES {
                        latencies.push(took.as_secs_f64() * 1e9 / dilation);
                    }
                }
            })?;
        }
        now = Instant::now();
    }
    let measured = now - begin;
    while clients.iter().any(|client| client.in_flight() > 0) {
        for client in clients.iter_mut() {
            client.poll(|_| {})?;
        }
        ensure!(now.elapsed() < TIMEOUT, "operations of the study do not complete");
    }
    ensure!(!latencies.is_empty(), "no operation completed in {time:?}: measure for longer");
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = operations as f64 / measured.as_secs_f64() * dilation;
    Ok(summary(latencies, rate, operations))
}

fn summary(mut latencies: Vec<f64>, rate: f64, operations: u64) -> Measurement {
    latencies.sort_unstable_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "at most MAX_SAMPLES")]
    let count = latencies.len() as f64;
    let mean = latencies.iter().sum::<f64>() / count;
    let variance = latencies.iter().map(|ns| (ns - mean).powi(2)).sum::<f64>() / count;
    let percentile = |percent: usize| {
        let at = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        latencies.get(at).copied().unwrap_or(f64::NAN)
    };
    Measurement {
        latency_ns: mean,
        deviation_ns: variance.sqrt(),
        p50_ns: percentile(50),
        p99_ns: percentile(99),
        rate,
        operations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_mean_deviation_and_percentiles() {
        let latencies = (1..=100).map(f64::from).rev().collect();
        let found = summary(latencies, 5.0, 100);
        assert!((found.latency_ns - 50.5).abs() < 1e-9);
        assert!((found.deviation_ns - (9999.0_f64 / 12.0).sqrt()).abs() < 1e-9);
        assert_eq!((found.p50_ns, found.p99_ns), (50.0, 99.0));
        assert_eq!(summary(vec![7.0], 1.0, 1).p99_ns, 7.0);
    }
}
