//! The lines of another rack that a thread reads and writes in its own memory while it has their
//! lock. The protocol is in docs/design/line-cache.md.

use rackpool_model::MAX_LOCK_LINES;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

const LINES: usize = MAX_LOCK_LINES as usize;

/// Which bytes of a claim's cache were written, under which lock. The thread writes it, the daemon
/// reads it. The bytes themselves are beside it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LineMasks {
    /// The daemon's number of the lock, 0 for none.
    number: AtomicU64,
    /// A bit for each line of which bytes were written.
    written: AtomicU64,
    /// For each written line a bit for each written byte.
    bytes: [AtomicU64; LINES],
}

/// The claim whose cache the thread reads or writes at the moment.
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
        Self { number: zero(), written: zero(), bytes }
    }
}

impl LineMasks {
    /// Begins to cache the lines of a lock; no byte is written.
    pub fn begin(&self, number: u64) {
        self.end();
        self.written.store(0, Ordering::Relaxed);
        // SYNC: pairs with the load in `written_under`: no bit of an earlier lock is set.
        self.number.store(number, Ordering::Release);
    }

    /// Ends the use of the cache: the daemon takes nothing from it any more.
    pub fn end(&self) {
        self.number.store(0, Ordering::Release);
    }

    /// The daemon's number of the lock, 0 for none.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

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
            // SYNC: both pair with the loads in `written_under`, if the daemon reads while the
            // thread still runs: bytes and their bits are there before they are counted.
            of_line.store(all, Ordering::Release);
            let lines = self.written.load(Ordering::Relaxed) | 1 << line;
            self.written.store(lines, Ordering::Release);
        }
    }

    /// Notes that all written bytes are at the home.
    pub fn set_written_back(&self) {
        self.written.store(0, Ordering::Release);
    }

    /// Returns true if bytes were written and are not written back.
    #[inline]
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.written.load(Ordering::Relaxed) != 0
    }

    /// The lines with bytes that were written under the lock of this number, and the bytes' bits.
    pub fn written_under(&self, number: u64) -> impl Iterator<Item = (u8, u64)> {
        let is_of_lock = number != 0 && self.number.load(Ordering::Acquire) == number;
        let written = if is_of_lock { self.written.load(Ordering::Acquire) } else { 0 };
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

    /// Announces that the thread begins to read or write the cache of a claim. It then checks that
    /// the lock is not lost.
    #[inline]
    pub fn begin(&self, claim: u8, barrier: Barrier) {
        self.0.store(u64::from(claim) + 1, Ordering::Relaxed);
        // SYNC: pairs with the `heavy` barrier that the daemon executes between setting the lost
        // bit and loading this cell.
        barrier.stand();
    }

    /// The thread has read or written what it wanted.
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
        masks.begin(7);
        masks.set_written(3, 0xf0);
        masks.set_written(3, 0x01);
        masks.set_written(63, u64::MAX);
        let written = |number| masks.written_under(number).collect::<Vec<_>>();
        assert_eq!(written(7), [(3, 0xf1), (63, u64::MAX)]);
        assert_eq!(written(6), []);
        masks.begin(8);
        assert!(written(8).is_empty() && !masks.is_dirty());
        masks.set_written(3, 2);
        assert_eq!(written(8), [(3, 2)]);
        masks.end();
        assert!(written(8).is_empty() && written(0).is_empty());
    }
}
