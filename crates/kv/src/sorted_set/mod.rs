//! Sorted sets in the pool, as in Redis: members are byte strings, ordered by score, then by their
//! bytes.
//!
//! - [`SmallSet`] is a set in memory, and its encoding in one value of its owner.
//! - [`SortedSet`] is a set of any size, on an [ordered map](crate::ordered::OrderedMap) of its
//!   own.
//!
//! Both have the same operations. `docs/design/ordered.md` explains how a large set stays correct
//! when clients are killed.

mod keys;
mod large;
mod ranks;
mod rule;
mod score;
mod small;
mod walk;

pub use large::SortedSet;
pub use rule::{Existing, ScoreOrder, ScoreOutcome, ScoreRule};
pub use score::{Score, ScoreRange};
pub use small::SmallSet;

/// A member and its score.
pub type Scored = (Vec<u8>, Score);
