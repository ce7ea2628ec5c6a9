//! A claim's line cache: its masks and its lines. docs/design/line-cache.md has the protocol.

use rackpool_model::{LOCK_LINE_BYTES, MAX_LOCK_LINES, byte_runs};
use rackpool_shm::line_cache::LineMasks;
use rackpool_shm::{Mapping, OutsideMapping};
use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a line.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const LINE: usize = LOCK_LINE_BYTES as usize;

/// The line cache of a claim, as its thread or the daemon sees it. Offsets are in bytes from the
/// lock's first byte, and within the longest lock.
#[derive(Debug)]
pub struct LineCache<'a> {
    /// The daemon's number of the lock whose lines are cached, 0 for none: in the thread's slot, so
    /// that the daemon looks at the rest only if the client has allocated it.
    number: &'a AtomicU64,
    /// Which bytes were written.
    masks: &'a LineMasks,
    memory: &'a Mapping,
    start: u64,
}

/// The parts of `len` bytes from `offset` on that lie in one line: the line, and a bit for each
/// byte.
fn lines_of(offset: u64, len: usize) -> impl Iterator<Item = (u32, u64)> {
    let end = offset.saturating_add(len as u64).min(u64::from(MAX_LOCK_LINES) * LOCK_LINE_BYTES);
    let mut at = offset;
    std::iter::from_fn(move || {
        let rest = end.checked_sub(at).filter(|rest| *rest > 0)?;
        let (line, within) = (at / LOCK_LINE_BYTES, at % LOCK_LINE_BYTES);
        let here = rest.min(LOCK_LINE_BYTES - within);
        at += here;
        let bytes = u64::MAX >> (LOCK_LINE_BYTES - here) << within;
        Some((u32::try_from(line).ok()?, bytes))
    })
}

impl<'a> LineCache<'a> {
    pub(crate) const fn new(
        number: &'a AtomicU64,
        masks: &'a LineMasks,
        memory: &'a Mapping,
        start: u64,
    ) -> Self {
        Self { number, masks, memory, start }
    }

    /// Begins to cache the lines of a lock; no byte is written.
    pub fn begin(&self, number: u64) {
        self.end();
        self.masks.clear();
        // SYNC: pairs with the load in `is_of`: no bit of an earlier lock is set.
        self.number.store(number, Ordering::Release);
    }

    /// Ends the use of the cache: the daemon takes nothing from it any more.
    pub fn end(&self) {
        self.number.store(0, Ordering::Release);
    }

    /// Returns true if the lines of the lock with this number are cached.
    #[must_use]
    pub fn is_of(&self, number: u64) -> bool {
        // SYNC: pairs with the store in `begin`.
        number != 0 && self.number.load(Ordering::Acquire) == number
    }

    /// Returns true if bytes were written and are not written back.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.masks.is_dirty()
    }

    /// Notes that all written bytes are at the home.
    pub fn set_written_back(&self) {
        self.masks.clear();
    }

    /// Copies bytes out of the cache. They were taken from the home, or written.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutsideMapping> {
        self.memory.read(self.start + offset, into)
    }

    /// Copies bytes into the cache and marks them as written.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutsideMapping> {
        self.memory.write(self.start + offset, from)?;
        lines_of(offset, from.len()).for_each(|(line, bytes)| self.masks.set_written(line, bytes));
        Ok(())
    }

    /// Takes all lines of the lock from the home. Bytes that were written stay.
    pub fn fill(&self, from: &[u8]) -> Result<(), OutsideMapping> {
        if !self.masks.is_dirty() {
            return self.memory.write(self.start, from);
        }
        for (line, bytes) in (0..MAX_LOCK_LINES).zip(from.chunks_exact(LINE)) {
            let start = self.start + u64::from(line) * LOCK_LINE_BYTES;
            for run in byte_runs(!self.masks.written_bytes(line)) {
                let part = &bytes[run.start as usize..run.end as usize];
                self.memory.write(start + u64::from(run.start), part)?;
            }
        }
        Ok(())
    }

    /// The lines with written bytes, and a bit for each of these bytes.
    #[must_use]
    pub fn written_lines(&self) -> Vec<(u8, u64)> {
        self.masks.written_lines().collect()
    }

    /// The bytes of these lines whose bits are set, one after the other.
    pub fn bytes_of(&self, lines: &[(u8, u64)]) -> Result<Vec<u8>, OutsideMapping> {
        let mut all = Vec::new();
        for (line, bytes) in lines {
            let mut of_line = [0; LINE];
            self.memory.read(self.start + u64::from(*line) * LOCK_LINE_BYTES, &mut of_line)?;
            byte_runs(*bytes)
                .for_each(|run| all.extend(&of_line[run.start as usize..run.end as usize]));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> (std::fs::File, Mapping) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let mapping = Mapping::new(&file, 4096).unwrap();
        (file, mapping)
    }

    #[test]
    fn written_bytes_stay_when_their_line_comes_from_the_home() {
        let ((_file, memory), masks) = (memory(), LineMasks::default());
        let number = AtomicU64::new(0);
        let cache = LineCache::new(&number, &masks, &memory, 0);
        cache.begin(1);
        cache.write(60, &[1; 8]).unwrap();
        cache.fill(&[9; 128]).unwrap();
        let mut found = [0; 128];
        cache.read(0, &mut found).unwrap();
        let byte = |at| if (60..68).contains(&at) { 1 } else { 9 };
        assert_eq!(found[..], (0..128).map(byte).collect::<Vec<u8>>());
        let lines = cache.written_lines();
        assert_eq!(lines, [(0, 0b1111 << 60), (1, 0b1111)]);
        assert_eq!(cache.bytes_of(&lines).unwrap(), [1; 8]);
        assert!(cache.is_of(1) && !cache.is_of(2) && !cache.is_of(0));
        cache.set_written_back();
        cache.fill(&[7; 128]).unwrap();
        cache.read(0, &mut found).unwrap();
        assert_eq!(found, [7; 128]);
        cache.write(0, &[3]).unwrap();
        cache.begin(2);
        assert!(cache.is_of(2) && !cache.is_dirty());
        cache.end();
        assert!(!cache.is_of(2) && !cache.is_of(0));
    }

    #[test]
    fn each_byte_of_a_write_has_a_bit() {
        assert_eq!(lines_of(4032, 64).collect::<Vec<_>>(), [(63, u64::MAX)]);
        assert_eq!(lines_of(4095, 9).collect::<Vec<_>>(), [(63, 1 << 63)]);
        assert_eq!(lines_of(60, 8).collect::<Vec<_>>(), [(0, 0b1111 << 60), (1, 0b1111)]);
        assert_eq!(lines_of(0, 4096).count(), 64);
    }
}
