//! How requests for locks are decided and how locks end, between a client, its daemon and the
//! page's home.

use std::ops::Range;
use std::time::Duration;

use bincode::{Decode, Encode};
use rackpool_model::{LOCK_LINE_BYTES, MAX_LOCK_LINES, byte_runs};

/// How long a holder reads lines of another rack that it has cached, from its request for them on,
/// by its own clock: as long as a replica is read without a renewal.
pub const CACHED_READS: Duration = Duration::from_millis(250);

/// The outcome of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LockOutcome {
    /// The lock is held.
    Granted {
        /// Whether a writer ended without an unlock since the last writer that unlocked.
        recovered: bool,
    },
    /// The request waits. A message follows. Between racks only.
    Queued,
    /// The time of the request has passed.
    TimedOut,
    /// The page is not here, or leaves: the client asks again.
    Moved,
}

/// How a lock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LockEnd {
    /// Its holder has unlocked.
    Unlocked,
    /// Its holder ended without an unlock, or lost the lock.
    Abandoned,
    /// Its requester never had it: the request was given up.
    Withdrawn,
}

/// Bytes of the lines of a lock that its holder has written and not written back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct WrittenBytes {
    /// The lines with such bytes in ascending order, counted from the lock's first one, and a bit
    /// for each byte of the line.
    pub lines: Vec<(u8, u64)>,
    /// These bytes, in the order of their addresses.
    pub bytes: Vec<u8>,
}

/// Consecutive written bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRun {
    /// Offset of the first byte from the first byte of the lock.
    pub offset: u64,
    /// Their place in [`WrittenBytes::bytes`].
    pub bytes: Range<usize>,
}

impl WrittenBytes {
    /// The runs of bytes, in the order of their addresses. `None` if the lines are not those of a
    /// lock in ascending order, or if the number of bytes is not that of the bits.
    ///
    /// ```
    /// use rackpool_wire::lock::WrittenBytes;
    ///
    /// // The last two bytes of line 0, and the first one and the last one of line 1.
    /// let lines = vec![(0, 0b11 << 62), (1, 1 << 63 | 1)];
    /// let runs = WrittenBytes { lines, bytes: vec![7; 4] }.runs().expect("as many bytes as bits");
    /// assert_eq!((runs[0].offset, runs[0].bytes.clone()), (62, 0..3));
    /// assert_eq!((runs[1].offset, runs[1].bytes.clone()), (127, 3..4));
    /// ```
    #[must_use]
    pub fn runs(&self) -> Option<Vec<WrittenRun>> {
        let is_ascending = self.lines.windows(2).all(|two| two[0].0 < two[1].0);
        let has_all = self.lines.last().is_none_or(|last| u32::from(last.0) < MAX_LOCK_LINES);
        let count: u64 = self.lines.iter().map(|(_, bytes)| u64::from(bytes.count_ones())).sum();
        if !is_ascending || !has_all || count != self.bytes.len() as u64 {
            return None;
        }
        let mut runs: Vec<WrittenRun> = Vec::new();
        for (line, bytes) in &self.lines {
            for run in byte_runs(*bytes) {
                let offset = u64::from(*line) * LOCK_LINE_BYTES + u64::from(run.start);
                let (from, len) = (runs.last().map_or(0, |last| last.bytes.end), run.len());
                match runs.last_mut() {
                    Some(last) if last.offset + last.bytes.len() as u64 == offset => {
                        last.bytes.end += len;
                    }
                    _ => runs.push(WrittenRun { offset, bytes: from..from + len }),
                }
            }
        }
        Some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_fit_no_lock_are_refused() {
        let runs = |lines: &[(u8, u64)], len| {
            WrittenBytes { lines: lines.to_vec(), bytes: vec![0; len] }.runs()
        };
        assert_eq!(runs(&[], 0), Some(vec![]));
        assert_eq!(runs(&[(63, 1)], 1).unwrap()[0].offset, 63 * 64);
        assert_eq!(runs(&[(64, 1)], 1), None);
        assert_eq!(runs(&[(1, 1), (1, 2)], 2), None);
        assert_eq!(runs(&[(2, 1), (1, 1)], 2), None);
        assert_eq!(runs(&[(0, 3)], 1), None);
        assert_eq!(runs(&[(0, 3)], 3), None);
    }
}
