//! Dirty logs: the lines that a thread writes in dirty-logged pages. The thread logs a line before
//! it stores to it, so that the daemon can send the page's new home the lines that its copy lacks.

use std::ops::RangeInclusive;
use std::sync::atomic::compiler_fence;

use rackpool_model::FrameId;
use rackpool_sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
use crate::Shared;

/// Bytes of a line, the unit of the log.
pub const LINE_BYTES: u64 = 64;
/// Longest write in bytes that one entry can log.
pub const LONGEST: usize = 4096;
/// Number of entries that the log holds until the daemon takes them.
pub const KEPT: usize = 30;

/// A thread's dirty log in its client's file: 256 B.
///
/// ```text
///  0  noted 8 B | taken 8 B
/// 16  writes: 30 of 8 B: lines - 1 7 bits | first line 25 bits | frame 32 bits
/// ```
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DirtyLog {
    /// Number of entries logged so far. Written by the client.
    noted: AtomicU64,
    /// Number of entries that the daemon has taken. Written by the daemon.
    taken: AtomicU64,
    writes: [AtomicU64; KEPT],
}

/// The offsets of docs/design/rack-memory.md.
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<DirtyLog>() == 256, "256 B a thread");
    assert!(offset_of!(DirtyLog, noted) == 0 && offset_of!(DirtyLog, taken) == 8);
    assert!(offset_of!(DirtyLog, writes) == 16);
};

// SAFETY: `repr(C)`, nothing but atomic integers.
#[cfg(not(loom))]
unsafe impl Shared for DirtyLog {}

/// Consecutive lines of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoggedWrite {
    frame: FrameId,
    first: u32,
    last: u32,
}

impl LoggedWrite {
    const FIRST_SHIFT: u32 = 32;
    const MORE_SHIFT: u32 = 57;
    const MOST_LINE: u64 = (1 << (Self::MORE_SHIFT - Self::FIRST_SHIFT)) - 1;

    /// The lines that `len` bytes at `offset` of a frame touch. Returns `None` if an entry cannot
    /// express them.
    fn new(frame: FrameId, offset: u64, len: usize) -> Option<Self> {
        if len == 0 || len > LONGEST {
            return None;
        }
        let last = offset.checked_add(len as u64 - 1)? / LINE_BYTES;
        let line = |line: u64| u32::try_from(line).ok().filter(|_| line <= Self::MOST_LINE);
        Some(Self { frame, first: line(offset / LINE_BYTES)?, last: line(last)? })
    }

    fn to_raw(self) -> u64 {
        let more = u64::from(self.last - self.first);
        let first = u64::from(self.first);
        more << Self::MORE_SHIFT | first << Self::FIRST_SHIFT | u64::from(self.frame.0)
    }

    #[expect(clippy::cast_possible_truncation, reason = "parts of a word")]
    const fn from_raw(raw: u64) -> Self {
        let first = (raw >> Self::FIRST_SHIFT & Self::MOST_LINE) as u32;
        let more = (raw >> Self::MORE_SHIFT) as u32;
        Self { frame: FrameId(raw as u32), first, last: first + more }
    }
}

impl DirtyLog {
    /// The cell of the entry with this number.
    fn place(&self, number: u64) -> Option<&AtomicU64> {
        self.writes.get(usize::try_from(number % KEPT as u64).ok()?)
    }

    /// Logs that `len` bytes at `offset` of a frame will be written. Returns false, with nothing
    /// logged, if the log is full until the daemon takes its entries, or if one entry cannot
    /// express the bytes.
    ///
    /// The caller must have entered the frame under a dirty-logged page word.
    #[must_use]
    pub fn note(&self, frame: FrameId, offset: u64, len: usize) -> bool {
        let Some(write) = LoggedWrite::new(frame, offset, len).map(LoggedWrite::to_raw) else {
            return false;
        };
        let noted = self.noted.load(Ordering::Relaxed);
        // SYNC: pairs with the store in `take`.
        let waiting = noted.wrapping_sub(self.taken.load(Ordering::Acquire));
        let is_last = |place: &AtomicU64| place.load(Ordering::Relaxed) == write;
        // An entry that the daemon takes at this time is not lost: the page is dirty-logged, so the
        // daemon records its lines. An entry that was taken before the page was dirty-logged is
        // counted in `taken`.
        if (1..=KEPT as u64).contains(&waiting)
            && self.place(noted.wrapping_sub(1)).is_some_and(is_last)
        {
            return true;
        }
        let Some(place) = self.place(noted).filter(|_| waiting < KEPT as u64) else { return false };
        place.store(write, Ordering::Relaxed);
        // SYNC: pairs with the load in `take`.
        self.noted.store(noted.wrapping_add(1), Ordering::Release);
        // SYNC: orders the entry before the write: a thread that dies in the middle of its write
        // has logged it.
        compiler_fence(Ordering::SeqCst);
        true
    }

