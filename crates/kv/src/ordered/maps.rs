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
}

/// Copies of inner nodes that are kept: with 2 KiB each 8 MiB, which lead to a quarter of a million
/// leaves.
const MAX_COPIES: usize = 4096;

impl<M: Memory> OrderedMaps<M> {
    /// Access through a handle of the node table.
    #[must_use]
    pub fn new(handle: Handle<M>) -> Self {
        Self { handle, inner: HashMap::new() }
    }

    /// Makes the empty map `id`, which belongs to `owner`, unless it is there. Says whether it did.
    ///
    /// `owner` is what [`sweep`](Self::sweep) asks with; its record should name `id` before.
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

    /// The handle of the node table.
    #[must_use]
    pub fn handle(&self) -> &Handle<M> {
        &self.handle
    }

    /// Reads a node from the table; an inner one is kept.
    pub(super) fn read(
        &mut self,
        map: MapId,
        node: NodeId,
    ) -> Result<Option<Arc<Node>>, OrderedError<M::Error>> {
        let found = self.read_unkept(map, node)?.map(Arc::new);
        if let Some(found) = &found
            && found.level() > 0
        {
            if self.inner.len() >= MAX_COPIES {
                self.inner.clear();
            }
            self.inner.insert((map, node), Arc::clone(found));
        }
        Ok(found)
    }

    /// Reads a node from the table that may not be one of the tree: then another one may be put under
    /// its id, of which a copy of this would tell wrong.
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
