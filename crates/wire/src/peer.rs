//! Messages between two rack daemons: the bodies and heads of requests between racks
//! (`rackpool-rrpc`).
//!
//! [`PeerRequest::Allocate`] and [`PeerRequest::Free`] carry a sequence number that survives
//! restarts of both daemons. Each is executed exactly once, even if it is sent again after a crash.

use bincode::{Decode, Encode};
use rackpool_model::{Access, Epoch, FrameId, GlobalAddr, MemoryId, PageId, RackId};

use crate::lock::{LockEnd, LockOutcome, WrittenBytes};
use crate::swap::{Between, SwapId};

/// Bytes of a line, the unit of dirty logging: a cache line.
pub const LINE_BYTES: usize = 64;

/// A request of one daemon to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerRequest {
    /// Ask for a location lease of a page.
    Lookup {
        /// The page.
        page: PageId,
        /// The requester's number of this request. The requester ignores answers to any but its
        /// last one for the page.
        question: u64,
        /// The kind of access needed: a frozen page is leased for reading only.
        access: Access,
        /// Whether the requester wants to keep a replica.
        keep: bool,
    },
    /// Call back a lease given over this endpoint. The holder drains its operations on the page,
    /// forgets the lease and answers [`PeerReply::Returned`]. With `keep_reading` it drains its
    /// writes only, drops its replica, and continues to read under the lease.
    Revoke {
        /// The page.
        page: PageId,
        /// The home's number of the lease.
        lease: u64,
        /// Whether the holder may continue to read under it.
        keep_reading: bool,
    },
    /// Compare and swap 8 bytes, executed by the home's processor.
    CompareAndSwap {
        /// The address, aligned to 8 bytes.
        addr: GlobalAddr,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// Add to 8 bytes, wrapping, executed by the home's processor.
    FetchAndAdd {
        /// The address, aligned to 8 bytes.
        addr: GlobalAddr,
        /// The summand.
        delta: u64,
    },
    /// A forwarded write: the home's processor writes the page, which moves.
    Write {
        /// The address; the bytes lie within one page.
        addr: GlobalAddr,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// Allocate objects for a client of the requesting rack.
    Allocate {
        /// The requesting rack.
        rack: RackId,
        /// The identity of its memory, to which the sequence belongs.
        memory: MemoryId,
        /// The number of the exchange in that sequence; each is executed once.
        sequence: u64,
        /// Bytes of each object.
        bytes: u64,
        /// The most objects to allocate.
        count: u16,
    },
    /// Free objects.
    Free {
        /// The requesting rack.
        rack: RackId,
        /// The identity of its memory, to which the sequence belongs.
        memory: MemoryId,
        /// The number of the exchange in that sequence; each is executed once.
        sequence: u64,
        /// The objects.
        addrs: Vec<GlobalAddr>,
    },
    /// A message about a swap. The answer only acknowledges receipt; a reply of the swap protocol
    /// is a message of its own.
    Swap(Between),
    /// The dirty lines of the page that this swap moves to the receiver: what its old home wrote
    /// since it was frozen. The answer only acknowledges receipt, as for [`Self::Swap`].
    DirtyLines {
        /// The swap.
        swap: SwapId,
        /// The page's frame at the sender.
        frame: FrameId,
        /// Whether the lines are complete. If false, the receiver copies the whole page again.
        known: bool,
        /// The numbers of the dirty lines in the page.
        lines: Vec<u32>,
        /// Their bytes, [`LINE_BYTES`] each.
        bytes: Vec<u8>,
    },
    /// Ask for the slab header and the object bitmap of a page that moves. Neither changes while
    /// the page is frozen.
    Contents {
        /// The page.
        page: PageId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Return a lease given over this endpoint without a call back: the page has arrived at the
    /// sender. The answer only acknowledges receipt. If the message is lost, the home calls the
    /// lease back.
    Return {
        /// The page.
        page: PageId,
        /// The home's number of the lease.
        lease: u64,
    },
    /// Lock lines of a page for a client of the requesting rack. The lock is valid as long as the
    /// endpoint that carries the request.
    Lock {
        /// The requester's number of the lock.
        number: u64,
        /// The lines and the mode, as [`LockClaim`](rackpool_model::LockClaim) encodes them.
        claim: u64,
        /// How long the request waits, in microseconds.
        timeout_us: u64,
    },
    /// The outcome of a request that was answered with [`LockOutcome::Queued`]. The answer only
    /// acknowledges receipt.
    LockDecided {
        /// The requester's number of the lock.
        number: u64,
        /// The outcome.
        outcome: LockOutcome,
    },
    /// Give up a lock or the request for it. The home writes the bytes before. The answer only
    /// acknowledges receipt.
    Unlock {
        /// The requester's number of the lock.
        number: u64,
        /// How it ends.
        end: LockEnd,
        /// What the holder could not write back.
        written: WrittenBytes,
    },
}

/// An answer of one daemon to another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PeerReply {
    /// The page is here, and the requester holds a lease now.
    Location {
        /// The home's number of the lease, which is valid for the endpoint that carries this
        /// answer.
        lease: u64,
        /// The frame.
        frame: FrameId,
        /// The page's epoch.
        epoch: Epoch,
        /// The use of the page, from its slab header.
        usage: u64,
        /// Whether the lease permits writing too.
        writable: bool,
        /// Whether the page moves and the home executes [`PeerRequest::Write`] meanwhile.
        forwards: bool,
        /// The number of the sharing: the requester may keep a replica while the lease is valid.
        /// `None`: it may not.
        sharing: Option<u64>,
    },
    /// The page is not allocated: it was freed or never allocated.
    NotAllocated,
    /// This rack is not the page's home; the requester must ask the metadata server.
    NotHere,
    /// The page is here but can't be used yet, since it moves or leaves. Nothing was done; the
    /// requester repeats the request later.
    Busy,
    /// The holder has returned the lease, or the right to do more than read: no further operation
    /// lands under it.
    Returned,
    /// The value before the operation.
    Value(u64),
    /// The bytes are written.
    Written {
        /// Whether the page moves: the requester must forward its next write too.
        moving: bool,
    },
    /// The page is lost: it was to arrive here, but its old home lost the lines that this copy
    /// lacks.
    Lost,
    /// The allocated objects.
    Allocated(Vec<GlobalAddr>),
    /// The rack has no room for even one of the objects.
    Full {
        /// Its free frames.
        free_frames: u32,
    },
    /// The objects are free; `refused` of them were not allocated.
    Freed {
        /// The number of addresses that were not allocated objects.
        refused: u16,
        /// Objects of pages that have moved away; they are not freed.
        moved: Vec<GlobalAddr>,
    },
    /// A message was received.
    Heard,
    /// The slab header of a page that moves. The answer's data is the bitmap: one bit for each
    /// object, in little-endian words of 8 bytes.
    Contents {
        /// The use of the page, from its slab header.
        usage: u64,
    },
    /// The request violates a rule that the text names.
    Invalid(String),
    /// The outcome of a request for a lock.
    Lock(LockOutcome),
}
