//! Differences between two samples.

use std::fmt;
use std::time::Duration;

use rackpool_wire::control::RackStatus;

/// Differences between two samples, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) local: f64,
    pub(super) remote: f64,
    pub(super) requests: f64,
    pub(super) copied: f64,
}

impl Rates {
    /// Returns the rates. If the daemon was restarted in between, its counters start at 0.
    pub(super) fn between(before: &RackStatus, now: &RackStatus, wait: Duration) -> Self {
        let restarted = before.pid != now.pid;
        #[expect(clippy::cast_precision_loss, reason = "a number for people")]
        let rate = |before: u64, now: u64| {
            let count = if restarted { now } else { now.saturating_sub(before) };
            count as f64 / wait.as_secs_f64().max(1e-3)
        };
        Self {
            local: rate(before.local_accesses, now.local_accesses),
            remote: rate(before.remote_operations, now.remote_operations),
            requests: rate(before.requests, now.requests),
            copied: rate(before.swaps.copied_bytes, now.swaps.copied_bytes),
        }
    }
}

/// Buckets with their upper bounds in microseconds, as daemons report them.
type Buckets = [(Option<u64>, u64)];

/// Returns the counts since `before`, or all counts if `before` is of another daemon.
pub(super) fn since(before: &Buckets, now: &Buckets) -> Vec<(Option<u64>, u64)> {
    let fits = before.len() == now.len()
        && before.iter().zip(now).all(|(old, new)| old.0 == new.0 && old.1 <= new.1);
    let old = |at: usize| if fits { before[at].1 } else { 0 };
    now.iter().enumerate().map(|(at, (bound, count))| (*bound, count - old(at))).collect()
}

/// The upper bound of a quantile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Nothing was counted.
    None,
    /// At most this many microseconds.
    Micros(u64),
    /// More than the largest bound.
    VeryLong,
}

impl Bound {
    /// The sort key.
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    pub(super) const fn key(self) -> f64 {
        match self {
            Self::None => -1.0,
            Self::Micros(us) => us as f64,
            Self::VeryLong => f64::INFINITY,
        }
    }

    /// The bound in microseconds, if there is one.
    pub(super) const fn micros(self) -> Option<u64> {
        match self {
            Self::Micros(us) => Some(us),
            Self::None | Self::VeryLong => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::None => f.write_str("-"),
            Self::Micros(us) => write!(f, "<{}", micros(us)),
            Self::VeryLong => f.write_str("very long"),
        }
    }
}

/// Returns the bucket bound that a share of all counts does not exceed.
pub(super) fn quantile(buckets: &Buckets, share: f64) -> Bound {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return Bound::None;
    }
    #[expect(clippy::cast_precision_loss, reason = "a number for people")]
    let wanted = total as f64 * share;
    let mut sum = 0;
    for (bound, count) in buckets {
        sum += count;
        #[expect(clippy::cast_precision_loss, reason = "a number for people")]
        let reached = sum > 0 && sum as f64 >= wanted;
        if reached {
            return bound.map_or(Bound::VeryLong, Bound::Micros);
        }
    }
    Bound::None
}

fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us}us"),
        1000..1_000_000 => format!("{}ms", us / 1000),
        _ => format!("{}s", us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_and_of_one_daemon() {
        let before = RackStatus { pid: 1, remote_operations: 100, ..RackStatus::default() };
        let now = RackStatus { pid: 1, remote_operations: 300, ..RackStatus::default() };
        let wait = Duration::from_millis(500);
        assert_eq!(Rates::between(&before, &now, wait).remote, 400.0);
        let restarted = RackStatus { pid: 2, remote_operations: 50, ..RackStatus::default() };
        assert_eq!(Rates::between(&before, &restarted, wait).remote, 100.0);
    }

    #[test]
    fn quantiles_are_of_what_was_counted_since() {
        let before = [(Some(10), 5), (Some(2000), 0), (None, 0)];
        let now = [(Some(10), 5), (Some(2000), 9), (None, 1)];
        let counted = since(&before, &now);
        assert_eq!(counted, [(Some(10), 0), (Some(2000), 9), (None, 1)]);
        assert_eq!(quantile(&counted, 0.5).to_string(), "<2ms");
        assert_eq!(quantile(&counted, 0.99).to_string(), "very long");
        assert_eq!(quantile(&[], 0.5).to_string(), "-");
        assert_eq!(since(&now, &before)[0], (Some(10), 5), "another daemon: all of it");
    }
}
