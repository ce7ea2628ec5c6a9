use std::ops::{Bound, ControlFlow};

use crate::memory::Memory;
use crate::ordered::{Direction, KeyRange, MapEntry, OrderedError};
use crate::sorted_set::keys::{OrderBounds, OrderEntryState, order_bounds, parse_order_key};
use crate::sorted_set::{ScoreRange, Scored, SortedSet};

/// The most order entries that one read fetches.
const CHUNK: usize = 128;

/// A range of order entries and the direction of a walk along it.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    /// The lower bound.
    from: Bound<Vec<u8>>,
    /// The upper bound.
    to: Bound<Vec<u8>>,
    direction: Direction,
}

impl Stretch {
    pub(super) fn new(range: &ScoreRange, reverse: bool) -> Self {
        let OrderBounds { from, to } = order_bounds(range);
        let direction = if reverse { Direction::Backward } else { Direction::Forward };
        Self { from: Bound::Included(from), to: Bound::Excluded(to), direction }
    }

    /// Its part before `key`.
    pub(super) fn before(self, key: Vec<u8>) -> Self {
        Self { to: Bound::Excluded(key), ..self }
    }

    /// Its part after `key`.
    pub(super) fn after(self, key: Vec<u8>) -> Self {
        Self { from: Bound::Excluded(key), ..self }
    }

    fn range(&self) -> KeyRange<'_> {
        KeyRange {
            from: self.from.as_ref().map(|key| &key[..]),
            to: self.to.as_ref().map(|key| &key[..]),
        }
    }

    /// Shortens the stretch to what follows `last` in its direction.
    fn go_on(&mut self, last: Vec<u8>) {
        match self.direction {
            Direction::Forward => self.from = Bound::Excluded(last),
            Direction::Backward => self.to = Bound::Excluded(last),
        }
    }
}

impl<M: Memory> SortedSet<'_, M> {
    /// Calls `visit` with the members of a stretch, in order, until it breaks. `wanted` is the
    /// expected number of visits; it bounds the size of the reads.
    pub(super) fn walk(
        &mut self,
        mut stretch: Stretch,
        wanted: u64,
        mut visit: impl FnMut(Scored) -> ControlFlow<()>,
    ) -> Result<(), OrderedError<M::Error>> {
        let chunk = usize::try_from(wanted).unwrap_or(CHUNK).clamp(1, CHUNK);
        loop {
            let entries = self.map.range(&stretch.range(), stretch.direction, chunk)?;
            let is_last = entries.len() < chunk;
            let mut last = Vec::new();
            for MapEntry { key, value: state } in entries {
                if let Some(scored) = self.confirmed(&key, &state)?
                    && visit(scored).is_break()
                {
                    return Ok(());
                }
                last = key;
            }
            if is_last {
                return Ok(());
            }
            stretch.go_on(last);
        }
    }

    /// The member of an order entry, if the entry counts.
    fn confirmed(
        &mut self,
        key: &[u8],
        state: &[u8],
    ) -> Result<Option<Scored>, OrderedError<M::Error>> {
        let (Some((member, truth)), Some(state)) =
            (parse_order_key(key), OrderEntryState::decode(state))
        else {
            return Err(self.map.damaged("an order entry of a sorted set is none"));
        };
        let counts = state == OrderEntryState::Sure || self.truth(&member)? == Some(truth);
        Ok(counts.then_some((member, truth.score)))
    }

    /// Removes the order entries of a stretch that killed clients left and that can no longer
    /// count.
    pub(super) fn clean(&mut self, mut stretch: Stretch) -> Result<(), OrderedError<M::Error>> {
        loop {
            let entries = self.map.range(&stretch.range(), stretch.direction, CHUNK)?;
            let is_last = entries.len() < CHUNK;
            let mut last = Vec::new();
            for MapEntry { key, value: state } in entries {
                // A *tentative* entry may still come to count.
                if OrderEntryState::decode(&state) == Some(OrderEntryState::Closing)
                    && self.confirmed(&key, &state)?.is_none()
                {
                    self.map.remove(&key)?;
                }
                last = key;
            }
            if is_last {
                return Ok(());
            }
            stretch.go_on(last);
        }
    }
}
