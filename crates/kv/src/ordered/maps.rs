use std::collections::HashMap;
use std::sync::Arc;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, node_key};
use crate::ordered::node::{MapNode, NodeHeader};
use crate::ordered::{MapId, OrderedError, OrderedMap};

/// One thread's access to the ordered maps of a node table: a [`Handle`] of the table, which has no
/// other entries, and cached copies of inner nodes.
///
/// ```
/// use rackpool_kv::ordered::{Direction, MapId, OrderedError, OrderedMaps, KeyRange};
/// use rackpool_kv::{Memory, TableOptions, Table};
///
/// fn demo<M: Memory>(pool: M) -> Result<(), OrderedError<M::Error>> {
///     let table = Table::create(pool, &TableOptions::default())?;
///     let mut maps = OrderedMaps::new(table.handle());
///     let id = MapId::random();
///     maps.create(id, b"its owner")?;
///     let mut map = maps.map(id);
///     map.insert(b"rack", b"7")?;
///     map.insert(b"page", b"12")?;
///     let entries = map.range(&KeyRange::ALL, Direction::Forward, 10)?;
///     assert_eq!((&entries[0].key[..], &entries[0].value[..]), (&b"page"[..], &b"12"[..]));
///     map.destroy()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct OrderedMaps<M> {
    pub(super) handle: Handle<M>,
    inner: HashMap<(MapId, NodeId), Arc<MapNode>>,
    /// The number of leaves that walks may still read; `None`: no limit.
    leaves: Option<u32>,
}

/// The most cached inner nodes: 8 MiB at 2 KiB each. They refer to a quarter of a million leaves.
const MAX_COPIES: usize = 4096;

impl<M: Memory> OrderedMaps<M> {
    /// Access through `handle`, a handle of the node table.
    #[must_use]
    pub fn new(handle: Handle<M>) -> Self {
        Self { handle, inner: HashMap::new(), leaves: None }
    }

    /// Creates the empty map `id` with the owner `owner`, unless it exists. Returns whether it did.
    ///
    /// A [`MapSweep`](super::MapSweep) passes `owner` to its caller. The owner's record must name
    /// `id` before this call.
    pub fn create(&mut self, id: MapId, owner: &[u8]) -> Result<bool, OrderedError<M::Error>> {
        let frame =
            NodeHeader { level: 0, version: 0, birth: 0, splits: 0, low: &[], right: None, owner };
        let root = MapNode::encode(&frame, std::iter::empty());
        Ok(self.handle.insert(&node_key(id, NodeId::ROOT), &root)?)
    }

    /// The map `id`. The first operation shows whether it exists.
    pub fn map(&mut self, id: MapId) -> OrderedMap<'_, M> {
        OrderedMap { maps: self, id }
    }

    /// Limits the leaves that walks (ranges, counts, fingerprints) read: from now on `leaves` in
    /// total, after which they fail with [`OrderedError::LeafLimit`]. `None`: no limit. A leaf has
    /// about 40 entries. The limit bounds the time that a call takes, whatever the map's size.
    pub const fn limit_leaves(&mut self, leaves: Option<u32>) {
        self.leaves = leaves;
    }

    /// Accounts for one more leaf that a walk along `map` reads.
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

    /// The handle of the node table, to begin and end transactions.
    pub fn handle_mut(&mut self) -> &mut Handle<M> {
        &mut self.handle
    }

    /// Whether the transaction on the node table's handle has read any node of this map.
    #[must_use]
    pub fn has_read(&self, map: MapId) -> bool {
        self.handle.knows_any(&map.to_bytes())
    }

    /// Reads a node from the table. Caches an inner node, except within a transaction.
    pub(super) fn read(
        &mut self,
        map: MapId,
        node: NodeId,
    ) -> Result<Option<Arc<MapNode>>, OrderedError<M::Error>> {
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

    /// Reads a node without caching it. It may not be linked into the tree yet; another node may
    /// then be stored under its id, and a cached copy would be wrong.
    pub(super) fn read_unkept(
        &mut self,
        map: MapId,
        node: NodeId,
    ) -> Result<Option<MapNode>, OrderedError<M::Error>> {
        let mut bytes = Vec::new();
        if !self.handle.get(&node_key(map, node), &mut bytes)? {
            return Ok(None);
        }
        MapNode::decode(bytes).map(Some).map_err(|what| OrderedError::Damaged { map, what })
    }

    /// The cached copy of an inner node, which may be stale.
    pub(super) fn copy(&self, map: MapId, node: NodeId) -> Option<Arc<MapNode>> {
        self.inner.get(&(map, node)).cloned()
    }

    /// Drops the cached copy of a node.
    pub(super) fn forget(&mut self, map: MapId, node: NodeId) {
        self.inner.remove(&(map, node));
    }

    /// Drops the cached copies of a map's nodes.
    pub(super) fn forget_map(&mut self, map: MapId) {
        self.inner.retain(|(other, _), _| *other != map);
    }

    /// Replaces the content of a node if it is still `old`. Returns whether it did.
    pub(super) fn swap(
        &mut self,
        map: MapId,
        node: NodeId,
        old: &MapNode,
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        self.handle.compare_and_put(&node_key(map, node), Some(old.bytes()), new)
    }
}
