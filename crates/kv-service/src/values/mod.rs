//! How values that are no strings lie in the table.
//!
//! A collection that is small is one value. A large one is an ordered map, and the value names that.
//! While it is made large its value is still there, behind the name of the map that will be.
//!
//! ```text
//! small      its elements
//! growing    map id (16) | its elements
//! large      map id (16)
//! ```

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
    let names = [HASH, SORTED_SET].iter().any(|f| kind == f.growing || kind == f.large);
    value.first_chunk().filter(|_| names).map(|id| MapId::from_bytes(*id))
}

/// The map that the elements of an entry are in, and its kind.
#[must_use]
pub fn large_map(entry: Entry<'_>) -> Option<(Kind, MapId)> {
    let kind = entry.form.kind;
    map_of(kind, entry.value).filter(|_| is_large(kind)).map(|id| (kind, id))
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
