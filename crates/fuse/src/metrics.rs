//! The metrics of a mount, for Prometheus.

use std::fmt;
use std::sync::{Arc, Weak};

use rackpool_client::Pool;
use rackpool_metrics::{Page, Source, Unit};
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::device::opcode;

/// Kinds of requests with a counter of their own; all others count as the last.
const KINDS: [(&str, &[u32]); 8] = [
    ("read", &[opcode::READ]),
    ("write", &[opcode::WRITE]),
    ("lookup", &[opcode::LOOKUP]),
    ("attributes", &[opcode::GETATTR, opcode::SETATTR]),
    ("open", &[opcode::OPEN, opcode::CREATE, opcode::TMPFILE, opcode::OPENDIR]),
    ("list", &[opcode::READDIR]),
    ("sync", &[opcode::FSYNC, opcode::FSYNCDIR, opcode::FLUSH]),
    ("other", &[]),
];

/// Counters since the mount was made.
#[derive(Debug, Default)]
pub(crate) struct FileMetrics {
    requests: [AtomicU64; KINDS.len()],
    failed: AtomicU64,
}

impl FileMetrics {
    /// Counts a request of the kernel.
    pub(crate) fn asked(&self, opcode: u32) {
        let kind = KINDS.iter().position(|(_, opcodes)| opcodes.contains(&opcode));
        self.requests[kind.unwrap_or(KINDS.len() - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that failed through no fault of the program.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The metrics page of a mount.
pub(crate) struct MountMetrics {
    pub(crate) metrics: Arc<FileMetrics>,
    /// Weak: the mount closes the pool at its end.
    pub(crate) pool: Weak<Pool>,
}

impl Source for MountMetrics {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        let metrics = &*self.metrics;
        let requests: Vec<(&str, u64)> = KINDS
            .iter()
            .zip(&metrics.requests)
            .map(|((name, _), count)| (*name, count.load(Ordering::Relaxed)))
            .collect();
        let help = "Requests of the kernel.";
        page.counters("mount_requests", "kind", help, Unit::None, &requests)?;
        let failed = metrics.failed.load(Ordering::Relaxed);
        let help = "Requests that failed because of the pool, not of the program.";
        page.counter("mount_failures", help, Unit::None, failed)
    }

    fn health(&self) -> Result<(), String> {
        let pool = self.pool.upgrade().ok_or("the mount ends")?;
        pool.check_served().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart_and_none_is_forgotten() {
        let metrics = FileMetrics::default();
        for opcode in [opcode::READ, opcode::READ, opcode::SETATTR, 9999] {
            metrics.asked(opcode);
        }
        let counts = metrics.requests.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [2, 0, 0, 1, 0, 0, 0, 1]);
    }
}
