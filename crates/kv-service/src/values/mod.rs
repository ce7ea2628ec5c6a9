//! The encoding of values in the table.
//!
//! A small collection is one value. A large one is an ordered map, whose id is the value. While a
//! collection grows, its value has both: the id of the future map, then the elements.
//!
//! ```text
//! small      its elements
//! growing    map id (16) | its elements
//! large      map id (16)
//! ```
//!
//! A growing collection that was created large has no elements after the id. It counts as an empty
//! large collection.

//!
//! A string that is too long for an entry is named by one, of kind [`LARGE_STRING`].

pub mod hash;
mod large_string;

pub use large_string::{LARGE_STRING, LargeString, StringId};

use rackpool_kv::ordered::MapId;
use rackpool_kv::{Entry, ValueKind};

use crate::failure::{DAMAGED, Failure, WRONG_TYPE};

/// The kinds of the values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// The elements are in the value. Left for *growing* when a change makes it too large.
    pub small: ValueKind,
    /// The elements are in the value and are being copied to a map. Left for *large* by the commit
    /// of the growth, or for *small* by any other change. A kill leaves it; the sweep deletes the
    /// map once the key no longer names it.
    pub growing: ValueKind,
    /// The elements are in the map. Stays until the key is deleted or gets another value.
    pub large: ValueKind,
}

/// Hashes.
pub const HASH: Family = Family { small: ValueKind(1), growing: ValueKind(3), large: ValueKind(5) };
/// Sorted sets.
pub const SORTED_SET: Family =
    Family { small: ValueKind(2), growing: ValueKind(4), large: ValueKind(6) };

/// The location of a collection's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// In the value.
    Small(&'a [u8]),
    /// In this map.
    Large(MapId),
}

impl Family {
    /// The large collection of this type with its elements in a map.
    #[must_use]
    pub const fn map(self, id: MapId) -> LargeMap {
        LargeMap { kind: self.large, id }
    }

    /// The location of the elements of a value of this kind; an error if it is of another type.
    #[inline]
    pub fn body(self, kind: ValueKind, value: &[u8]) -> Result<Body<'_>, Failure> {
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

/// The map that a value names, if any.
#[must_use]
pub fn map_of(kind: ValueKind, value: &[u8]) -> Option<MapId> {
    value.first_chunk().filter(|_| names_map(kind)).map(|id| MapId::from_bytes(*id))
}

/// What an entry names and what goes with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The map of a collection.
    Map(MapId),
    /// A large string.
    String(StringId),
}

/// What a value of this kind names, if anything.
#[must_use]
pub fn named(kind: ValueKind, value: &[u8]) -> Option<Named> {
    let string = || LargeString::decode(kind, value).map(|large| Named::String(large.id));
    map_of(kind, value).map(Named::Map).or_else(string)
}

/// The map with the elements of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeMap {
    /// The kind of large collection.
    pub kind: ValueKind,
    /// The map.
    pub id: MapId,
}

/// The map with the elements of an entry.
#[must_use]
pub fn large_map(entry: Entry<'_>) -> Option<LargeMap> {
    let (kind, id) = (entry.form.kind, map_of(entry.form.kind, entry.value)?);
    if is_large(kind) {
        return Some(LargeMap { kind, id });
    }
    let family = [HASH, SORTED_SET].into_iter().find(|family| family.growing == kind)?;
    (entry.value.len() == MapId::BYTES).then_some(LargeMap { kind: family.large, id })
}

/// Whether values of this kind name a map.
#[must_use]
pub fn names_map(kind: ValueKind) -> bool {
    [HASH, SORTED_SET].iter().any(|family| kind == family.growing || kind == family.large)
}

/// Whether the elements of values of this kind are in a map.
#[must_use]
pub fn is_large(kind: ValueKind) -> bool {
    kind == HASH.large || kind == SORTED_SET.large
}

/// The answer of `TYPE`.
#[must_use]
pub fn name(kind: ValueKind) -> &'static str {
    let is = |family: Family| [family.small, family.growing, family.large].contains(&kind);
    if kind == ValueKind::STRING || kind == LARGE_STRING {
        "string"
    } else if is(HASH) {
        "hash"
    } else if is(SORTED_SET) {
        "zset"
    } else {
        "unknown"
    }
}

/// The answer of `OBJECT ENCODING` for a value that is no string in an entry.
#[must_use]
pub fn encoding(kind: ValueKind) -> &'static str {
    if kind == HASH.large {
        "hashtable"
    } else if kind == SORTED_SET.large {
        "skiplist"
    } else if kind == LARGE_STRING {
        "raw"
    } else {
        "listpack"
    }
}
