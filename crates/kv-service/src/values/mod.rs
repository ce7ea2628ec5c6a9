//! How values that are no strings lie in the table.
//!
//! A collection that is small is one value. A large one is an ordered map, and the value names
//! that. While it is made large its value is still there, behind the name of the map that will be.
//!
//! ```text
//! small      its elements
//! growing    map id (16) | its elements
//! large      map id (16)
//! ```
//!
//! What began to grow from nothing has no elements behind the name: it counts as a large collection
//! that is empty.

pub mod hash;

use rackpool_kv::ordered::MapId;
use rackpool_kv::{Entry, Kind};

use crate::failure::{DAMAGED, Failure, WRONG_TYPE};

/// The kinds of the values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// All elements are in the value.
    pub small: Kind,
    /// They are there, and copied into a map.
    pub growing: Kind,
    /// They are in a map.
    pub large: Kind,
}

/// Hashes.
pub const HASH: Family = Family { small: Kind(1), growing: Kind(3), large: Kind(5) };
/// Sorted sets.
pub const SORTED_SET: Family = Family { small: Kind(2), growing: Kind(4), large: Kind(6) };

/// Where the elements of a collection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Here.
    Small(&'a [u8]),
    /// In this map.
    Large(MapId),
}

impl Family {
    /// Where the elements are that a value of this kind stands for.
    #[inline]
    pub fn body(self, kind: Kind, value: &[u8]) -> Result<Body<'_>, Failure> {
        if kind == self.small {
            return Ok(Body::Small(value));
        }
        if kind != self.growing && kind != self.large {
            return Err(WRONG_TYPE);
        }
        let (id, elements) = value.split_first_chunk().ok_or(DAMAGED)?;
        if kind == self.growing {
            return Ok(Body::Small(elements));
        }
        Ok(Body::Large(MapId::from_bytes(*id)))
    }
}

/// The map that a value names.
#[must_use]
pub fn map_of(kind: Kind, value: &[u8]) -> Option<MapId> {
    value.first_chunk().filter(|_| names_map(kind)).map(|id| MapId::from_bytes(*id))
}

/// The map that the elements of an entry are in, and its kind.
#[must_use]
pub fn large_map(entry: Entry<'_>) -> Option<(Kind, MapId)> {
    let (kind, id) = (entry.form.kind, map_of(entry.form.kind, entry.value)?);
    if is_large(kind) {
        return Some((kind, id));
    }
    let family = [HASH, SORTED_SET].into_iter().find(|family| family.growing == kind)?;
    (entry.value.len() == MapId::BYTES).then_some((family.large, id))
}

/// Whether the value names a map.
#[must_use]
pub fn names_map(kind: Kind) -> bool {
    [HASH, SORTED_SET].iter().any(|family| kind == family.growing || kind == family.large)
}

/// Whether the elements are in a map.
#[must_use]
pub fn is_large(kind: Kind) -> bool {
    kind == HASH.large || kind == SORTED_SET.large
}

/// What `TYPE` says.
#[must_use]
pub fn name(kind: Kind) -> &'static str {
    let is = |family: Family| [family.small, family.growing, family.large].contains(&kind);
    if kind == Kind::STRING {
        "string"
    } else if is(HASH) {
        "hash"
    } else if is(SORTED_SET) {
        "zset"
    } else {
        "unknown"
    }
}

/// What `OBJECT ENCODING` says of what is no string.
#[must_use]
pub fn encoding(kind: Kind) -> &'static str {
    if kind == HASH.large {
        "hashtable"
    } else if kind == SORTED_SET.large {
        "skiplist"
    } else {
        "listpack"
    }
}
