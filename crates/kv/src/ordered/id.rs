use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

/// The id of an ordered map: 128 random bits, used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId([u8; Self::BYTES]);

impl MapId {
    /// The length of an id in bytes.
    pub const BYTES: usize = 16;

    /// A new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The id with these bytes, from [`to_bytes`](Self::to_bytes).
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id, to store in the owner's record.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }
}

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapId({self})")
    }
}

/// The id of a node within its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeId([u8; Self::BYTES]);

/// A half of a split node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitHalf {
    /// The left half; a new node only when the root splits.
    Left = 0,
    Right = 1,
}

impl NodeId {
    pub(super) const BYTES: usize = 16;
    pub(super) const ROOT: Self = Self([0; Self::BYTES]);

    pub(super) const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The id of a half of this node, which has split `splits` times before.
    pub(super) fn of_half(self, splits: u64, half: SplitHalf) -> Self {
        let mut parts = [0; Self::BYTES + 9];
        parts[..Self::BYTES].copy_from_slice(&self.0);
        parts[Self::BYTES..Self::BYTES + 8].copy_from_slice(&splits.to_le_bytes());
        parts[Self::BYTES + 8] = half as u8;
        Self(xxh3_128(&parts).to_le_bytes())
    }
}

/// The key of a node in the node table.
pub(super) type NodeKey = [u8; MapId::BYTES + NodeId::BYTES];

pub(super) fn node_key(map: MapId, node: NodeId) -> NodeKey {
    let mut key = [0; MapId::BYTES + NodeId::BYTES];
    key[..MapId::BYTES].copy_from_slice(&map.0);
    key[MapId::BYTES..].copy_from_slice(&node.0);
    key
}

/// The map and the node that a key of the node table names; `None` if it is not such a key.
pub(super) fn parse_key(key: &[u8]) -> Option<(MapId, NodeId)> {
    let (map, node) = key.split_first_chunk()?;
    Some((MapId(*map), NodeId(node.try_into().ok()?)))
}
