//! The bandwidth budget of page copies.

use std::time::{Duration, Instant};

/// A token bucket of bytes that fills at a steady rate, up to a second's worth. One copy may take
/// more than the bucket holds; the next copies wait until the debt is paid.
#[derive(Debug)]
pub(in crate::data_plane) struct BandwidthBudget {
    bytes_per_second: u64,
    /// When the bucket will be full.
    full_at: Instant,
}

/// The capacity of the bucket, as time.
const FULL: Duration = Duration::from_secs(1);

impl BandwidthBudget {
    /// Creates a full bucket. With 0 bytes a second there is no limit.
    pub(super) const fn new(now: Instant, bytes_per_second: u64) -> Self {
        Self { bytes_per_second, full_at: now }
    }

    /// Returns true if a copy may begin.
    pub(in crate::data_plane) fn has_any(&self, now: Instant) -> bool {
        self.full_at.saturating_duration_since(now) < FULL
    }

    /// Takes the bytes of a copy that begins.
    pub(super) fn take(&mut self, now: Instant, bytes: u64) {
        if self.bytes_per_second > 0 {
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            // Limits the debt to a minute.
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
        let mut budget = BandwidthBudget::new(start, 4 << 20);
        let mut copies = 0;
        for milli in 0..10_000 {
            let now = start + Duration::from_millis(milli);
            if budget.has_any(now) {
                budget.take(now, 2 << 20);
                copies += 1;
            }
        }
        // Two a second, and the second's worth in the bucket at the start.
        assert!((20..=23).contains(&copies), "{copies} copies");
    }

    #[test]
    fn without_a_rate_nothing_is_refused() {
        let start = Instant::now();
        let mut budget = BandwidthBudget::new(start, 0);
        (0..100).for_each(|_| budget.take(start, u64::MAX));
        assert!(budget.has_any(start));
    }
}
