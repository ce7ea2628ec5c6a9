//! Groups: a stream of messages from a root to members in other racks.
//!
//! Each program has words and a ring in its own rack, and writes only these. The others read them
//! one-sided. See docs/design/groups.md.
//!
//! | module | holds |
//! |---|---|
//! | [`words`] | the words of a program, and what a read of them has found |
//! | [`root`] | appends messages, and waits for room |
//! | [`member`] | follows the root |
//! | [`agreement`] | how members end at the same position when the root is lost |

pub mod agreement;
pub mod member;
pub mod root;
pub mod words;

use core::time::Duration;

/// Positions of records are multiples of this, in bytes.
pub const ALIGN: u64 = 32;

/// The most members of a group.
pub const MOST_MEMBERS: usize = 16;

/// What all programs of a group know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupRules {
    /// The length of each ring in bytes, a multiple of [`ALIGN`].
    pub ring: u64,
    /// A program that does not answer, or does not go on, for this time is taken for lost.
    pub grace: Duration,
}
