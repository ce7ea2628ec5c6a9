use crate::entry::Change;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, SplitHalf, node_key};
use crate::ordered::node::Node;
use crate::ordered::{MapId, OrderedError, OrderedMap, OrderedMaps};

impl<M: Memory> OrderedMap<'_, M> {
    /// Gives all memory of the map back; nothing happens if it is gone. Others may use the map
    /// meanwhile: they get [`OrderedError::Gone`] sooner or later.
    ///
    /// Returns how many entries went. If it fails or is killed, [`OrderedMaps::sweep`] does the
    /// rest. It takes no memory of the pool.
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
    /// Deletes a node; what it was in that very moment.
    fn take_node(
        &mut self,
        map: MapId,
        id: NodeId,
    ) -> Result<Option<Node>, OrderedError<M::Error>> {
        let mut taken = None;
        self.handle.modify(&node_key(map, id), |entry, _| {
            taken = entry.map(|entry| entry.value.to_vec());
            Change::Delete
        })?;
        let decoded = taken.map(Node::decode).transpose();
        decoded.map_err(|what| OrderedError::Damaged { map, what })
    }

    /// Deletes what was put to split a node that was deleted, and all nodes right of it; how many
    /// entries they had if they are leaves.
    fn delete_row(
        &mut self,
        map: MapId,
        first: NodeId,
        leftmost: &Node,
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
            // Deleted nodes are not found again, so this ends, whatever their links say.
            id = right;
            next = self.take_node(map, id)?;
            if next.is_none() {
                return Ok(entries);
            }
        }
    }
}
