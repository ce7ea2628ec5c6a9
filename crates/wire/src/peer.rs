//! Between two rack daemons, as messages of their fabric.
//!
//! Requests carry a call number that the answer repeats. [`PeerRequest::Allocate`] and
//! [`PeerRequest::Free`] also carry a sequence number that survives both daemons, so that each is
//! done exactly once although it may be sent again after a crash.

use bincode::{Decode, Encode};
use rackpool_model::{Epoch, FrameId, GlobalAddr, MemoryId, PageId, RackId};

/// A message of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerMessage {
    /// Something asked of the receiver.
    Request {
        /// Unique among the sender's unanswered requests to this peer.
        call: u64,
        /// What is asked.
        request: PeerRequest,
    },
    /// The answer to a request of the receiver.
    Reply {
        /// The call it answers.
        call: u64,
        /// The answer.
        reply: PeerReply,
    },
}

/// What one daemon asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerRequest {
    /// Where does the page lie? The answer is a location lease.
    Lookup {
        /// The page.
        page: PageId,
    },
    /// Give the lease back: drain your own operations on the page, forget it, answer.
    Revoke {
        /// The page.
        page: PageId,
        /// The epoch the lease was given for.
        epoch: Epoch,
    },
    /// Compare and swap 8 bytes on the home rack's CPU.
    CompareAndSwap {
        /// Where; aligned to 8 bytes.
        addr: GlobalAddr,
        /// What must be there.
        expected: u64,
        /// What shall be there.
        new: u64,
    },
    /// Add to 8 bytes on the home rack's CPU, wrapping.
    FetchAndAdd {
        /// Where; aligned to 8 bytes.
        addr: GlobalAddr,
        /// What to add.
        delta: u64,
    },
    /// Hand out objects for a client of the asking rack.
    Allocate {
        /// Who asks.
        rack: RackId,
        /// The identity of its memory, which the sequence belongs to.
        memory: MemoryId,
        /// The request's number among those of this rack; each is carried out once.
        sequence: u64,
        /// Bytes of each object.
        bytes: u64,
        /// How many, at most.
        count: u16,
    },
    /// Take back objects.
    Free {
        /// Who asks.
        rack: RackId,
        /// The identity of its memory, which the sequence belongs to.
        memory: MemoryId,
        /// The request's number among those of this rack; each is carried out once.
        sequence: u64,
        /// The objects.
        addrs: Vec<GlobalAddr>,
    },
}

/// What a daemon answers to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerReply {
    /// The page lies here; the asker holds a lease now.
    Location {
        /// The frame.
        frame: FrameId,
        /// The page's epoch.
        epoch: Epoch,
        /// What the page is used for, as its slab header says.
        usage: u64,
    },
    /// The page holds nothing: it was freed or never allocated.
    NotAllocated,
    /// The page's home is elsewhere: ask the metadata server.
    NotHere,
    /// The lease has been given back.
    Revoked,
    /// The value before the operation.
    Value(u64),
    /// The objects handed out: none when the rack is full.
    Allocated(Vec<GlobalAddr>),
    /// The objects are free; `refused` of them were not allocated.
    Freed {
        /// How many were no objects in use.
        refused: u16,
    },
    /// The request breaks a rule.
    Invalid(String),
}