    /// Passes the last logged entry to `each`, taken or not: its thread may still be about to
    /// write. The daemon must not trust the entry.
    pub fn look_at_last(&self, each: impl FnOnce(FrameId, RangeInclusive<u32>)) {
        // SYNC: pairs with the store in `note`.
        let noted = self.noted.load(Ordering::Acquire);
        if let Some(place) = noted.checked_sub(1).and_then(|last| self.place(last)) {
            let LoggedWrite { frame, first, last } =
                LoggedWrite::from_raw(place.load(Ordering::Relaxed));
            each(frame, first..=last);
        }
    }

    /// Passes the entries since the last call to `each`. The daemon must not trust them: the client
    /// can write anything there.
    pub fn take(&self, mut each: impl FnMut(FrameId, RangeInclusive<u32>)) {
        // SYNC: pairs with the store in `note`.
        let noted = self.noted.load(Ordering::Acquire);
        let new = noted.wrapping_sub(self.taken.load(Ordering::Relaxed)).min(KEPT as u64);
        if new == 0 {
            return;
        }
        for back in (1..=new).rev() {
            let number = noted.wrapping_sub(back);
            let Some(place) = self.place(number) else { continue };
            let LoggedWrite { frame, first, last } =
                LoggedWrite::from_raw(place.load(Ordering::Relaxed));
            each(frame, first..=last);
        }
        // SYNC: pairs with the load in `note`: the entry was read before its cell is reused.
        self.taken.store(noted, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(lines: &DirtyLog) -> Vec<(u32, RangeInclusive<u32>)> {
        let mut all = Vec::new();
        lines.take(|frame, lines| all.push((frame.0, lines)));
        all
    }

    #[test]
    fn what_is_noted_is_taken_once_and_in_order() {
        let lines = DirtyLog::default();
        assert!(lines.note(FrameId(3), 0, 1) && lines.note(FrameId(u32::MAX), 63, 2));
        assert_eq!(taken(&lines), [(3, 0..=0), (u32::MAX, 0..=1)]);
        assert_eq!(taken(&lines), []);
        assert!(lines.note(FrameId(3), 4096 + 60, LONGEST));
        assert_eq!(taken(&lines), [(3, 64..=128)]);
    }

    #[test]
    fn without_room_nothing_is_noted_until_it_is_taken() {
        let lines = DirtyLog::default();
        for number in 0..KEPT as u64 {
            assert!(lines.note(FrameId(0), number * LINE_BYTES, 64));
        }
        assert!(!lines.note(FrameId(0), 0, 64), "there is no room");
        assert!(lines.note(FrameId(0), (KEPT as u64 - 1) * LINE_BYTES, 64), "that is noted");
        assert_eq!(taken(&lines).len(), KEPT);
        assert!(lines.note(FrameId(0), 0, 64));
    }

    #[test]
    fn the_same_line_is_noted_again_once_it_was_taken() {
        let lines = DirtyLog::default();
        for _ in 0..2 {
            assert!(lines.note(FrameId(1), 128, 8) && lines.note(FrameId(1), 136, 8));
            assert_eq!(taken(&lines), [(1, 2..=2)]);
        }
    }

    #[test]
    fn what_was_noted_last_is_found_though_it_was_taken() {
        let lines = DirtyLog::default();
        lines.look_at_last(|_, _| panic!("nothing was noted"));
        assert!(lines.note(FrameId(1), 0, 8) && lines.note(FrameId(2), 64, 8));
        taken(&lines);
        let mut last = None;
        lines.look_at_last(|frame, lines| last = Some((frame.0, lines)));
        assert_eq!(last, Some((2, 1..=1)));
    }

    #[test]
    fn what_can_not_be_noted_is_refused() {
        let lines = DirtyLog::default();
        assert!(!lines.note(FrameId(0), 0, 0) && !lines.note(FrameId(0), 0, LONGEST + 1));
        assert!(!lines.note(FrameId(0), u64::MAX, 8));
        assert!(!lines.note(FrameId(0), (LoggedWrite::MOST_LINE + 1) * LINE_BYTES, 8));
        assert!(lines.note(FrameId(0), LoggedWrite::MOST_LINE * LINE_BYTES, 64));
        assert_eq!(taken(&lines).len(), 1);
    }

    #[test]
    fn garbage_is_taken_as_some_lines() {
        let lines = DirtyLog::default();
        lines.noted.store(u64::MAX, Ordering::Relaxed);
        lines.taken.store(7, Ordering::Relaxed);
        lines.writes[5].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(taken(&lines).len(), KEPT);
        assert_eq!(taken(&lines), []);
    }

    proptest! {
        #[test]
        fn each_byte_lies_in_a_line_that_is_noted(
            offset in 0..1_u64 << 31,
            len in 1..=LONGEST,
            at in 0..LONGEST,
        ) {
            let lines = DirtyLog::default();
            prop_assume!(offset + (len as u64) < 1 << 31);
            prop_assert!(lines.note(FrameId(9), offset, len));
            let line = u32::try_from((offset + (at % len) as u64) / LINE_BYTES).unwrap();
            prop_assert!(taken(&lines)[0].1.contains(&line));
        }
    }
}
