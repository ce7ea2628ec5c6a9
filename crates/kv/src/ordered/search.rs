use std::sync::Arc;

use crate::memory::Memory;
use crate::ordered::id::NodeId;
use crate::ordered::node::MapNode;
use crate::ordered::{OrderedError, OrderedMap};

/// The target of a search.
#[derive(Clone, Copy, Debug)]
pub(super) enum SearchTarget<'a> {
    /// The node that covers this key.
    At(&'a [u8]),
    /// The node that covers the keys just below this one.
    Before(&'a [u8]),
    /// The rightmost node.
    End,
}

impl SearchTarget<'_> {
    /// Whether the target is to the right of a node that ends at `high`.
    fn is_right_of(self, high: &[u8]) -> bool {
        match self {
            Self::At(key) => key >= high,
            Self::Before(key) => key > high,
            Self::End => true,
        }
    }

    /// The entry of an inner node that leads to the target.
    fn child_index(self, node: &MapNode) -> usize {
        let up_to = match self {
            Self::At(key) => node.partition_point(|other| other <= key),
            Self::Before(key) => node.partition_point(|other| other < key),
            Self::End => node.len(),
        };
        up_to.saturating_sub(1)
    }
}

/// A node that a search reached through its left sibling, because its parent lacks the separator.
#[derive(Debug)]
pub(super) struct Missed {
    pub(super) level: u8,
    pub(super) low: Vec<u8>,
    pub(super) id: NodeId,
}

/// The result of a search.
#[derive(Debug)]
pub(super) struct FoundNode {
    pub(super) id: NodeId,
    /// The node as it was read from the table.
    pub(super) node: Arc<MapNode>,
    pub(super) missed: Vec<Missed>,
}

impl<M: Memory> OrderedMap<'_, M> {
    /// Finds the node at `level` that contains `target`.
    pub(super) fn find(
        &mut self,
        target: SearchTarget<'_>,
        level: u8,
    ) -> Result<FoundNode, OrderedError<M::Error>> {
        let mut missed = Vec::new();
        let mut id = NodeId::ROOT;
        let mut node = self.step(id, level)?;
        if node.level() < level {
            return Err(self.damaged("a node has no parent"));
        }
        let mut parent = None;
        loop {
            let next = match node.right() {
                Some((high, right)) if target.is_right_of(high) => {
                    // The cached copies on the way here are stale, or the parent lacks a separator.
                    parent.inspect(|parent| self.maps.forget(self.id, *parent));
                    self.maps.forget(self.id, id);
                    missed.push(Missed { level: node.level(), low: high.to_vec(), id: right });
                    self.step_to(right, level, node.level(), high)?
                }
                _ if node.level() == level => return Ok(FoundNode { id, node, missed }),
                _ => {
                    let index = target.child_index(&node);
                    parent = Some(id);
                    let child = node.child(index);
                    let below = node.level() - 1;
                    id = child;
                    node = self.step_to(child, level, below, node.key(index))?;
                    continue;
                }
            };
            id = missed.last().map_or(id, |missed| missed.id);
            node = next;
        }
    }

    /// A node that must be at `level` and begin at `low`, for a search to `target_level`.
    fn step_to(
        &mut self,
        id: NodeId,
        target_level: u8,
        level: u8,
        low: &[u8],
    ) -> Result<Arc<MapNode>, OrderedError<M::Error>> {
        let node = self.step(id, target_level)?;
        if node.level() != level || node.low() != low {
            return Err(self.damaged("a node leads to one that is not beside or below it"));
        }
        Ok(node)
    }

    /// A node, from the cache if it is above the target's level.
    fn step(
        &mut self,
        id: NodeId,
        target_level: u8,
    ) -> Result<Arc<MapNode>, OrderedError<M::Error>> {
        match self.maps.copy(self.id, id) {
            Some(copy) if copy.level() > target_level => Ok(copy),
            _ => self.fetch(id),
        }
    }

    /// Reads a node that must exist while the map does.
    pub(super) fn fetch(&mut self, id: NodeId) -> Result<Arc<MapNode>, OrderedError<M::Error>> {
        if let Some(node) = self.maps.read(self.id, id)? {
            return Ok(node);
        }
        if id != NodeId::ROOT && self.maps.read(self.id, NodeId::ROOT)?.is_some() {
            return Err(self.damaged("a node is missing"));
        }
        self.maps.forget_map(self.id);
        Err(OrderedError::Gone { map: self.id })
    }

    pub(crate) fn damaged(&self, what: &'static str) -> OrderedError<M::Error> {
        OrderedError::Damaged { map: self.id, what }
    }
}
