//! Ordered maps in the pool: B-link trees whose nodes are values of a hash table and change only by
//! compare-and-put. As with the table itself, a client may be killed or stopped at any point.
//!
//! - [`OrderedMaps`] is one thread's access to all maps of a node table.
//! - [`OrderedMap`] is one map: get, insert, remove, update, range.
//! - [`MapId`] names a map. The owner stores the id in its own record before it creates the map. So
//!   [`MapSweep`] can tell the maps in use from those that a killed client left.
//!
//! The protocol and its correctness arguments are in `docs/design/ordered.md`.

mod destroy;
mod error;
mod id;
mod map;
mod maps;
mod node;
mod range;
mod search;
mod split;
mod sweep;

pub use error::OrderedError;
pub use id::MapId;
pub use map::{MapChange, MapEntry, OrderedMap};
pub use maps::OrderedMaps;
pub use range::{Direction, KeyRange};
pub use sweep::{MapSweep, Swept};
