use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rackpool_client::RackId;

use crate::error::StoreError;

/// How a group is made.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// The memory that the root and each member take, in bytes: a power of two from 4 KiB on, 1
    /// MiB unless set, and at most a page: if the pool's pages are smaller, it is a page. All but
    /// 256 B of it are the ring. Messages of up to a quarter of the ring are in it; longer ones are
    /// objects.
    pub ring_bytes: u64,
    /// The time in which a program must have joined in each rack; 30 s unless set.
    pub joining: Duration,
    /// A program that does not answer, or that takes no message while others wait for it, is taken
    /// for lost after this time; 10 s unless set, at least 1 s. The time is the same for the root
    /// and all members.
    pub grace: Duration,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 1 << 20,
            joining: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// How a group has ended for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// The root has closed the group, and this member has taken all messages.
    Closed,
    /// The root is lost. The members of these racks, of which this is one, have the same messages.
    RootLost(BTreeSet<RackId>),
    /// The others go on without this member, or have ended without it: it did not answer or take
    /// messages for the grace time, or it can't find out how they have ended. What it has received
    /// is the beginning of what the root has sent.
    Lost,
}

/// What became of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// The number of messages that were sent.
    pub messages: u64,
    /// For each rack whether its member has taken all messages; else how many it has taken, as far
    /// as that is known.
    pub racks: BTreeMap<RackId, Result<(), u64>>,
}

impl GroupReport {
    /// Whether all members have taken all messages.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.racks.values().all(Result::is_ok)
    }
}

/// Why a group can't be made, joined or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupFailure {
    /// The root of a group of this name lives.
    #[error("there is a group of this name: close it, or use another name")]
    Exists,
    /// In these racks no program has joined in time.
    #[error(
        "no program has joined the group in {}: start one there that joins, or leave the rack out",
        Racks(.0)
    )]
    Absent(BTreeSet<RackId>),
    /// There is no group of this name, or its root has not begun.
    #[error("no root has made the group in time: start the root, or look at the name")]
    NoRoot,
    /// The group of this name has no member in this rack.
    #[error("the group has no member in {0}: let its root name the rack, or join in another one")]
    NotNamed(RackId),
    /// Another program is the member of this rack.
    #[error("another program of {0} is the group's member: a rack has one member in a group")]
    Taken(RackId),
    /// All members are lost, so there is nobody to send to.
    #[error("all members of the group are lost: make a new group")]
    NoMember,
    /// The members took the root for lost, and have ended the group.
    #[error(
        "the members have ended the group: they took the root for lost, which did not run for the grace time or could not be read. Make a new group, with a longer grace time if the host is busy"
    )]
    EndedByMembers,
    /// The object of a long message is not there: it is lost with the rack of the root, or this
    /// member was left out, and the others have taken it.
    #[error("message {number} was an object in the rack of the root, and is not there any more")]
    MessageLost {
        /// The number of the message.
        number: u64,
    },
    /// Some program has written to the ring of this one.
    #[error(
        "the ring of the group at byte {position} is damaged: some program wrote to its memory"
    )]
    Damaged {
        /// The position in the stream.
        position: u64,
    },
}

struct Racks<'a>(&'a BTreeSet<RackId>);

impl fmt::Display for Racks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let racks: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&racks.join(", "))
    }
}

/// The error for an option that is not allowed.
pub(super) const fn not_allowed(name: &'static str, allowed: &'static str) -> StoreError {
    StoreError::Option { name, allowed }
}
