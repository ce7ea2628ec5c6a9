use crate::entry::EntryChange;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, SplitHalf, node_key};
use crate::ordered::node::MapNode;
use crate::ordered::{MapId, OrderedError, OrderedMap, OrderedMaps};

impl<M: Memory> OrderedMap<'_, M> {
    /// Deletes all nodes of the map; does nothing if the map does not exist. Other clients may use
    /// the map meanwhile; they eventually get [`OrderedError::Gone`].
    ///
    /// Returns the number of entries deleted. It allocates no memory of the pool. After an error or
    /// a kill, [`OrderedMaps::sweep`] deletes the rest.
    pub fn destroy(self) -> Result<u64, OrderedError<M::Error>> {
        let Self { maps, id } = self;
        maps.forget_map(id);
        let Some(root) = maps.take_node(id, NodeId::ROOT)? else { return Ok(0) };
        let mut entries = if root.level() == 0 { root.len() as u64 } else { 0 };
        maps.handle.delete(&node_key(id, NodeId::ROOT.of_half(root.splits(), SplitHalf::Left)))?;
        maps.handle.delete(&node_key(id, NodeId::ROOT.of_half(root.splits(), SplitHalf::Right)))?;
        let mut above = root;
        while above.level() > 0 && above.len() > 0 {
            let first = above.child(0);
            let Some(leftmost) = maps.take_node(id, first)? else { break };
            entries += maps.delete_row(id, first, &leftmost)?;
            above = leftmost;
        }
        maps.forget_map(id);
        Ok(entries)
    }
}

impl<M: Memory> OrderedMaps<M> {
    /// Deletes a node; returns its content at its deletion.
    fn take_node(
        &mut self,
        map: MapId,
        id: NodeId,
    ) -> Result<Option<MapNode>, OrderedError<M::Error>> {
        let mut taken = None;
        self.handle.modify(&node_key(map, id), |entry, _| {
            taken = entry.map(|entry| entry.value.to_vec());
            EntryChange::Delete
        })?;
        let decoded = taken.map(MapNode::decode).transpose();
        decoded.map_err(|what| OrderedError::Damaged { map, what })
    }

    /// Deletes the unlinked half that a split of a deleted node may have left, and all nodes to its
    /// right with theirs. Returns the number of their entries if they are leaves.
    fn delete_row(
        &mut self,
        map: MapId,
        first: NodeId,
        leftmost: &MapNode,
    ) -> Result<u64, OrderedError<M::Error>> {
        let (mut id, mut next) = (first, None);
        let mut entries = 0;
        loop {
            let node = next.as_ref().unwrap_or(leftmost);
            if node.level() == 0 {
                entries += node.len() as u64;
            }
            self.handle.delete(&node_key(map, id.of_half(node.splits(), SplitHalf::Right)))?;
            let Some((_, right)) = node.right() else { return Ok(entries) };
            // A deleted node is not found again, so the loop terminates, also with damaged links.
            id = right;
            next = self.take_node(map, id)?;
            if next.is_none() {
                return Ok(entries);
            }
        }
    }
}
