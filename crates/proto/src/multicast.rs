//! Multicast: one object is copied from its root to a group of racks, in blocks.
//!
//! A member reads each block one-sided from a peer, straight into its place, once the peer's block
//! map has the block. So schedules need no agreement between sender and receiver: a member that
//! knows the plan of the epoch knows what to read where. See docs/design/multicast.md.
//!
//! | module | holds |
//! |---|---|
//! | [`schedule`] | who sends which block to whom at which step: pure functions |
//! | [`block_map`] | which blocks a rack has |
//! | [`block_size`] | the best size of a block |
//! | [`plan`] | what is sent in an epoch: a function of the survivors' block maps |
//! | [`member`] | reads the blocks of a rack |
//! | [`coordinator`] | begins epochs, collects what became of each rack |
//! | [`participant`] | both for one rack; the machine that a shell runs |
//! | [`model`] | when each transfer ends, in virtual time |

pub mod block_map;
pub mod block_size;
pub mod coordinator;
pub mod event;
pub mod member;
pub mod model;
pub mod participant;
pub mod plan;
pub mod schedule;

use core::time::Duration;

use bincode::{Decode, Encode};
use rackpool_model::RackId;

/// A block of the object: bytes `number * block size` and following.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Block(pub u32);

/// The version of an object: another one for each object that ever had the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Version(pub u64);

/// An epoch of a group: the time in which one plan holds. The later of two epochs is the greater
/// one; two coordinators never begin the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Epoch {
    /// Counts the epochs.
    pub number: u32,
    /// The rack that began the epoch.
    pub coordinator: RackId,
}

/// When programs may see the object in a member's rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Visibility {
    /// In each rack as soon as the rack is complete.
    Each,
    /// In no rack before every surviving rack is complete.
    Together,
}

/// A rack of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GroupMember {
    /// The rack.
    pub rack: RackId,
    /// Racks of the same pod have the same number and are neighbours in the group. Schedules other
    /// than the hybrid one ignore it.
    pub pod: u16,
}

/// One multicast, the same for all that take part.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Group {
    /// The racks in rank order, each once; the root first.
    pub members: alloc::vec::Vec<GroupMember>,
    /// The object.
    pub version: Version,
    /// The number of its blocks, at least 1.
    pub blocks: u32,
    /// The schedule of each epoch.
    pub schedule: schedule::Schedule,
    /// When programs may see the object.
    pub visibility: Visibility,
}

/// Times of a multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastRules {
    /// The time until a block map that lacked the next block is read again, and the longest such
    /// time; it doubles with each look in vain.
    pub first_look: Duration,
    /// See [`first_look`](Self::first_look).
    pub longest_look: Duration,
    /// The interval at which a member repeats its report, and a coordinator its call to a new
    /// epoch.
    pub beat: Duration,
    /// A member without a report for this time has failed. Longer than an access to a rack that has
    /// ended takes to fail, which is some leases of the pool.
    pub grace: Duration,
}

impl MulticastRules {
    /// Looks after 20 us to 1 ms; a report each 100 ms; a member is given up after 10 s.
    pub const DEFAULT: Self = Self {
        first_look: Duration::from_micros(20),
        longest_look: Duration::from_millis(1),
        beat: Duration::from_millis(100),
        grace: Duration::from_secs(10),
    };
}
