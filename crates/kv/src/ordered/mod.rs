//! Ordered maps in the pool: B-link trees whose nodes are values of a hash table, changed by
//! compare-and-put only. A client may be killed or stopped anywhere, as with the table itself.
//!
//! - [`OrderedMaps`] is one thread's access to all maps of a node table.
//! - [`OrderedMap`] is one of them: get, insert, remove, update, range.
//! - [`MapId`] names one; its owner notes it before the map is made, so that what a killed client
//!   left can be told from what is in use: [`MapSweep`].
//!
//! The protocol, and why it is right, is in `docs/design/ordered.md`.

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
pub use map::{Change, OrderedMap, Pair};
pub use maps::OrderedMaps;
pub use range::{Direction, Range};
pub use sweep::{MapSweep, Swept};
