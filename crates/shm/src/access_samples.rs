//! Access samples of a thread, which the daemon collects from time to time.
//!
//! The client samples some of its accesses and records for each sample how many accesses it stands
//! for. A thread with few accesses samples one of 16 on average; the more accesses it has made
//! since the last collection, the lower the rate. The memory per thread is therefore constant, the
//! cost of frequent accesses is negligible, and the samples stay unbiased however long the daemon
//! does not collect.

use std::cell::{Cell, RefCell};

use rackpool_model::FrameId;
use rackpool_sync::SplitMix64;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::Shared;
use crate::access::AccessIntent;

/// Initial sampling rate: on average one of this many accesses.
pub const EVERY: u32 = 16;
/// Number of samples kept between two collections.
pub const KEPT: usize = 126;
/// The sampling rate is halved after each this many samples since the last collection.
const STEP: u64 = 16;
/// Number of halvings: the lowest rate is one of 4096 accesses.
const HALVINGS: u64 = 8;

/// A thread's samples in its client's file: 1 KiB.
///
/// ```text
///  0  noted 8 B | collected 8 B
/// 16  notes: 126 of 8 B: accesses 31 bits | whether it wrote 1 bit | frame 32 bits
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct HeatSamples {
    /// Number of samples so far. Written by the client.
    noted: AtomicU64,
    /// Value of `noted` at the daemon's last collection. Written by the daemon.
    collected: AtomicU64,
    notes: [AtomicU64; KEPT],
}

/// The offsets of docs/design/rack-memory.md.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<HeatSamples>() == 1024, "1 KiB a thread is promised");
    assert!(offset_of!(HeatSamples, noted) == 0 && offset_of!(HeatSamples, collected) == 8);
    assert!(offset_of!(HeatSamples, notes) == 16);
};

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for HeatSamples {}

/// A sampled access, and the number of accesses for which it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    frame: FrameId,
    intent: AccessIntent,
    accesses: u32,
}

impl Note {
    const MOST: u32 = u32::MAX >> 1;

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the frame")]
    const fn from_raw(raw: u64) -> Self {
        let intent = if raw >> 32 & 1 == 1 { AccessIntent::Write } else { AccessIntent::Read };
        Self { frame: FrameId(raw as u32), intent, accesses: (raw >> 33) as u32 }
    }

    const fn to_raw(self) -> u64 {
        let wrote = matches!(self.intent, AccessIntent::Write) as u64;
        (self.accesses as u64) << 33 | wrote << 32 | self.frame.0 as u64
    }

    /// Merges two samples: each one represents both with a probability proportional to its
    /// accesses.
    fn merged(self, other: Self, random: u64) -> Self {
        let accesses = self.accesses.saturating_add(other.accesses).min(Self::MOST);
        let stays = below(random, accesses) < self.accesses;
        Self { accesses, ..if stays { self } else { other } }
    }
}

/// Scales the random number `random` to a number below `end`.
const fn below(random: u64, end: u32) -> u32 {
    (((random >> 32) * end as u64) >> 32) as u32
}

impl HeatSamples {
    /// Number of samples since the daemon's last collection.
    fn uncollected(&self) -> u64 {
        let collected = self.collected.load(Ordering::Relaxed);
        self.noted.load(Ordering::Relaxed).wrapping_sub(collected)
    }

    /// Adds a sample. If there is no room, merges it with a randomly chosen one.
    fn add(&self, note: Note, random: &mut SplitMix64) {
        let before = self.uncollected();
        let most = u32::try_from(KEPT).unwrap_or(u32::MAX);
        match usize::try_from(before).ok().and_then(|place| self.notes.get(place)) {
            Some(place) => place.store(note.to_raw(), Ordering::Relaxed),
            None => {
                let Some(place) = self.notes.get(below(random.draw(), most) as usize) else {
                    return;
                };
                let other = Note::from_raw(place.load(Ordering::Relaxed));
                place.store(note.merged(other, random.draw()).to_raw(), Ordering::Relaxed);
            }
        }
        let noted = self.noted.load(Ordering::Relaxed);
        // SYNC: pairs with the load in `collect`.
        self.noted.store(noted.wrapping_add(1), Ordering::Release);
    }

