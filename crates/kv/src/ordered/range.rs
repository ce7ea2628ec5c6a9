use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::Memory;
use crate::ordered::map::MapEntry;
use crate::ordered::node::MapNode;
use crate::ordered::search::SearchTarget;
use crate::ordered::{OrderedError, OrderedMap};

/// A range of keys in lexicographic order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// The lower bound.
    pub from: Bound<&'a [u8]>,
    /// The upper bound.
    pub to: Bound<&'a [u8]>,
}

/// The order in which a range is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

impl KeyRange<'_> {
    /// All keys.
    pub const ALL: Self = Self { from: Bound::Unbounded, to: Bound::Unbounded };

    /// The indices of a node's entries that are in the range.
    fn within(&self, node: &MapNode) -> std::ops::Range<usize> {
        let start = node.partition_point(|key| match self.from {
            Bound::Included(from) => key < from,
            Bound::Excluded(from) => key <= from,
            Bound::Unbounded => false,
        });
        let end = node.partition_point(|key| match self.to {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        });
        start..end.max(start)
    }

    /// Whether all keys of the range are below `high`.
    fn ends_before(&self, high: &[u8]) -> bool {
        match self.to {
            Bound::Included(to) => to < high,
            Bound::Excluded(to) => to <= high,
            Bound::Unbounded => false,
        }
    }

    /// Whether no key of the range is below `low`.
    fn begins_at(&self, low: &[u8]) -> bool {
        match self.from {
            Bound::Included(from) | Bound::Excluded(from) => low <= from,
            Bound::Unbounded => low.is_empty(),
        }
    }
}

impl<M: Memory> OrderedMap<'_, M> {
    /// Returns up to `limit` entries of a range, in order.
    ///
    /// The result is not a snapshot. A key that is present throughout the call is seen exactly
    /// once, with a value that it had during the call. Keys that appear or disappear meanwhile may
    /// be seen or not.
    pub fn range(
        &mut self,
        range: &KeyRange<'_>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<MapEntry>, OrderedError<M::Error>> {
        let mut entries = Vec::new();
        if limit > 0 {
            self.visit(range, direction, |key, value| {
                entries.push(MapEntry { key: key.to_vec(), value: value.to_vec() });
                if entries.len() < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        Ok(entries)
    }

    /// Calls `visit` with each entry of a range, in order, until it breaks. The guarantees are
    /// those of [`range`](Self::range).
    pub fn visit(
        &mut self,
        range: &KeyRange<'_>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        match direction {
            Direction::Forward => self.forward(range, |node, within| {
                node.entries(within).try_for_each(|(key, value)| visit(key, value))
            }),
            Direction::Backward => self.backward(range, |node, within| {
                node.entries(within).rev().try_for_each(|(key, value)| visit(key, value))
            }),
        }
    }

    /// Counts the entries of a range. It reads each leaf of the range.
    pub fn count(&mut self, range: &KeyRange<'_>) -> Result<u64, OrderedError<M::Error>> {
        let mut count = 0;
        self.forward(range, |_, within| {
            count += within.len() as u64;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// A fingerprint of the map's content: it differs after any change, but for a probability of
    /// 2^-64. It may also differ without a change. It reads each leaf.
    pub fn fingerprint(&mut self) -> Result<u64, OrderedError<M::Error>> {
        let mut fingerprint = 0;
        self.forward(&KeyRange::ALL, |leaf, _| {
            // Each change increments the version of its leaf, so no leaf's content recurs.
            let words = [fingerprint, leaf.version(), leaf.birth(), xxh3_64(leaf.low())];
            fingerprint = xxh3_64(words.map(u64::to_le_bytes).as_flattened());
            ControlFlow::Continue(())
        })?;
        Ok(fingerprint)
    }

    fn forward(
        &mut self,
        range: &KeyRange<'_>,
        mut visit: impl FnMut(&MapNode, std::ops::Range<usize>) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        let first = match range.from {
            Bound::Included(from) | Bound::Excluded(from) => from,
            Bound::Unbounded => &[],
        };
        let mut leaf = self.find(SearchTarget::At(first), 0)?.node;
        loop {
            self.maps.count_leaf(self.id)?;
            if visit(&leaf, range.within(&leaf)).is_break() {
                return Ok(());
            }
            let Some((high, right)) = leaf.right() else { return Ok(()) };
            if range.ends_before(high) {
                return Ok(());
            }
            let next = self.fetch(right)?;
            if next.level() != 0 || next.low() != high {
                return Err(self.damaged("a leaf's sibling begins elsewhere"));
            }
            leaf = next;
        }
    }

    fn backward(
        &mut self,
        range: &KeyRange<'_>,
        mut visit: impl FnMut(&MapNode, std::ops::Range<usize>) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        let target = match range.to {
            Bound::Included(to) => SearchTarget::At(to),
            Bound::Excluded(to) => SearchTarget::Before(to),
            Bound::Unbounded => SearchTarget::End,
        };
        let mut leaf = self.find(target, 0)?.node;
        loop {
            self.maps.count_leaf(self.id)?;
            if visit(&leaf, range.within(&leaf)).is_break() || range.begins_at(leaf.low()) {
                return Ok(());
            }
            let above = Arc::clone(&leaf);
            if above.low().is_empty() {
                return Ok(());
            }
            leaf = self.find(SearchTarget::Before(above.low()), 0)?.node;
            if leaf.low() >= above.low() {
                return Err(self.damaged("a leaf's sibling begins elsewhere"));
            }
        }
    }
}
