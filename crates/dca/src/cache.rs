//! The last-level cache: sets, ways, way masks, replacement.

use rackpool_sync::SplitMix64;

use crate::mask::WayMask;
use crate::rng::Rng;

/// How a line address selects its LLC set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indexing {
    /// A 64-bit mix of the line address, modulo the number of sets. Stands for the undocumented
    /// slice hash of Intel processors.
    #[default]
    Hashed,
    /// The line address modulo the number of sets.
    Linear,
}

/// How the LLC selects the way that a new line takes when no allowed way is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// A random way of the mask.
    #[default]
    Random,
    /// The least recently used way of the mask.
    LeastRecentlyUsed,
}

/// State of a cached line beside its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineState {
    /// The line differs from memory.
    pub(crate) dirty: bool,
    /// A device wrote the line; neither a core nor a device has read it since.
    pub(crate) unread: bool,
    /// The program for which the device wrote the line.
    pub(crate) program: u8,
}

/// A line that left the cache, and its state at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Line address: byte address divided by 64.
    pub(crate) line: u64,
    /// State when the line left.
    pub(crate) state: LineState,
}

/// Where a line lies in the cache. Valid until the next insertion or removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

/// Marks an empty slot. No line address reaches it: line addresses have at most 58 bits.
const EMPTY: u64 = u64::MAX;

/// The last-level cache of one socket.
#[derive(Clone, Debug)]
pub(crate) struct Llc {
    sets: u64,
    ways: usize,
    indexing: Indexing,
    replacement: Replacement,
    /// Line addresses, the ways of a set side by side.
    lines: Vec<u64>,
    states: Vec<LineState>,
    /// Time of the last use by `clock`; read by least-recently-used replacement only.
    used: Vec<u64>,
    clock: u64,
    rng: Rng,
}

impl Llc {
    /// An empty cache of `sets` sets. Both numbers must be at least 1.
    pub(crate) fn new(
        sets: usize,
        ways: usize,
        indexing: Indexing,
        replacement: Replacement,
        seed: u64,
    ) -> Self {
        Self {
            sets: sets as u64,
            ways,
            indexing,
            replacement,
            lines: vec![EMPTY; sets * ways],
            states: vec![LineState::default(); sets * ways],
            used: vec![0; sets * ways],
            clock: 0,
            rng: Rng::new(seed, 0),
        }
    }

    /// The slot that holds `line`, in any way.
    pub(crate) fn find(&self, line: u64) -> Option<Slot> {
        let first = self.first_slot(line);
        let set = &self.lines[first..first + self.ways];
        set.iter().position(|&held| held == line).map(|way| Slot(first + way))
    }

    /// Gives write access to the state of the line in `slot`, and marks the line as used.
    pub(crate) fn touch(&mut self, slot: Slot) -> &mut LineState {
        self.clock += 1;
        self.used[slot.0] = self.clock;
        &mut self.states[slot.0]
    }

    /// Empties `slot` and returns the state of its line.
    pub(crate) fn remove(&mut self, slot: Slot) -> LineState {
        self.lines[slot.0] = EMPTY;
        self.states[slot.0]
    }

    /// Puts an absent `line` into a way of `mask` and returns the line that had to leave for it.
    /// An empty way of the mask is taken first.
    pub(crate) fn insert(&mut self, line: u64, state: LineState, mask: WayMask) -> Option<Evicted> {
        let first = self.first_slot(line);
        let empty = mask.ways().find(|way| self.lines[first + way] == EMPTY);
        let slot = first + empty.unwrap_or_else(|| self.victim_way(first, mask));
        let evicted = (self.lines[slot] != EMPTY)
            .then(|| Evicted { line: self.lines[slot], state: self.states[slot] });
        self.lines[slot] = line;
        *self.touch(Slot(slot)) = state;
        evicted
    }

    /// The way that holds `line`.
    #[cfg(test)]
    pub(crate) fn way_of(&self, line: u64) -> Option<usize> {
        self.find(line).map(|slot| slot.0 % self.ways)
    }

    fn victim_way(&mut self, first: usize, mask: WayMask) -> usize {
        let way = match self.replacement {
            Replacement::Random => {
                let skipped = self.rng.below(u64::from(mask.count()));
                mask.ways().nth(index(skipped))
            }
            Replacement::LeastRecentlyUsed => mask.ways().min_by_key(|way| self.used[first + way]),
        };
        way.unwrap_or(0)
    }

    fn first_slot(&self, line: u64) -> usize {
        let key = match self.indexing {
            Indexing::Hashed => SplitMix64::mix(line),
            Indexing::Linear => line,
        };
        index(key % self.sets) * self.ways
    }
}

/// Converts a number below the length of an existing `Vec` to an index.
#[expect(clippy::cast_possible_truncation, reason = "the value is less than a usize value")]
pub(crate) fn index(value: u64) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_replaces_the_oldest_line_of_the_mask() {
        let mut llc = Llc::new(1, 4, Indexing::Linear, Replacement::LeastRecentlyUsed, 1);
        for line in 0..4 {
            assert_eq!(llc.insert(line, LineState::default(), WayMask::all(4)), None);
        }
        let slot = llc.find(0).unwrap();
        llc.touch(slot);
        let evicted = llc.insert(9, LineState::default(), WayMask(0b0011)).unwrap();
        assert_eq!((evicted.line, llc.way_of(9)), (1, Some(1)));
    }

    #[test]
    fn an_empty_way_of_the_mask_is_taken_before_a_line_is_evicted() {
        let mut llc = Llc::new(1, 4, Indexing::Hashed, Replacement::Random, 1);
        assert_eq!(llc.insert(1, LineState::default(), WayMask(0b1000)), None);
        assert_eq!(llc.insert(2, LineState::default(), WayMask(0b1100)), None);
        assert_eq!((llc.way_of(1), llc.way_of(2)), (Some(3), Some(2)));
        let slot = llc.find(1).unwrap();
        llc.remove(slot);
        assert_eq!(llc.insert(3, LineState::default(), WayMask(0b1100)), None);
    }
}
