use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::Memory;
use crate::ordered::map::Pair;
use crate::ordered::node::Node;
use crate::ordered::search::Target;
use crate::ordered::{OrderedError, OrderedMap};

/// Keys from one to another, by the order of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<'a> {
    /// Where it begins.
    pub from: Bound<&'a [u8]>,
    /// Where it ends.
    pub to: Bound<&'a [u8]>,
}

/// Which end of a range comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The least key.
    Forward,
    /// The greatest key.
    Backward,
}

impl Range<'_> {
    /// All keys.
    pub const ALL: Self = Self { from: Bound::Unbounded, to: Bound::Unbounded };

    /// The entries of a node that are in it.
    fn within(&self, node: &Node) -> std::ops::Range<usize> {
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

    /// Whether no key of it is `high` or greater.
    fn ends_before(&self, high: &[u8]) -> bool {
        match self.to {
            Bound::Included(to) => to < high,
            Bound::Excluded(to) => to <= high,
            Bound::Unbounded => false,
        }
    }

    /// Whether no key of it is less than `low`.
    fn begins_at(&self, low: &[u8]) -> bool {
        match self.from {
            Bound::Included(from) | Bound::Excluded(from) => low <= from,
            Bound::Unbounded => low.is_empty(),
        }
    }
}

impl<M: Memory> OrderedMap<'_, M> {
    /// Up to `limit` entries of a range, in order.
    ///
    /// It is no snapshot. Every key that is there from begin to end is seen exactly once, with a
    /// value that it had at some moment between; keys that come or go may be seen or not.
    pub fn range(
        &mut self,
        range: &Range<'_>,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<Pair>, OrderedError<M::Error>> {
        let mut pairs = Vec::new();
        if limit > 0 {
            self.visit(range, direction, |key, value| {
                pairs.push((key.to_vec(), value.to_vec()));
                if pairs.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(pairs)
    }

    /// Calls `visit` with each entry of a range, in order, until it breaks off. What it promises is
    /// what [`range`](Self::range) does.
    pub fn visit(
        &mut self,
        range: &Range<'_>,
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

    /// The number of entries of a range. It costs a read for each leaf.
    pub fn count(&mut self, range: &Range<'_>) -> Result<u64, OrderedError<M::Error>> {
        let mut count = 0;
        self.forward(range, |_, within| {
            count += within.len() as u64;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// A number that tells contents apart: it is another one after any change, but for a chance of
    /// 2^-64, and may be another one though nothing has changed. It costs a read for each leaf.
    pub fn fingerprint(&mut self) -> Result<u64, OrderedError<M::Error>> {
        let mut fingerprint = 0;
        self.forward(&Range::ALL, |leaf, _| {
            // A content never comes back: each change makes another version of its leaf.
            let words = [fingerprint, leaf.version(), leaf.birth(), xxh3_64(leaf.low())];
            fingerprint = xxh3_64(words.map(u64::to_le_bytes).as_flattened());
            ControlFlow::Continue(())
        })?;
        Ok(fingerprint)
    }

    fn forward(
        &mut self,
        range: &Range<'_>,
        mut visit: impl FnMut(&Node, std::ops::Range<usize>) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        let first = match range.from {
            Bound::Included(from) | Bound::Excluded(from) => from,
            Bound::Unbounded => &[],
        };
        let mut leaf = self.find(Target::At(first), 0)?.node;
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
        range: &Range<'_>,
        mut visit: impl FnMut(&Node, std::ops::Range<usize>) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        let target = match range.to {
            Bound::Included(to) => Target::At(to),
            Bound::Excluded(to) => Target::Before(to),
            Bound::Unbounded => Target::End,
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
            leaf = self.find(Target::Before(above.low()), 0)?.node;
            if leaf.low() >= above.low() {
                return Err(self.damaged("a leaf's sibling begins elsewhere"));
            }
        }
    }
}
