//! Logging of pool failures, rate-limited.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rackpool_fs::FsError;

use crate::metrics::FileMetrics;

/// At most one line in this time.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Failures {
    metrics: Arc<FileMetrics>,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    last: Option<Instant>,
    unsaid: u64,
}

impl Failures {
    /// Returns a counter without failures.
    pub(super) fn counted(metrics: &Arc<FileMetrics>) -> Self {
        Self { metrics: Arc::clone(metrics), noted: Mutex::default() }
    }

    /// Counts a failure, and logs a line if one is due.
    pub(super) fn note(&self, what: &str, error: &FsError) {
        self.metrics.failed();
        if let Some(unsaid) = self.due(Instant::now()) {
            tracing::error!("{what} failed: {error} ({unsaid} more failures since the last line)");
        }
    }

    /// Returns the number of failures not logged since the last line, if a line is due.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            noted.unsaid += 1;
            return None;
        }
        noted.last = Some(now);
        Some(std::mem::take(&mut noted.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_counted() {
        let (failures, start) = (Failures::counted(&Arc::default()), Instant::now());
        assert_eq!(failures.due(start), Some(0));
        assert_eq!(failures.due(start), None);
        assert_eq!(failures.due(start), None);
        assert_eq!(failures.due(start + PAUSE), Some(2));
    }
}
