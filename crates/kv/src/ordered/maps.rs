use std::collections::HashMap;
use std::sync::Arc;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, node_key};
use crate::ordered::node::{Frame, Node};
use crate::ordered::{MapId, OrderedError, OrderedMap};

/// One thread's access to the ordered maps of a node table: a [`Handle`] of the table, which holds
/// nothing else, and copies of inner nodes.
///
/// ```
/// use rackpool_kv::ordered::{Direction, MapId, OrderedError, OrderedMaps, Range};
/// use rackpool_kv::{Memory, Options, Table};
///
/// fn demo<M: Memory>(pool: M) -> Result<(), OrderedError<M::Error>> {
///     let table = Table::create(pool, &Options::default())?;
///     let mut maps = OrderedMaps::new(table.handle());
///     let id = MapId::random();
///     maps.create(id, b"its owner")?;
///     let mut map = maps.map(id);
///     map.insert(b"rack", b"7")?;
///     map.insert(b"page", b"12")?;
///     let pairs = map.range(&Range::ALL, Direction::Forward, 10)?;
///     assert_eq!(pairs[0], (b"page".to_vec(), b"12".to_vec()));
///     map.destroy()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct OrderedMaps<M> {
    pub(super) handle: Handle<M>,
    inner: HashMap<(MapId, NodeId), Arc<Node>>,
    /// How many leaves walks may still read; `None`: as many as there are.
    leaves: Option<u32>,
}

/// Copies of inner nodes that are kept: with 2 KiB each 8 MiB, which lead to a quarter of a million
/// leaves.
const MAX_COPIES: usize = 4096;

impl<M: Memory> OrderedMaps<M> {
    /// Access through a handle of the node table.
    #[must_use]
    pub fn new(handle: Handle<M>) -> Self {
        Self { handle, inner: HashMap::new(), leaves: None }
    }

    /// Makes the empty map `id`, which belongs to `owner`, unless it is there. Says whether it did.
    ///
    /// `owner` is what a [`MapSweep`](super::MapSweep) asks with; its record should name `id`
    /// before.
    pub fn create(&mut self, id: MapId, owner: &[u8]) -> Result<bool, OrderedError<M::Error>> {
        let frame =
            Frame { level: 0, version: 0, birth: 0, splits: 0, low: &[], right: None, owner };
        let root = Node::encode(&frame, std::iter::empty());
        Ok(self.handle.insert(&node_key(id, NodeId::ROOT), &root)?)
    }

    /// The map `id`. Whether it is there shows when it is used.
    pub fn map(&mut self, id: MapId) -> OrderedMap<'_, M> {
        OrderedMap { maps: self, id }
    }

    /// From now on all walks along leaves (ranges, counts, fingerprints) read `leaves` leaves
    /// together and then fail with [`OrderedError::LeafLimit`]; `None`: they have no limit. A leaf
    /// has about 40 entries. So the caller has the thread back in time, whatever a map has become.
    pub const fn limit_leaves(&mut self, leaves: Option<u32>) {
        self.leaves = leaves;
    }

    /// A walk along `map` reads one more leaf.
    pub(super) fn count_leaf(&mut self, map: MapId) -> Result<(), OrderedError<M::Error>> {
        if let Some(leaves) = &mut self.leaves {
            *leaves = leaves.checked_sub(1).ok_or(OrderedError::LeafLimit { map })?;
        }
        Ok(())
    }

    /// The handle of the node table.
    #[must_use]
    pub fn handle(&self) -> &Handle<M> {
        &self.handle
    }

    /// The same, to begin and end transactions with.
    pub fn handle_mut(&mut self) -> &mut Handle<M> {
        &mut self.handle
    }

    /// Whether the transaction that the handle of the node table is in has read anything of this
    /// map.
    #[must_use]
    pub fn has_read(&self, map: MapId) -> bool {
        self.handle.knows_any(&map.to_bytes())
    }

    /// Reads a node from the table; an inner one is kept, unless it is one of a transaction's view.
    pub(super) fn read(
        &mut self,
        map: MapId,
        node: NodeId,
    ) -> Result<Option<Arc<Node>>, OrderedError<M::Error>> {
        let found = self.read_unkept(map, node)?.map(Arc::new);
        if let Some(found) = &found
            && found.level() > 0
            && !self.handle.has_begun()
        {
            if self.inner.len() >= MAX_COPIES {
                self.inner.clear();
            }
            self.inner.insert((map, node), Arc::clone(found));
        }
        Ok(found)
    }

    /// Reads a node from the table that may not be one of the tree: then another one may be put
    /// under its id, of which a copy of this would tell wrong.
    pub(super) fn read_unkept(
        &mut self,
        map: MapId,
        node: NodeId,
    ) -> Result<Option<Node>, OrderedError<M::Error>> {
        let mut bytes = Vec::new();
        if !self.handle.get(&node_key(map, node), &mut bytes)? {
            return Ok(None);
        }
        Node::decode(bytes).map(Some).map_err(|what| OrderedError::Damaged { map, what })
    }

    /// The copy of an inner node, if there is one. It may be old.
    pub(super) fn copy(&self, map: MapId, node: NodeId) -> Option<Arc<Node>> {
        self.inner.get(&(map, node)).cloned()
    }

    /// Drops the copy of a node that is known to be old.
    pub(super) fn forget(&mut self, map: MapId, node: NodeId) {
        self.inner.remove(&(map, node));
    }

    /// Drops all copies of a map's nodes.
    pub(super) fn forget_map(&mut self, map: MapId) {
        self.inner.retain(|(other, _), _| *other != map);
    }

    /// Replaces a node's content, if it still is this one. Says whether it did.
    pub(super) fn swap(
        &mut self,
        map: MapId,
        node: NodeId,
        old: &Node,
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        self.handle.compare_and_put(&node_key(map, node), Some(old.bytes()), new)
    }
}
