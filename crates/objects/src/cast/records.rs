//! What programs write on boards. Records of other programs are untrusted.

use std::collections::BTreeSet;

use bincode::{Decode, Encode};
use rackpool_client::{GlobalAddr, RackId};
use rackpool_proto::multicast::Group;

use super::link::Link;
use crate::layout::head::Head;

/// The number of a cast, chosen at random. It is also the version of the multicast: a block map
/// that begins with it belongs to this cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub(super) struct CastNumber(pub(super) u64);

/// An agent that serves a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct AgentRecord {
    /// When the agent wrote this, in milliseconds since 1970.
    pub(super) seen_ms: u64,
    /// The number of its inbox, chosen at random. It takes another one if the inbox can't be read,
    /// because the rack that wrote the last invitation is away.
    pub(super) inbox: u64,
    /// The memory in bytes that the rack has for objects of other racks.
    pub(super) lends_bytes: u64,
    /// What the agent has measured of the rack's link, if it has received anything.
    pub(super) link: Option<Link>,
}

/// What an agent is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Inbox {
    pub(super) requests: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum Request {
    /// Join a cast.
    Join(Invitation),
    /// Bring an object back into memory that is in a file of the agent's rack.
    Restore(ObjectRequest),
    /// Move an object into the agent's rack.
    Adopt(ObjectRequest),
}

/// The object that an agent is asked to bring back or to take, and the rack of the program that
/// asks. The agent writes an [`Outcome`] on the board of that rack.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct ObjectRequest {
    /// Chosen at random, as that of a cast: the answer is kept as long as the asking program lives.
    pub(super) number: CastNumber,
    pub(super) from: RackId,
    /// The header of the store, and its stamp.
    pub(super) store: GlobalAddr,
    pub(super) stamp: u64,
    pub(super) id: Vec<u8>,
}

/// A cast, and the rack that it began in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Invitation {
    pub(super) cast: CastNumber,
    pub(super) root: RackId,
}

/// What is cast, and to whom.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct CastRecord {
    /// The header of the store, and its stamp.
    pub(super) store: GlobalAddr,
    pub(super) stamp: u64,
    pub(super) id: Vec<u8>,
    /// The version of the object's entry.
    pub(super) version: [u8; 12],
    /// The value of the object's entry.
    pub(super) head: [u8; Head::VALUE],
    pub(super) block_bytes: u64,
    pub(super) group: Group,
    /// A rack whose program reports nothing for this time, in milliseconds, is taken for lost.
    pub(super) grace_ms: u64,
}

impl CastRecord {
    /// The racks and the number of blocks, if they can be ones of this object.
    pub(super) fn is_valid(&self) -> bool {
        let Some(head) = Head::decode(&self.head) else { return false };
        let racks: BTreeSet<_> = self.group.members.iter().map(|member| member.rack).collect();
        let blocks = head.len().div_ceil(self.block_bytes.max(1)).max(1);
        racks.len() == self.group.members.len()
            && !racks.is_empty()
            && u64::from(self.group.blocks) == blocks
            && self.block_bytes.is_multiple_of(BLOCK_UNIT)
            && self.block_bytes > 0
    }

    /// The rack that the cast began in.
    pub(super) fn root(&self) -> Option<RackId> {
        self.group.members.first().map(|member| member.rack)
    }
}

/// Blocks of a cast are multiples of the blocks that the object's checksum is made of.
pub(super) const BLOCK_UNIT: u64 = crate::checksum::Checksum::BLOCK as u64;

/// Where a rack receives an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Place {
    /// The head of the rack's copy, and the number of its extents.
    pub(super) head: GlobalAddr,
    pub(super) extents: u32,
    /// The rack's block map.
    pub(super) map: GlobalAddr,
}

/// What a rack tells the root besides the messages of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum Outcome {
    /// The cast has ended, and programs of the rack may use the object; or it was brought back from
    /// a file, or has moved into the rack.
    Shown,
    /// The object was deleted, or is another one by now. The rack takes no part.
    Deleted,
    /// The rack takes no part, for this reason.
    Refused(String),
}

/// The last heartbeat of a rack's program in a cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Alive {
    /// When it was written, in milliseconds since 1970.
    pub(super) at_ms: u64,
}

/// Decodes a record of the kind that its first byte selects.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_record(bytes: &[u8]) {
    use rackpool_proto::multicast::event::MulticastMessage;

    use crate::fuzzing::of_board;
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => of_board::<AgentRecord>(bytes),
        1 => of_board::<Inbox>(bytes),
        2 => of_board::<Place>(bytes),
        3 => of_board::<Outcome>(bytes),
        4 => of_board::<Alive>(bytes),
        5 => of_board::<MulticastMessage>(bytes),
        _ => {
            of_board::<CastRecord>(bytes);
            if let Ok(record) = rackpool_wire::decode::<CastRecord>(bytes) {
                assert!(!record.is_valid() || record.root().is_some());
            }
        }
    }
}
