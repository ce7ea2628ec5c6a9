//! The private L2 of a core, and the snoop filter over all L2s.

use crate::cache::index;

/// A line that an L2 holds or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct L2Line {
    /// Line address: byte address divided by 64.
    pub(crate) line: u64,
    /// The line differs from memory.
    pub(crate) dirty: bool,
}

/// Marks an empty slot. No line address reaches it: line addresses have at most 58 bits.
const EMPTY: L2Line = L2Line { line: u64::MAX, dirty: false };

/// A set-associative L2 with least-recently-used replacement.
#[derive(Clone, Debug)]
pub(crate) struct L2 {
    sets: u64,
    ways: usize,
    /// The lines of a set side by side, the most recently used first.
    lines: Vec<L2Line>,
}

impl L2 {
    /// An empty L2. Both numbers must be at least 1.
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        Self { sets: sets as u64, ways, lines: vec![EMPTY; sets * ways] }
    }

    /// Marks `line` as most recently used, and as dirty if `write`. Returns whether it is present.
    pub(crate) fn access(&mut self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let Some(way) = set.iter().position(|held| held.line == line) else { return false };
        set[way].dirty |= write;
        set[..=way].rotate_right(1);
        true
    }

    /// Whether `line` is present.
    pub(crate) fn contains(&self, line: u64) -> bool {
        let first = index(line % self.sets) * self.ways;
        self.lines[first..first + self.ways].iter().any(|held| held.line == line)
    }

    /// Adds an absent line and returns the line that had to leave for it.
    pub(crate) fn insert(&mut self, added: L2Line) -> Option<L2Line> {
        let set = self.set(added.line);
        set.rotate_right(1);
        let victim = std::mem::replace(&mut set[0], added);
        (victim != EMPTY).then_some(victim)
    }

    /// Removes `line` and returns it if it was present.
    pub(crate) fn remove(&mut self, line: u64) -> Option<L2Line> {
        let set = self.set(line);
        let way = set.iter().position(|held| held.line == line)?;
        let removed = std::mem::replace(&mut set[way], EMPTY);
        set[way..].rotate_left(1);
        Some(removed)
    }

    fn set(&mut self, line: u64) -> &mut [L2Line] {
        let first = index(line % self.sets) * self.ways;
        &mut self.lines[first..first + self.ways]
    }
}

/// Binary logarithm of the number of counters of the snoop filter. 2^20 is several times the lines
/// that 18 L2s of 1 MiB hold.
const FILTER_BITS: u32 = 20;

/// Counts, for each hash of a line address, the L2 lines with that hash. A zero count proves that
/// no L2 holds the line; other counts require a look into the L2s.
#[derive(Clone, Debug)]
pub(crate) struct SnoopFilter(Vec<u32>);

impl SnoopFilter {
    /// A filter over empty L2s.
    pub(crate) fn new() -> Self {
        Self(vec![0; 1 << FILTER_BITS])
    }

    /// Whether an L2 may hold `line`.
    pub(crate) fn may_contain(&self, line: u64) -> bool {
        self.0[Self::counter(line)] > 0
    }

    /// Records that an L2 took `line`.
    pub(crate) fn add(&mut self, line: u64) {
        self.0[Self::counter(line)] += 1;
    }

    /// Records that `line` left an L2.
    pub(crate) fn remove(&mut self, line: u64) {
        let counter = &mut self.0[Self::counter(line)];
        *counter = counter.saturating_sub(1);
    }

    fn counter(line: u64) -> usize {
        // Multiplicative hash: the high bits of the product select the counter.
        index(line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(line: u64) -> L2Line {
        L2Line { line, dirty: false }
    }

    #[test]
    fn the_least_recently_used_line_leaves() {
        let mut l2 = L2::new(2, 2);
        assert_eq!(l2.insert(clean(0)), None);
        assert_eq!(l2.insert(clean(2)), None);
        assert!(l2.access(0, true));
        assert_eq!(l2.insert(clean(4)), Some(clean(2)));
        assert_eq!(l2.remove(0), Some(L2Line { line: 0, dirty: true }));
        assert_eq!(l2.remove(0), None);
        assert_eq!(l2.insert(clean(6)), None);
        assert!(l2.contains(4) && l2.contains(6) && !l2.contains(2));
    }
}
