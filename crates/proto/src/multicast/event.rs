//! Events, actions and messages of a multicast.

use alloc::collections::BTreeMap;

use bincode::{Decode, Encode};
use rackpool_model::RackId;

use super::block_map::BlockMap;
use super::plan::{Plan, PlanError};
use super::{Block, Epoch, Version};

/// An event at a rack of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MulticastEvent {
    /// A message of another rack of the group.
    Message(RackId, MulticastMessage),
    /// A [`MulticastAction::Look`] has ended.
    Looked {
        /// The rack whose map was read.
        from: RackId,
        /// Index of the word.
        word: u32,
        /// The version of the object that the rack receives, and the word; `None` if the rack
        /// can't be read.
        found: Option<(Version, u64)>,
    },
    /// A [`MulticastAction::Read`] has ended.
    BlockRead {
        /// The rack that was read.
        from: RackId,
        /// The block.
        block: Block,
        /// The version of the object in that rack, read after the bytes; `None` if the rack can't
        /// be read.
        found: Option<Version>,
    },
    /// A [`MulticastAction::Verify`] has ended: whether the bytes have the object's checksum.
    Verified(bool),
    /// A [`MulticastAction::Publish`] has ended: the object is visible.
    Published,
    /// A rack, or the program that acts for it in the group, has ended.
    RackLost(RackId),
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An action for the shell of a rack. The shell executes actions in order, before the next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MulticastAction {
    /// Send a message to another rack. It may be lost; messages of a rack do not overtake each
    /// other.
    Send(RackId, MulticastMessage),
    /// Read the version and a word of the block map in another rack.
    Look {
        /// The rack.
        from: RackId,
        /// Index of the word.
        word: u32,
    },
    /// Read a block of another rack into its place here, then the version there.
    Read {
        /// The rack.
        from: RackId,
        /// The block.
        block: Block,
    },
    /// Set the bit of a block in this rack's map. Its bytes are in their place.
    MarkReceived(Block),
    /// Compute the checksum of the complete object.
    Verify,
    /// Make the object visible to programs of this rack.
    Show,
    /// Make the object visible in the pool, by the one step that decides it. Has no effect if it is
    /// visible already.
    Publish,
    /// The multicast has ended for this rack. No read is under way. If it failed, the memory that
    /// the rack received into may be freed: the object was never shown here.
    End(Result<(), Failure>),
    /// The multicast has ended: what became of each rack. Only the coordinator that ends it says
    /// so.
    Report(BTreeMap<RackId, Result<(), Failure>>),
}

/// Why a rack does not get the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Failure {
    /// The rack has ended.
    #[error("the rack or its program has ended")]
    Lost,
    /// The rack did not report for the grace time.
    #[error("the rack did not report in time")]
    Silent,
    /// The rack cannot read from the rack that has the object.
    #[error("the rack can't read from the root")]
    Unreachable,
    /// The bytes do not have the object's checksum.
    #[error("the object is damaged: its checksum differs")]
    Damaged,
    /// The survivors together lack a block.
    #[error("no plan completes the group: {0}")]
    NoPlan(PlanError),
}

/// A message between a coordinator and a member.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MulticastMessage {
    /// Coordinator to member: enter a new epoch. Begin no read until its plan.
    Wedge(Epoch),
    /// Coordinator to member: the plan of an epoch.
    Plan(Epoch, Plan),
    /// Member to coordinator; repeated.
    Report(Epoch, Status),
    /// Coordinator to member: the multicast has ended for the member.
    End(Epoch, Result<(), Failure>),
    /// To a coordinator: a later epoch has begun.
    Overtaken(Epoch),
}

/// The state of a member, for its coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Status {
    /// It begins no read until a plan comes, and none is under way. It has these blocks.
    Wedged(BlockMap),
    /// It reads; it has this number of blocks.
    Receiving(u32),
    /// It can't read from this rack, and waits for a new epoch.
    Stuck(RackId),
    /// It has the object, and has verified it.
    Complete,
    /// It can't get the object.
    Failed(Failure),
}