    /// Passes the samples since the last call to `each`: frame, intent and number of accesses. The
    /// daemon must not trust them: the client can write anything there.
    pub fn collect(&self, mut each: impl FnMut(FrameId, AccessIntent, u32)) {
        // SYNC: pairs with the store in `add`.
        let noted = self.noted.load(Ordering::Acquire);
        let new = noted.wrapping_sub(self.collected.load(Ordering::Relaxed));
        if new == 0 {
            return;
        }
        self.collected.store(noted, Ordering::Relaxed);
        let new = usize::try_from(new).unwrap_or(KEPT).min(KEPT);
        for note in &self.notes[..new] {
            let Note { frame, intent, accesses } = Note::from_raw(note.load(Ordering::Relaxed));
            each(frame, intent, accesses);
        }
    }
}

/// Decides which accesses of a thread are sampled.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Accesses that may take the fast path before the next sampled one; negative when a sampled
    /// one is due.
    left: Cell<i32>,
    /// `Some` if no access takes the fast path: then it counts the accesses before the next sampled
    /// one.
    slow_path: Option<Cell<i32>>,
    /// Number of accesses for which the next sample stands.
    drawn: Cell<u32>,
    random: RefCell<SplitMix64>,
}

impl Sampler {
    /// `seed` distinguishes the sampler from those of other threads. `straight` states whether
    /// accesses may take the fast path at all.
    pub(crate) const fn new(seed: u64, straight: bool) -> Self {
        Self {
            left: Cell::new(if straight { between(EVERY) } else { 0 }),
            slow_path: if straight { None } else { Some(Cell::new(between(EVERY))) },
            drawn: Cell::new(EVERY),
            random: RefCell::new(SplitMix64::new(seed)),
        }
    }

    /// Counts an access. Returns true if it takes the fast path. After false, every access takes
    /// the slow path until [`Self::is_due`] has returned true.
    #[inline]
    pub(crate) fn goes_straight(&self) -> bool {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        // Only the sign is tested: storing the counter leaves it in the processor's flags.
        left >= 0
    }

    /// Returns true if an access was just refused the fast path.
    pub(crate) fn is_due(&self) -> bool {
        let due = self.left.get() < 0;
        if due {
            self.left.set(0);
        }
        due
    }

    /// Counts an access on the slow path and samples it if one is due.
    pub(crate) fn accessed(&self, samples: &HeatSamples, frame: FrameId, intent: AccessIntent) {
        let left = self.slow_path.as_ref().unwrap_or(&self.left);
        if left.get() > 0 {
            left.set(left.get() - 1);
            return;
        }
        let note = Note { frame, intent, accesses: self.drawn.get() };
        let random = &mut *self.random.borrow_mut();
        samples.add(note, random);
        // The distance is random: with a fixed one, a periodic access pattern would always be
        // sampled at the same point.
        let halvings = (samples.uncollected() / STEP).min(HALVINGS);
        let drawn = 1 + below(random.draw(), (EVERY << (halvings + 1)) - 1);
        self.drawn.set(drawn);
        left.set(between(drawn));
    }
}

