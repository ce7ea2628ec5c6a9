//! Messages between a rack daemon (or the `rackpool` command) and the metadata server.
//!
//! Both sides send [`Tagged`] messages; an answer carries its request's tag. Requests of one
//! connection may be answered out of order. An accepted [`MetadataRequest::Swap`] has no answer;
//! the metadata server sends [`MetadataReply::Swap`] unsolicited, with the tag [`PUSHED`].

mod directory_entry;

use bincode::{Decode, Encode};
use rackpool_model::{
    FabricKey, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, RackId, StorePosition,
};

use crate::bounds::OutOfBounds;
use crate::swap::{FromServer, ToServer};

pub use directory_entry::{DirectoryEntry, LastMove, PageLock};

/// The tag of unsolicited messages. Tags of requests begin at 1.
pub const PUSHED: u64 = 0;

/// A message with the tag that matches an answer to its request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tagged<M> {
    /// Chosen by the sender of the request, unique among its unanswered requests.
    pub tag: u64,
    /// The request or the answer.
    pub message: M,
}

/// How a rack daemon announces itself when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RackAnnouncement {
    /// The rack it serves.
    pub rack: RackId,
    /// The identity of the memory it found or formatted.
    pub memory: MemoryId,
    /// The daemon's incarnation.
    pub incarnation: Incarnation,
    /// Frames in the rack, and the number of page ids that it needs, in one range.
    pub frames: u32,
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The last commit of the metadata server that the rack has acted on; `None` before its first
    /// registration.
    pub seen: Option<StorePosition>,
    /// The path of the daemon's Unix socket, for clients of the rack.
    pub control_path: String,
    /// The daemon's address for other racks, in the notation of its fabric.
    pub fabric_address: String,
}

/// A request to the metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MetadataRequest {
    /// A daemon begins to serve its rack.
    Register(RackAnnouncement),
    /// A daemon is alive. The daemon sends several heartbeats within each lease.
    Heartbeat {
        /// The rack it serves.
        rack: RackId,
        /// Its incarnation. The metadata server refuses any but the registered one.
        incarnation: Incarnation,
        /// Frames that hold no page.
        free_frames: u32,
        /// The newest membership version that the daemon has. If there is a newer one, the answer
        /// carries all members.
        seen_version: u64,
    },
    /// A daemon stops regularly: its lease ends now; the rack's memory stays.
    Leave {
        /// The rack it served.
        rack: RackId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Ask which rack is the page's home.
    Locate {
        /// The page.
        page: PageId,
    },
    /// Read the address stored under a name.
    GetRoot {
        /// 1 to 255 bytes of UTF-8.
        name: String,
    },
    /// Compare-and-set on a name: store `new` if the stored address equals `expected`.
    PutRoot {
        /// 1 to 255 bytes of UTF-8.
        name: String,
        /// The expected address; `None`: the name is not set.
        expected: Option<GlobalAddr>,
        /// The new address; `None` removes the name.
        new: Option<GlobalAddr>,
    },
    /// Read the state of the pool, for operators.
    Status,
    /// A message of a rack about a swap. Only the rack's daemon may send it, over the connection on
    /// which it registered last. It is answered only if it is refused, with the tag [`PUSHED`]; the
    /// metadata server's own messages about swaps are [`MetadataReply::Swap`].
    Swap {
        /// The sending rack.
        rack: RackId,
        /// Its daemon's incarnation.
        incarnation: Incarnation,
        /// The message.
        message: ToServer,
    },
    /// Read the directory entry of a page.
    Explain {
        /// The page.
        page: PageId,
    },
}

/// An answer or an unsolicited message of the metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MetadataReply {
    /// The rack is a member.
    Registered {
        /// Its page ids; a memory keeps the same ids for ever.
        pages: PageRange,
        /// How long the lease lasts without a heartbeat, in milliseconds.
        lease_ms: u64,
        /// The last durable commit. The rack must record it before it acts on this answer.
        position: StorePosition,
        /// The pool's fabric key, with which the rack authenticates to other racks; only on a
        /// fabric over a network.
        fabric_key: Option<FabricKey>,
    },
    /// The lease is renewed.
    Renewed {
        /// The last durable commit.
        position: StorePosition,
        /// The version of `members`.
        version: u64,
        /// All members if the daemon has another version, free frames have changed, or the daemon
        /// was not sent them on this connection yet; else empty.
        members: Vec<Member>,
    },
    /// The rack's lease has ended as requested.
    Left,
    /// The home of a page.
    Located {
        /// The pages for which the answer holds: a range around the page of pages at the same home
        /// that have never moved; or only the page itself.
        pages: PageRange,
        /// Their home.
        home: RackId,
    },
    /// No memory has this page id.
    NoSuchPage,
    /// The page's contents are lost: its home has other memory now.
    PageLost,
    /// The address now stored under the name. After a [`MetadataRequest::PutRoot`] it equals `new`
    /// if the expectation was met.
    Root {
        /// The address; `None`: the name is not set.
        addr: Option<GlobalAddr>,
        /// Whether this answers a `PutRoot` that took effect.
        changed: bool,
    },
    /// The pool's state.
    Status(PoolStatus),
    /// The metadata server refused the request.
    Refused(Refusal),
    /// Unsolicited, with the tag [`PUSHED`]: a message to the rack about a swap.
    Swap {
        /// The message.
        message: FromServer,
        /// The last durable commit. The rack must record it before it acts on the message.
        position: StorePosition,
    },
    /// The directory entry of the page.
    Explained(DirectoryEntry),
    /// Unsolicited, with the tag [`PUSHED`]: the membership has changed.
    Members {
        /// The version of `members`.
        version: u64,
        /// All members.
        members: Vec<Member>,
    },
}

