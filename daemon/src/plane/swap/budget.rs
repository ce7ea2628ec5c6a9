//! How much of the fabric copies of pages may take.

use std::time::{Duration, Instant};

/// A bucket of bytes that fills at a steady rate, up to a second's worth. A copy may take more than
/// there is, once: the next ones wait until that is made up for.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_per_second: u64,
    /// When the bucket will be full.
    full_at: Instant,
}

/// What the bucket holds when it is full.
const FULL: Duration = Duration::from_secs(1);

impl Budget {
    /// A full bucket. Nothing is ever refused with 0 bytes a second.
    pub(super) const fn new(now: Instant, bytes_per_second: u64) -> Self {
        Self { bytes_per_second, full_at: now }
    }

    /// Whether a copy may begin.
    pub(super) fn has_any(&self, now: Instant) -> bool {
        self.full_at.saturating_duration_since(now) < FULL
    }

    /// A copy begins.
    pub(super) fn take(&mut self, now: Instant, bytes: u64) {
        if self.bytes_per_second > 0 {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            // No debt outlives a minute, whatever is copied.
            self.full_at = self.full_at.max(now) + wait.min(60 * FULL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_its_rate_says() {
        let start = Instant::now();
        let mut budget = Budget::new(start, 4 << 20);
        let mut copies = 0;
        for milli in 0..10_000 {
            let now = start + Duration::from_millis(milli);
            if budget.has_any(now) {
                budget.take(now, 2 << 20);
                copies += 1;
            }
        }
        // Two a second, and the second's worth that was there at first.
        assert!((20..=23).contains(&copies), "{copies} copies");
    }

    #[test]
    fn without_a_rate_nothing_is_refused() {
        let start = Instant::now();
        let mut budget = Budget::new(start, 0);
        (0..100).for_each(|_| budget.take(start, u64::MAX));
        assert!(budget.has_any(start));
    }
}
