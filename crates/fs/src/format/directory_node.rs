//! Directories: a trie of nodes over the hashes of names.
//!
//! ```text
//! node   0 0: a leaf, its entries sorted | 1: split into 16 by the next digit of the hash
//! entry  0 position u64 | 8 inode u64 | 16 kind u8 | 17 length u8 | name
//! position  61 hash (50) 12 | 11 count of equal hashes 0
//! ```
//!
//! A missing node is an empty leaf. A split node stays split until its directory is removed.

use crate::attr::{FileType, Ino};
use crate::error::FsError;
use crate::format::codec::{Reader, put_short};
use crate::format::inode::{kind_from_byte, kind_to_byte};

pub(crate) const HASH_BITS: u32 = 50;
pub(crate) const COUNT_BITS: u32 = 12;
pub(crate) const DIGIT_BITS: u32 = 4;
/// Leaves of this depth are never split.
pub(crate) const MAX_DEPTH: u8 = 12;
/// A larger leaf is split. A leaf of this size and its lock are still read in one access.
pub(crate) const LEAF_BYTES: usize = 880;
pub(crate) const LEAF: u8 = 0;
pub(crate) const SPLIT: u8 = 1;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirEntry {
    pub(crate) position: u64,
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    pub(crate) name: Vec<u8>,
}

/// A decoded node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrieNode {
    Leaf(Vec<DirEntry>),
    Split,
}

impl TrieNode {
    pub(crate) fn decode(bytes: Option<&[u8]>) -> Result<Self, FsError> {
        let Some(bytes) = bytes else { return Ok(Self::Leaf(Vec::new())) };
        let mut from = Reader::new(bytes, "a directory");
        match from.u8()? {
            LEAF => {}
            SPLIT => return Ok(Self::Split),
            _ => return Err(from.damaged()),
        }
        let mut entries = Vec::new();
        while !from.is_empty() {
            let (position, ino) = (from.u64()?, Ino(from.u64()?));
            let kind = kind_from_byte(from.u8()?).ok_or(from.damaged())?;
            entries.push(DirEntry { position, ino, kind, name: from.short()?.to_vec() });
        }
        Ok(Self::Leaf(entries))
    }
}

/// Encodes a leaf; `None` for an empty one, which the table does not store.
pub(crate) fn encode_leaf(entries: &[DirEntry]) -> Option<Vec<u8>> {
    if entries.is_empty() {
        return None;
    }
    let mut bytes = vec![LEAF];
    for entry in entries {
        bytes.extend_from_slice(&entry.position.to_le_bytes());
        bytes.extend_from_slice(&entry.ino.0.to_le_bytes());
        bytes.push(kind_to_byte(entry.kind));
        put_short(&mut bytes, &entry.name);
    }
    Some(bytes)
}

/// The first `depth` digits of a hash.
pub(crate) const fn prefix(hash: u64, depth: u8) -> u64 {
    hash >> (HASH_BITS - DIGIT_BITS * depth as u32)
}

/// A node of the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodePath {
    pub(crate) depth: u8,
    pub(crate) prefix: u64,
}

/// A node of the trie of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DirectoryNode {
    pub(crate) directory: Ino,
    pub(crate) place: NodePath,
}

impl NodePath {
    /// The first hash behind the hashes of this node.
    pub(crate) const fn end(self) -> u64 {
        (self.prefix + 1) << (HASH_BITS - DIGIT_BITS * self.depth as u32)
    }
}
