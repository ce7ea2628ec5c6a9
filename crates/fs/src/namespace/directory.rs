//! Directories: searching and changing their tries.

use rackpool_kv::KeyChange;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::attr::{FileType, Ino};
use crate::error::FsError;
use crate::format::directory_node::{
    COUNT_BITS, DIGIT_BITS, DirEntry, DirectoryNode, HASH_BITS, LEAF_BYTES, MAX_DEPTH, NodePath,
    SPLIT, TrieNode, encode_leaf, prefix,
};
use crate::format::keys;
use crate::volume::Volume;
use crate::volume::transaction::FsTransaction;
use crate::volume_memory::VolumeMemory;

/// The most split nodes that a mount remembers; beyond it the mount forgets all of them.
const MAX_SPLITS: usize = 1 << 17;

/// The leaf that covers a hash, as it is stored.
pub(crate) struct FoundLeaf {
    pub(crate) place: NodePath,
    /// `None` if nothing is stored for it: it is empty.
    pub(crate) value: Option<Vec<u8>>,
}

/// A decoded leaf.
struct Leaf {
    place: NodePath,
    entries: Vec<DirEntry>,
}

impl<M: VolumeMemory> Volume<M> {
    /// The hash of a name in this volume.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        xxh3_64_with_seed(name, self.seed) >> (64 - HASH_BITS)
    }

    /// Returns the leaf that covers a hash. `read` returns the value of a key, and
    /// whether that value is committed; only committed splits are remembered.
    pub(crate) fn find_leaf(
        &self,
        directory: Ino,
        hash: u64,
        mut read: impl FnMut(&[u8]) -> Result<(Option<Vec<u8>>, bool), FsError>,
    ) -> Result<FoundLeaf, FsError> {
        for depth in 0..=MAX_DEPTH {
            let place = NodePath { depth, prefix: prefix(hash, depth) };
            let node = DirectoryNode { directory, place };
            if self.splits.read().is_ok_and(|splits| splits.contains(&node)) {
                continue;
            }
            let (value, committed) = read(&keys::node(directory, depth, place.prefix))?;
            if value.as_ref().is_none_or(|value| value.first() != Some(&SPLIT)) {
                return Ok(FoundLeaf { place, value });
            }
            if let Ok(mut splits) = self.splits.write()
                && committed
            {
                if splits.len() >= MAX_SPLITS {
                    splits.clear();
                }
                splits.insert(node);
            }
        }
        Err(FsError::Damaged("a directory"))
    }

    /// Returns the entry of a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the name does not exist, [`FsError::NotDirectory`] if `directory`
    /// is not a directory.
    pub(crate) fn find_entry(&self, directory: Ino, name: &[u8]) -> Result<DirEntry, FsError> {
        let hash = self.hash(name);
        let FoundLeaf { place, value } =
            self.find_leaf(directory, hash, |key| Ok((self.value(key)?, true)))?;
        if let TrieNode::Leaf(entries) = TrieNode::decode(value.as_deref())?
            && let Some(entry) = entries.into_iter().find(|entry| entry.name == name)
        {
            return Ok(entry);
        }
        // Only directories have nodes.
        if value.is_none() && place.depth == 0 {
            self.inode(directory)?.expect_directory()?;
        }
        Err(FsError::NotFound)
    }

    /// Deletes all nodes of a directory that is empty and has lost its name.
    pub(crate) fn free_nodes(&self, directory: Ino, place: NodePath) -> Result<(), FsError> {
        let key = keys::node(directory, place.depth, place.prefix);
        let Some(value) = self.value(&key)? else { return Ok(()) };
        if TrieNode::decode(Some(&value))? == TrieNode::Split && place.depth < MAX_DEPTH {
            for digit in 0..1 << DIGIT_BITS {
                let prefix = place.prefix << DIGIT_BITS | digit;
                self.free_nodes(directory, NodePath { depth: place.depth + 1, prefix })?;
            }
        }
        let gone = KeyChange { key: &key, expected: Some(&value), new: None };
        self.with_access(|access| access.commit(&[gone]).map_err(FsError::of_table::<M>))?;
        if let Ok(mut splits) = self.splits.write() {
            splits.remove(&DirectoryNode { directory, place });
        }
        Ok(())
    }
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    /// Returns the leaf that covers a hash. The transaction depends on it.
    fn leaf(&mut self, directory: Ino, hash: u64) -> Result<Leaf, FsError> {
        let volume = self.volume;
        let FoundLeaf { place, value } =
            volume.find_leaf(directory, hash, |key| Ok((self.peek(key)?, !self.is_set(key))))?;
        self.depend(&keys::node(directory, place.depth, place.prefix), value.as_deref());
        match TrieNode::decode(value.as_deref())? {
            TrieNode::Leaf(entries) => Ok(Leaf { place, entries }),
            TrieNode::Split => Err(FsError::Damaged("a directory")),
        }
    }

    /// Returns the entry of a name. The transaction depends on its leaf.
    pub(crate) fn entry(
        &mut self,
        directory: Ino,
        name: &[u8],
    ) -> Result<Option<DirEntry>, FsError> {
        let Leaf { entries, .. } = self.leaf(directory, self.volume.hash(name))?;
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Adds an entry, or makes an existing entry refer to another inode.
    pub(crate) fn set_entry(
        &mut self,
        directory: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
    ) -> Result<(), FsError> {
        let hash = self.volume.hash(name);
        let Leaf { place, mut entries } = self.leaf(directory, hash)?;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name == name) {
            (entry.ino, entry.kind) = (ino, kind);
        } else {
            let first = hash << COUNT_BITS;
            let taken =
                |position| entries.iter().any(|entry: &DirEntry| entry.position == position);
            let position = (first..first + (1 << COUNT_BITS)).find(|position| !taken(*position));
            let position = position.ok_or(FsError::NoSpace)?;
            let at = entries.partition_point(|entry| entry.position < position);
            entries.insert(at, DirEntry { position, ino, kind, name: name.to_vec() });
        }
        self.set_leaf(directory, place, &entries);
        Ok(())
    }

    /// Removes an entry.
    pub(crate) fn remove_entry(&mut self, directory: Ino, name: &[u8]) -> Result<(), FsError> {
        let Leaf { place, mut entries } = self.leaf(directory, self.volume.hash(name))?;
        entries.retain(|entry| entry.name != name);
        self.set_leaf(directory, place, &entries);
        Ok(())
    }

    /// Stores the entries of a node, and splits the node if they exceed `LEAF_BYTES`.
    fn set_leaf(&mut self, directory: Ino, place: NodePath, entries: &[DirEntry]) {
        let NodePath { depth, prefix: node } = place;
        let key = keys::node(directory, depth, node);
        let value = encode_leaf(entries);
        let is_large = value.as_ref().is_some_and(|value| value.len() > LEAF_BYTES);
        if !is_large || depth == MAX_DEPTH {
            self.set(&key, value);
            return;
        }
        self.set(&key, Some(vec![SPLIT]));
        for part in entries.chunk_by(|a, b| digits(a, depth + 1) == digits(b, depth + 1)) {
            let Some(first) = part.first() else { continue };
            let child = NodePath { depth: depth + 1, prefix: digits(first, depth + 1) };
            self.set_leaf(directory, child, part);
        }
    }
}

