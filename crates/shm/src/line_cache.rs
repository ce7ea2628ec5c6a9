//! The lines of another rack that a thread reads and writes in its own memory while it has their
//! lock. The protocol is in docs/design/line-cache.md.

use rackpool_model::MAX_LOCK_LINES;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

const LINES: usize = MAX_LOCK_LINES as usize;

/// Which bytes of a claim's cache were written. The thread writes it, the daemon reads it. The
/// bytes themselves are beside it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LineMasks {
    /// A bit for each line of which bytes were written.
    written: AtomicU64,
    /// For each written line a bit for each written byte.
    bytes: [AtomicU64; LINES],
}

/// The claim in whose cache the thread stores bytes at the moment.
#[derive(Debug)]
#[repr(transparent)]
pub struct CopyingCell(AtomicU64);

#[cfg(not(loom))]
// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl crate::Shared for LineMasks {}
#[cfg(not(loom))]
// SAFETY: transparent around one atomic integer.
unsafe impl crate::Shared for CopyingCell {}

impl Default for LineMasks {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        let bytes = core::array::from_fn(|_| zero());
        Self { written: zero(), bytes }
    }
}

impl LineMasks {
    /// A bit for each byte of a line that was written.
    #[must_use]
    pub fn written_bytes(&self, line: u32) -> u64 {
        let is_written = self.written.load(Ordering::Relaxed) >> line & 1 != 0;
        let bytes = self.bytes.get(line as usize).filter(|_| is_written);
        bytes.map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// Notes that bytes of a line were written. They are in the cache.
    #[inline]
    pub fn set_written(&self, line: u32, bytes: u64) {
        let all = self.written_bytes(line) | bytes;
        if let Some(of_line) = self.bytes.get(line as usize) {
            // SYNC: both pair with the loads in `written_lines`, if the daemon reads while the
            // thread still runs: bytes and their bits are there before they are counted.
            of_line.store(all, Ordering::Release);
            let lines = self.written.load(Ordering::Relaxed) | 1 << line;
            self.written.store(lines, Ordering::Release);
        }
    }

    /// Notes that all written bytes are at the home, or that they are another lock's.
    pub fn clear(&self) {
        self.written.store(0, Ordering::Release);
    }

    /// Returns true if bytes were written and are not written back.
    #[inline]
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.written.load(Ordering::Relaxed) != 0
    }

    /// The lines with bytes that were written, and the bytes' bits.
    pub fn written_lines(&self) -> impl Iterator<Item = (u8, u64)> {
        let written = self.written.load(Ordering::Acquire);
        let lines = (0..).zip(&self.bytes).filter(move |(line, _)| written >> *line & 1 != 0);
        lines.map(|(line, bytes): (u8, _)| (line, bytes.load(Ordering::Acquire)))
    }
}

impl CopyingCell {
    /// No claim.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces that the thread begins to store bytes in the cache of a claim. It then checks that
    /// the lock is not lost.
    #[inline]
    pub fn begin(&self, claim: u8, barrier: Barrier) {
        self.0.store(u64::from(claim) + 1, Ordering::Relaxed);
        // SYNC: pairs with the `heavy` barrier that the daemon executes between setting the lost
        // bit and loading this cell.
        barrier.stand();
    }

    /// The thread has stored what it wanted.
    #[inline]
    pub fn end(&self) {
        // SYNC: pairs with the load in `claim`: what the thread wrote is complete.
        self.0.store(0, Ordering::Release);
    }

    /// Returns the claim that is announced.
    #[must_use]
    pub fn claim(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Acquire).checked_sub(1)?).ok()
    }
}

impl Default for CopyingCell {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bits_of_an_earlier_lock_are_forgotten() {
        let masks = LineMasks::default();
        masks.set_written(3, 0xf0);
        masks.set_written(3, 0x01);
        masks.set_written(63, u64::MAX);
        let written = || masks.written_lines().collect::<Vec<_>>();
        assert_eq!(written(), [(3, 0xf1), (63, u64::MAX)]);
        assert!(masks.is_dirty());
        masks.clear();
        assert!(written().is_empty() && !masks.is_dirty());
        masks.set_written(3, 2);
        assert_eq!(written(), [(3, 2)]);
    }
}