/// Number of accesses before the last one of `accesses`.
const fn between(accesses: u32) -> i32 {
    (accesses - 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The layout of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        let note = Note { frame: FrameId(5), intent: AccessIntent::Write, accesses: 3 };
        assert_eq!(note.to_raw(), 3 << 33 | 1 << 32 | 5);
    }

    fn samples() -> HeatSamples {
        HeatSamples {
            noted: AtomicU64::new(0),
            collected: AtomicU64::new(0),
            notes: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn access(sampler: &Sampler, samples: &HeatSamples, frame: u32, intent: AccessIntent) {
        if !sampler.goes_straight() {
            assert!(sampler.is_due() && sampler.left.get() == 0);
            sampler.accessed(samples, FrameId(frame), intent);
        }
    }

    fn collect(samples: &HeatSamples) -> BTreeMap<(u32, bool), u64> {
        let mut found = BTreeMap::new();
        samples.collect(|frame, intent, accesses| {
            *found.entry((frame.0, intent == AccessIntent::Write)).or_default() +=
                u64::from(accesses);
        });
        found
    }

    fn within(found: u64, expected: u64, percent: u64) {
        let off = found.abs_diff(expected) * 100;
        assert!(off <= expected * percent, "{found} instead of {expected}");
    }

    #[test]
    fn few_accesses_are_counted_by_their_notes_and_once() {
        let (samples, sampler) = (samples(), Sampler::new(3, true));
        for _ in 0..1600 {
            access(&sampler, &samples, 7, AccessIntent::Read);
            access(&sampler, &samples, 9, AccessIntent::Write);
        }
        let found = collect(&samples);
        assert_eq!(found.len(), 2, "{found:?}");
        within(found.values().sum(), 3200, 10);
        within(found[&(7, false)], 1600, 30);
        within(found[&(9, true)], 1600, 30);
        assert!(collect(&samples).is_empty());
    }

    #[test]
    fn many_accesses_leave_a_sample_of_the_whole_time_and_not_of_its_end() {
        let (samples, sampler) = (samples(), Sampler::new(1, true));
        for frame in 0..4 {
            (0..500_000).for_each(|_| access(&sampler, &samples, frame, AccessIntent::Read));
        }
        assert!(samples.noted.load(Ordering::Relaxed) < 700, "they cost too much");
        let found = collect(&samples);
        within(found.values().sum(), 2_000_000, 1);
        for frame in 0..4 {
            within(found[&(frame, false)], 500_000, 35);
        }
    }

    #[test]
    fn going_round_in_a_circle_of_the_same_length_hides_no_page() {
        let (samples, sampler) = (samples(), Sampler::new(5, true));
        let mut found = BTreeMap::<u32, u64>::new();
        for _ in 0..1000 {
            for _ in 0..200 {
                (0..EVERY).for_each(|frame| access(&sampler, &samples, frame, AccessIntent::Read));
            }
            samples.collect(|frame, _, times| {
                *found.entry(frame.0).or_default() += u64::from(times);
            });
        }
        assert_eq!(found.len(), EVERY as usize);
        found.values().for_each(|times| within(*times, 200_000, 15));
    }

    #[test]
    fn a_client_can_only_lie_about_its_use() {
        let samples = samples();
        samples.noted.store(u64::MAX, Ordering::Relaxed);
        samples.notes[0].store(u64::MAX, Ordering::Relaxed);
        let mut found = Vec::new();
        samples.collect(|frame, intent, times| found.push((frame.0, intent, times)));
        assert_eq!((found.len(), found[0]), (KEPT, (u32::MAX, AccessIntent::Write, Note::MOST)));
        samples.collected.store(5, Ordering::Relaxed);
        // Wrong counters only cost the client its own samples.
        let note = Note { frame: FrameId(1), intent: AccessIntent::Read, accesses: 16 };
        samples.add(note, &mut SplitMix64::new(1));
        assert_eq!(samples.noted.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn accesses_that_never_go_straight_are_counted_the_same() {
        let (samples, sampler) = (samples(), Sampler::new(7, false));
        for _ in 0..1000 {
            assert!(
                !sampler.goes_straight() && !sampler.goes_straight(),
                "before it was asked why"
            );
            access_slowly(&sampler, &samples);
            // Two more accesses: one whose fast path failed, and one through another function.
            assert!(!sampler.goes_straight() && sampler.is_due());
            sampler.accessed(&samples, FrameId(2), AccessIntent::Read);
        }
        within(collect(&samples).values().sum(), 2000, 10);
    }

    fn access_slowly(sampler: &Sampler, samples: &HeatSamples) {
        assert!(sampler.is_due() && !sampler.is_due());
        sampler.accessed(samples, FrameId(1), AccessIntent::Read);
    }
}
