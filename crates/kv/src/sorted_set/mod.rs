//! Sorted sets in the pool: members, which are byte strings, in the order of their scores; those of
//! the same score in the order of their bytes. As Redis has them.
//!
//! - [`SmallSet`] is one in memory, and the bytes of it: what an owner keeps in one value.
//! - [`SortedSet`] is one of any size, on an [ordered map](crate::ordered::OrderedMap) of its own.
//!
//! Both have the same operations. How the large one stays right whenever a client is killed is in
//! `docs/design/ordered.md`.

mod keys;
mod large;
mod ranks;
mod rule;
mod score;
mod small;
mod walk;

pub use large::SortedSet;
pub use rule::{Existing, Order, Outcome, Rule};
pub use score::{Score, ScoreRange};
pub use small::SmallSet;

/// A member and its score.
pub type Scored = (Vec<u8>, Score);
