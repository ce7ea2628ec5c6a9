//! Casts: an object is copied into many racks at once. Racks pass on what they have received.
//! The machine is `rackpool_proto::multicast`; this is its shell. See docs/design/multicast.md.
//!
//! | module | contains |
//! |---|---|
//! | `options` | [`CastOptions`], [`CastReport`] |
//! | `link` | what racks measure of their links |
//! | `records` | what programs write on boards |
//! | `unmoved` | memory of the own rack that stays there |
//! | `board` | the tables of the pool that programs of different racks exchange records in |
//! | `copy` | the bytes and the block map of a rack, and those of its peers |
//! | `part_hashes` | the hashes of a block's parts, in whatever pieces they come |
//! | `reads` | reads blocks of peers, on threads of their own |
//! | `session` | runs the machine of one rack in one cast |
//! | `root` | [`Store::cast`](crate::Store::cast) |
//! | `agent` | [`CastAgent`]: takes part for its rack |
//! | `requests` | asks the agents of other racks to bring back an object, or to take one |

mod agent;
mod board;
mod copy;
mod link;
mod options;
mod part_hashes;
mod reads;
mod records;
mod requests;
mod root;
mod session;
mod unmoved;

#[cfg(feature = "fuzzing")]
pub(crate) use records::fuzz_record;

pub use agent::{AgentEvent, CastAgent};
pub use options::{
    CastFailure, CastOptions, CastProgress, CastReport, CastSchedule, CastVisibility,
};
pub(crate) use requests::{Lenders, ask_to_restore};