/// The first `depth` digits of an entry's hash.
fn digits(entry: &DirEntry, depth: u8) -> u64 {
    prefix(entry.position >> COUNT_BITS, depth)
}

/// The hash in a position.
pub(crate) const fn hash_at(position: u64) -> u64 {
    position >> COUNT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_come_back_as_they_went_and_damage_is_noticed() {
        let entry =
            DirEntry { position: 7, ino: Ino(9), kind: FileType::Fifo, name: vec![b'x'; 255] };
        let bytes = encode_leaf(std::slice::from_ref(&entry)).unwrap();
        assert_eq!(TrieNode::decode(Some(&bytes)).unwrap(), TrieNode::Leaf(vec![entry]));
        assert_eq!(TrieNode::decode(None).unwrap(), TrieNode::Leaf(Vec::new()));
        for len in (0..bytes.len()).filter(|len| *len != 1) {
            assert!(matches!(TrieNode::decode(Some(&bytes[..len])), Err(FsError::Damaged(_))));
        }
    }

    #[test]
    fn the_nodes_of_one_depth_follow_each_other() {
        let hash = 0x3_ffff_0000_1234;
        let place = NodePath { depth: 3, prefix: prefix(hash, 3) };
        assert!(place.end() > hash && prefix(place.end(), 3) == place.prefix + 1);
        assert_eq!(NodePath { depth: 0, prefix: 0 }.end(), 1 << HASH_BITS);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_bytes_are_a_node_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            let _ = TrieNode::decode(Some(&bytes));
            let _ = TrieNode::decode(Some(&[&[crate::format::directory_node::LEAF][..], &bytes].concat()));
        }
    }
}