/// Why the metadata server refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Refusal {
    /// A daemon with other memory serves the rack and its lease is valid.
    #[error("rack {} is served by another daemon with other memory (lease valid for {remaining_ms} ms more): stop that daemon or choose another --rack", .rack.0)]
    RackTaken {
        /// The rack.
        rack: RackId,
        /// The rest of that daemon's lease, in milliseconds.
        remaining_ms: u64,
    },
    /// A daemon with a larger incarnation has taken the rack over.
    #[error("a newer daemon (incarnation {}) serves rack {}: this one must stop", .current.0, .rack.0)]
    Superseded {
        /// The rack.
        rack: RackId,
        /// The incarnation registered now.
        current: Incarnation,
    },
    /// The pool has another page size.
    #[error(
        "the pool's pages have {pool} B, this rack was formatted with {rack} B: format it with --page-size {pool}"
    )]
    PageSize {
        /// The pool's page size in bytes.
        pool: u64,
        /// The rack's page size in bytes.
        rack: u64,
    },
    /// The memory has another number of frames than when it joined.
    #[error(
        "this memory has {now} frames but had {before} when it joined: start the daemon with the old --memory"
    )]
    FramesChanged {
        /// Its frames when it joined.
        before: u32,
        /// Its frames now.
        now: u32,
    },
    /// The rack's memory belongs to another metadata store.
    #[error(
        "the rack's memory belongs to another metadata store ({:016x}) than the metadata server has now ({:016x}): start the metadata server with the store that it had (--store), or remove the rack's folder to start with an empty rack", .seen.store, .own.store
    )]
    OtherStore {
        /// The last commit that the rack has acted on.
        seen: StorePosition,
        /// The last commit of the store.
        own: StorePosition,
    },
    /// The store is older than the last commit that the rack has acted on.
    #[error(
        "the metadata store is an older copy: the rack has acted on {seen}, and this store ends at {own}: start the metadata server with the newest copy (--store); if there is none, remove the folders of all racks that are refused: they start empty"
    )]
    OlderStore {
        /// The last commit that the rack has acted on.
        seen: StorePosition,
        /// The last commit of the store.
        own: StorePosition,
    },
    /// A rack with a valid lease uses another kind of fabric.
    #[error(
        "{rack} is served over the fabric {theirs:?}, this daemon has {own:?}, and the racks of a pool use the same: start this daemon with --fabric {theirs}, or stop all daemons first"
    )]
    OtherFabric {
        /// The rack with the valid lease.
        rack: RackId,
        /// The fabric of that rack.
        theirs: String,
        /// The fabric of the rack that is refused.
        own: String,
    },
    /// Not enough page ids are left.
    #[error("the pool has handed out all of its 2^32 page ids: create a new pool")]
    PageIdsExhausted,
    /// The rack never registered, its lease has expired, or the message did not come over its
    /// registered connection.
    #[error("rack {} is no member (its lease ran out): register again", .0.0)]
    NotMember(RackId),
    /// The request violates a rule that the text names.
    #[error("{0}")]
    Invalid(String),
    /// A field of the request exceeds its limit.
    #[error(transparent)]
    OutOfBounds(OutOfBounds),
    /// The requester's credentials do not permit the request.
    #[error("{0}")]
    Denied(String),
    /// The store failed to make the change durable. Whether it is in the store is known only after
    /// a restart of the metadata server; until then no process sees the change.
    #[error(
        "the metadata store failed: {0}; see the metadata server's log; whether the change was made shows when the metadata server is started again"
    )]
    Store(String),
}

/// A rack of the pool as other racks see it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Member {
    /// The rack.
    pub rack: RackId,
    /// Its daemon's incarnation.
    pub incarnation: Incarnation,
    /// The identity of its memory.
    pub memory: MemoryId,
    /// Whether its lease is valid.
    pub alive: bool,
    /// Its page ids.
    pub pages: PageRange,
    /// Frames that held no page at its last heartbeat.
    pub free_frames: u32,
    /// The path of the daemon's Unix socket.
    pub control_path: String,
    /// The daemon's address for other racks.
    pub fabric_address: String,
}

/// The state of the pool, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PoolStatus {
    /// The page size in bytes; 0 before the first rack has joined.
    pub page_bytes: u64,
    /// How long a lease lasts, in milliseconds.
    pub lease_ms: u64,
    /// Membership version.
    pub version: u64,
    /// All racks that ever registered, dead ones included.
    pub members: Vec<Member>,
    /// Those of them whose daemons have stopped regularly.
    pub left: Vec<RackId>,
    /// Roots: names and their addresses.
    pub roots: Vec<(String, GlobalAddr)>,
    /// The number of lost pages.
    pub lost_pages: u64,
    /// The size of the store's file in bytes.
    pub store_bytes: u64,
}
