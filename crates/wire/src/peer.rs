//! Between two rack daemons: what they ask and answer, as bodies and heads of requests between
//! racks (`rackpool-rrpc`).
//!
//! [`PeerRequest::Allocate`] and [`PeerRequest::Free`] carry a sequence number that survives both
//! daemons, so that each is done exactly once although it may be sent again after a crash.

use bincode::{Decode, Encode};
use rackpool_model::{Access, Epoch, FrameId, GlobalAddr, MemoryId, PageId, RackId};

use crate::swap::{Between, SwapId};

/// Bytes of a line of a page, the unit in which what was written in it is told: a cache line.
pub const LINE_BYTES: usize = 64;

/// What one daemon asks of another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerRequest {
    /// Where does the page lie? The answer is a location lease.
    Lookup {
        /// The page.
        page: PageId,
        /// The requester's number of the question. Only the answer to its last one counts.
        question: u64,
        /// What for: a page that is frozen is leased for reading only.
        access: Access,
        /// Whether the requester wants to keep a copy.
        keep: bool,
    },
    /// Give the lease back that was given over this endpoint: drain your own operations on the
    /// page, forget it, answer [`PeerReply::Returned`]. Or only the right to write: drain your own
    /// writes and read on.
    Revoke {
        /// The page.
        page: PageId,
        /// The home's number of the lease.
        lease: u64,
        /// Whether reads may go on under it.
        keep_reading: bool,
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
    /// Write in a page on the home rack's CPU, as the home does while the page moves.
    Write {
        /// Where; within one page.
        addr: GlobalAddr,
        /// What.
        bytes: Vec<u8>,
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
    /// About a swap. The answer says nothing: whatever is to be said about it is a message of its
    /// own.
    Swap(Between),
    /// What was written, since it was frozen, in the page that this swap moves to the asked rack.
    /// The answer says nothing, as with [`Self::Swap`].
    DirtyLines {
        /// The swap.
        swap: SwapId,
        /// Where the page lies at the requester.
        frame: FrameId,
        /// Whether the lines are all; if not only the page as a whole has everything.
        known: bool,
        /// The lines of the page that were written.
        lines: Vec<u32>,
        /// Their bytes, [`LINE_BYTES`] each.
        bytes: Vec<u8>,
    },
    /// The slab header and the object bitmap of a page that moves: they stand still.
    Contents {
        /// The page.
        page: PageId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The lease that was given over this endpoint is back unasked: the page has come to the
    /// requester. The answer says nothing, and what is lost is called back.
    Return {
        /// The page.
        page: PageId,
        /// The home's number of the lease.
        lease: u64,
    },
    /// Where will the page lie that goes to the asked rack with this swap? Answered as
    /// [`Self::Lookup`] for reading, when it can be read there. If the asked rack knows the swap
    /// the lease is good for writing, too, as soon as the requester has left the page.
    PrefetchLease {
        /// The swap.
        swap: SwapId,
        /// The page.
        page: PageId,
    },
}

/// What a daemon answers to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerReply {
    /// The page lies here; the requester holds a lease now.
    Location {
        /// The home's number of the lease, which is good for the endpoint over which it comes.
        lease: u64,
        /// The frame.
        frame: FrameId,
        /// The page's epoch.
        epoch: Epoch,
        /// What the page is used for, as its slab header says.
        usage: u64,
        /// Whether the lease is good for writing too.
        writable: bool,
        /// Whether the home carries out [`PeerRequest::Write`] meanwhile: the page moves.
        forwards: bool,
        /// The number under which the page is shared: the requester may keep a copy as long as the
        /// lease is good.
        sharing: Option<u64>,
    },
    /// The page holds nothing: it was freed or never allocated.
    NotAllocated,
    /// The page's home is elsewhere: ask the metadata server.
    NotHere,
    /// The page is here and about to move or to leave. Nothing was done: ask again a little later.
    Busy,
    /// The lease has been given back, or the right to write: nothing more comes of it.
    Returned,
    /// The value before the operation.
    Value(u64),
    /// It is written.
    Written {
        /// Whether the page moves, so that the next write is to be asked for as well.
        moving: bool,
    },
    /// The page was to come here when what was in it was lost.
    Lost,
    /// The objects handed out.
    Allocated(Vec<GlobalAddr>),
    /// The rack has no room for even one of the objects.
    Full {
        /// Its free frames.
        free_frames: u32,
    },
    /// The objects are free; `refused` of them were not allocated.
    Freed {
        /// How many were no objects in use.
        refused: u16,
        /// Those of pages that have moved away: they are not free.
        moved: Vec<GlobalAddr>,
    },
    /// A message has come.
    Heard,
    /// The page moves. Its bitmap is the data of the answer: a bit for each object, 8 bytes
    /// at a time, little endian.
    Contents {
        /// What the page is used for, as its slab header says.
        usage: u64,
    },
    /// The request breaks a rule.
    Invalid(String),
}
