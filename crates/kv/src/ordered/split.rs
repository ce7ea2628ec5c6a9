use crate::error::KvError;
use crate::memory::Memory;
use crate::ordered::id::{NodeId, SplitHalf, node_key};
use crate::ordered::node::{MapNode, NodeHeader};
use crate::ordered::search::{Missed, SearchTarget};
use crate::ordered::{OrderedError, OrderedMap};

impl<M: Memory> OrderedMap<'_, M> {
    /// Splits a node, unless it has changed.
    pub(super) fn split(
        &mut self,
        id: NodeId,
        node: &MapNode,
    ) -> Result<(), OrderedError<M::Error>> {
        let Some(index) = node.split_index() else { return Ok(()) };
        if id == NodeId::ROOT {
            return self.grow(node, index);
        }
        let right = id.of_half(node.splits(), SplitHalf::Right);
        let separator = node.separator(index);
        let half = half_of(node, separator, node.right());
        let half = MapNode::encode(&half, node.entries(index..node.len()));
        let left = NodeHeader {
            version: node.version().wrapping_add(1),
            splits: node.splits().wrapping_add(1),
            right: Some((separator, right)),
            ..node.frame()
        };
        let left = MapNode::encode(&left, node.entries(0..index));
        if !self.put_half(right, &half, node.birth_of_half())? {
            return self.check_changed(id, node);
        }
        if !self.replace(id, node, &left)? {
            return self.clean_up_after(id, &[right]);
        }
        let missed = Missed { level: node.level(), low: separator.to_vec(), id: right };
        self.add_separator(&missed)
    }

    /// Splits the root: makes it an inner node with two children, unless it has changed.
    fn grow(&mut self, root: &MapNode, index: usize) -> Result<(), OrderedError<M::Error>> {
        let [left, right] = [SplitHalf::Left, SplitHalf::Right]
            .map(|half| NodeId::ROOT.of_half(root.splits(), half));
        let separator = root.separator(index);
        let left_half = half_of(root, root.low(), Some((separator, right)));
        let left_half = MapNode::encode(&left_half, root.entries(0..index));
        let right_half = half_of(root, separator, None);
        let right_half = MapNode::encode(&right_half, root.entries(index..root.len()));
        let grown = NodeHeader {
            level: root.level().saturating_add(1),
            version: root.version().wrapping_add(1),
            splits: root.splits().wrapping_add(1),
            ..root.frame()
        };
        let children = [(root.low(), &left.as_bytes()[..]), (separator, &right.as_bytes()[..])];
        let grown = MapNode::encode(&grown, children.into_iter());
        let birth = root.birth_of_half();
        let put =
            self.put_half(left, &left_half, birth)? && self.put_half(right, &right_half, birth)?;
        if !put {
            return self.check_changed(NodeId::ROOT, root);
        }
        if !self.replace(NodeId::ROOT, root, &grown)? {
            return self.clean_up_after(NodeId::ROOT, &[left, right]);
        }
        Ok(())
    }

    /// A half with a higher birth proves that the node has changed; if it has not, the map is
    /// damaged.
    fn check_changed(&mut self, id: NodeId, node: &MapNode) -> Result<(), OrderedError<M::Error>> {
        match self.maps.read(self.id, id)? {
            Some(now) if now.bytes() == node.bytes() => {
                Err(self.damaged("a node is older than what was split off it"))
            }
            _ => Ok(()),
        }
    }

    /// Stores a half with the birth `birth` under its id. `false`: the node has changed.
    fn put_half(
        &mut self,
        id: NodeId,
        half: &[u8],
        birth: u64,
    ) -> Result<bool, OrderedError<M::Error>> {
        loop {
            let put = match self.maps.read_unkept(self.id, id)? {
                Some(other) if other.birth() == birth => return Ok(true),
                Some(other) if other.birth() > birth => return Ok(false),
                // A client stored this half and did not link it. It cannot be linked any more.
                Some(other) => self.maps.swap(self.id, id, &other, half),
                None => self.maps.handle.insert(&node_key(self.id, id), half),
            };
            if known(put)? {
                return Ok(true);
            }
        }
    }

    /// Replaces a node. After an unknown outcome the caller reads the node again.
    fn replace(
        &mut self,
        id: NodeId,
        node: &MapNode,
        new: &[u8],
    ) -> Result<bool, OrderedError<M::Error>> {
        let done = known(self.maps.swap(self.id, id, node, new))?;
        self.maps.forget(self.id, id);
        Ok(done)
    }

    /// Deletes the halves of a node if the node was deleted with its map meanwhile.
    fn clean_up_after(
        &mut self,
        id: NodeId,
        halves: &[NodeId],
    ) -> Result<(), OrderedError<M::Error>> {
        if self.maps.read(self.id, id)?.is_none() {
            for half in halves {
                self.maps.handle.delete(&node_key(self.id, *half))?;
            }
        }
        Ok(())
    }

    /// Inserts a separator into the parent, unless it is there.
    fn add_separator(&mut self, missed: &Missed) -> Result<(), OrderedError<M::Error>> {
        loop {
            let found = self.find(SearchTarget::At(&missed.low), missed.level.saturating_add(1))?;
            let parent = &found.node;
            let Err(index) = parent.search(&missed.low) else { return Ok(()) };
            let child = &missed.id.as_bytes()[..];
            if parent.must_split_for(MapNode::entry_bytes(&missed.low, child)) {
                self.split(found.id, parent)?;
                continue;
            }
            let new = parent.with(index, 0, Some((&missed.low, child)));
            if self.replace(found.id, parent, &new)? {
                return Ok(());
            }
        }
    }

    /// Inserts the missing separators that a search found. A failure does no harm: searches still
    /// find the nodes through their left siblings.
    pub(super) fn heal(&mut self, missed: Vec<Missed>) {
        for missed in missed {
            if self.add_separator(&missed).is_err() {
                return;
            }
        }
    }
}

/// The header of a half of `node`.
fn half_of<'a>(node: &MapNode, low: &'a [u8], right: Option<(&'a [u8], NodeId)>) -> NodeHeader<'a> {
    let (level, birth) = (node.level(), node.birth_of_half());
    NodeHeader { level, version: 0, birth, splits: 0, low, right, owner: &[] }
}

/// Treats an unknown outcome as false, for steps that are checked again.
fn known<E>(done: Result<bool, KvError<E>>) -> Result<bool, KvError<E>> {
    match done {
        Err(KvError::OutcomeUnknown) => Ok(false),
        done => done,
    }
}
