use std::collections::HashSet;

use crate::entries::round::Round;
use crate::error::KvError;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, node_key, parse_key};
use crate::ordered::{MapId, OrderedError, OrderedMaps};

/// The most maps that a sweep remembers as owned: 1 MiB at 16 B each.
const MAX_OWNED: usize = 1 << 16;

/// Walks through a node table, a few nodes at a time, and deletes the nodes of maps without an
/// owner.
///
/// It starts at a random position and goes through the table repeatedly: [`Round`].
#[derive(Debug)]
pub struct MapSweep {
    round: Round,
    /// Maps that had an owner in this round.
    owned: HashSet<MapId>,
    found: Vec<(MapId, Vec<u8>)>,
    /// The keys of the last step that are no node's.
    others: Vec<Vec<u8>>,
}

/// The result of one step of a [`MapSweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Nodes that the step looked at.
    pub seen: u64,
    /// Nodes that the step deleted.
    pub deleted: u64,
    /// Whether the step completed a round.
    pub is_round: bool,
}

impl MapSweep {
    /// Starts at a random position of the node table.
    #[must_use]
    pub fn anywhere<M: Memory>(maps: &OrderedMaps<M>) -> Self {
        Self::of(Round::anywhere(maps.handle()))
    }

    fn of(round: Round) -> Self {
        Self { round, owned: HashSet::new(), found: Vec::new(), others: Vec::new() }
    }

    /// The keys that the last step found and that are not those of nodes, which have 32 bytes: the
    /// user of the node table has stored them.
    #[must_use]
    pub fn others(&self) -> &[Vec<u8>] {
        &self.others
    }

    /// Looks at about `wanted` more nodes. Deletes those whose map has no root, or for which
    /// `is_owned` returns false; it gets the owner in the root and the map's id.
    ///
    /// The sweep may run at any time if every owner's record names a map's id before the map is
    /// created and as long as the map is in use. Damaged nodes and maps with a damaged root are
    /// kept. After an error the next step continues behind the segment at which this one failed.
    pub fn step<M: Memory, E: From<OrderedError<M::Error>>>(
        &mut self,
        maps: &mut OrderedMaps<M>,
        wanted: usize,
        mut is_owned: impl FnMut(&[u8], MapId) -> Result<bool, E>,
    ) -> Result<Swept, E> {
        let table = OrderedError::Table;
        self.found.clear();
        self.others.clear();
        let (found, others) = (&mut self.found, &mut self.others);
        let note = |key: &[u8], _: crate::Entry<'_>| match parse_key(key) {
            Some((map, _)) => found.push((map, key.to_vec())),
            None => others.push(key.to_vec()),
        };
        let next = match maps.handle.scan(self.round.cursor(), wanted, note) {
            Ok(next) => next,
            Err(error) => {
                let past = maps.handle.scan_past(self.round.cursor()).unwrap_or(0);
                self.round.go_on(past);
                return Err(table(error).into());
            }
        };
        let is_round = self.round.go_on(next);
        let mut swept = Swept { seen: self.found.len() as u64, deleted: 0, is_round };
        let mut doomed = HashSet::new();
        for (map, key) in &self.found {
            if self.owned.contains(map) {
                continue;
            }
            if !doomed.contains(map) {
                if maps.is_kept(*map, &mut is_owned)? {
                    if self.owned.len() >= MAX_OWNED {
                        self.owned.clear();
                    }
                    self.owned.insert(*map);
                    continue;
                }
                // The root is deleted first. Then no client adds nodes, and later steps find the
                // other nodes without a root.
                let root = node_key(*map, NodeId::ROOT);
                swept.deleted += u64::from(maps.handle.delete(&root).map_err(table)?);
                maps.forget_map(*map);
                doomed.insert(*map);
            }
            swept.deleted += u64::from(maps.handle.delete(key).map_err(table)?);
        }
        if is_round {
            self.owned.clear();
        }
        Ok(swept)
    }
}

impl<M: Memory> OrderedMaps<M> {
    /// Whether a map has a root with an owner that owns it, or a root that cannot be read.
    fn is_kept<E: From<OrderedError<M::Error>>>(
        &mut self,
        map: MapId,
        is_owned: &mut impl FnMut(&[u8], MapId) -> Result<bool, E>,
    ) -> Result<bool, E> {
        match self.read_unkept(map, NodeId::ROOT) {
            Ok(Some(root)) => is_owned(root.owner(), map),
            Ok(None) => Ok(false),
            Err(OrderedError::Damaged { .. } | OrderedError::Table(KvError::Corrupt { .. })) => {
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a whole round of a [`MapSweep`], from the beginning of the table. Returns the number of
    /// nodes deleted. Reads the whole table.
    pub fn sweep<E: From<OrderedError<M::Error>>>(
        &mut self,
        mut is_owned: impl FnMut(&[u8], MapId) -> Result<bool, E>,
    ) -> Result<u64, E> {
        const STRIDE: usize = 256;
        let mut sweep = MapSweep::of(Round::from(0));
        let mut deleted = 0;
        loop {
            let swept = sweep.step(self, STRIDE, &mut is_owned)?;
            deleted += swept.deleted;
            if swept.is_round {
                return Ok(deleted);
            }
        }
    }
}
