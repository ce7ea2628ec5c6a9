//! Between a rack daemon (or the `rackpool` command) and the metadata server.
//!
//! Each side sends [`Tagged`] messages; an answer carries its request's tag. Requests of one
//! connection may be answered out of order. A [`MetadataRequest::Swap`] that is accepted has no
//! answer, and the metadata server sends [`MetadataReply::Swap`] unasked, with the tag [`PUSHED`].

mod directory_entry;

use bincode::{Decode, Encode};
use rackpool_model::{
    FabricKey, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, RackId, StorePosition,
};

use crate::bounds::OutOfBounds;
use crate::swap::{FromServer, ToServer};

pub use directory_entry::{DirectoryEntry, LastMove, PageLock};

/// The tag of what is sent unasked. Tags of requests begin at 1.
pub const PUSHED: u64 = 0;

/// A message and the number that ties an answer to its request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Tagged<M> {
    /// Chosen by the asking side, unique among its unanswered requests.
    pub tag: u64,
    /// What is asked or answered.
    pub message: M,
}

/// What a rack daemon tells of itself when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RackAnnouncement {
    /// The rack it serves.
    pub rack: RackId,
    /// The identity of the memory it found or formatted.
    pub memory: MemoryId,
    /// This life of the daemon.
    pub incarnation: Incarnation,
    /// Frames in the rack; also how many page ids it needs, all in one run.
    pub frames: u32,
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The last commit of the metadata server that the rack has acted on; none before its first
    /// registration.
    pub seen: Option<StorePosition>,
    /// Where clients of the rack find the daemon: the path of its Unix socket.
    pub control_path: String,
    /// Where other racks find it, in the words of its fabric.
    pub fabric_address: String,
}

/// What one asks the metadata server.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MetadataRequest {
    /// A daemon starts to serve its rack.
    Register(RackAnnouncement),
    /// A daemon is alive. Due several times within each lease.
    Heartbeat {
        /// The rack it serves.
        rack: RackId,
        /// Its life; another one than the registered is refused.
        incarnation: Incarnation,
        /// Frames that hold no page.
        free_frames: u32,
        /// The newest membership version it has seen; a newer one comes back whole.
        seen_version: u64,
    },
    /// A daemon stops on purpose: its lease ends now, its memory stays.
    Leave {
        /// The rack it served.
        rack: RackId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// Which rack is the page's home?
    Locate {
        /// The page.
        page: PageId,
    },
    /// The address stored under a name.
    GetRoot {
        /// 1 to 255 bytes of UTF-8.
        name: String,
    },
    /// Store an address under a name if what is there is what the caller expects.
    PutRoot {
        /// 1 to 255 bytes of UTF-8.
        name: String,
        /// What must be there now; `None`: nothing.
        expected: Option<GlobalAddr>,
        /// What shall be there; `None` removes the name.
        new: Option<GlobalAddr>,
    },
    /// Everything worth showing to a person.
    Status,
    /// What a rack has to say about a swap. Only its daemon may, over the connection on which it
    /// registered last. It is answered only when it is refused, with the tag [`PUSHED`]; what the
    /// metadata server has to say itself comes as [`MetadataReply::Swap`].
    Swap {
        /// The rack that speaks.
        rack: RackId,
        /// Its daemon's life.
        incarnation: Incarnation,
        /// What it says.
        message: ToServer,
    },
    /// What has happened to a page?
    Explain {
        /// The page.
        page: PageId,
    },
}

/// What the metadata server answers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MetadataReply {
    /// The rack is a member now.
    Registered {
        /// Its page ids, the same as in its memory's earlier lives.
        pages: PageRange,
        /// How long the lease lasts without a heartbeat, in milliseconds.
        lease_ms: u64,
        /// The last durable commit: to be noted before the rack acts on this answer.
        position: StorePosition,
        /// What it proves itself with to other racks, on a fabric over a network.
        fabric_key: Option<FabricKey>,
    },
    /// The lease is renewed.
    Renewed {
        /// The last durable commit.
        position: StorePosition,
        /// The version of `members`.
        version: u64,
        /// All members, when there is event since `seen_version`; else empty.
        members: Vec<Member>,
    },
    /// The rack's lease has been given back.
    Left,
    /// The page's home.
    Located {
        /// The pages that the answer holds for: those around it that live there too, none of which
        /// has ever moved; or only the page itself.
        pages: PageRange,
        /// Their home.
        home: RackId,
    },
    /// The page was never handed out.
    NoSuchPage,
    /// The page's contents went with the memory in which it lived.
    PageLost,
    /// What stands under the name now. After a [`MetadataRequest::PutRoot`] that equals `new` if
    /// the caller's expectation was met.
    Root {
        /// The address, or `None`.
        addr: Option<GlobalAddr>,
        /// Whether a change was asked for and made.
        changed: bool,
    },
    /// The pool's state.
    Status(PoolStatus),
    /// The request can't be granted.
    Refused(Refusal),
    /// Unasked, with the tag [`PUSHED`]: what the rack must know of a swap.
    Swap {
        /// What.
        message: FromServer,
        /// The last durable commit: to be noted before the rack acts on the message.
        position: StorePosition,
    },
    /// What is known of the page.
    Explained(DirectoryEntry),
    /// Unasked, with the tag [`PUSHED`]: something about the members has changed.
    Members {
        /// The version of `members`.
        version: u64,
        /// All of them.
        members: Vec<Member>,
    },
}

/// Why the metadata server says no.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Refusal {
    /// Another memory serves the rack and its lease is valid.
    #[error("rack {} is served by another daemon with other memory (lease valid for {remaining_ms} ms more): stop that daemon or choose another --rack", .rack.0)]
    RackTaken {
        /// The rack.
        rack: RackId,
        /// What is left of the other's lease, in milliseconds.
        remaining_ms: u64,
    },
    /// A newer daemon has taken the rack over.
    #[error("a newer daemon (incarnation {}) serves rack {}: this one must stop", .current.0, .rack.0)]
    Superseded {
        /// The rack.
        rack: RackId,
        /// The newer life.
        current: Incarnation,
    },
    /// The pool has another page size.
    #[error(
        "the pool's pages have {pool} B, this rack was formatted with {rack} B: format it with --page-size {pool}"
    )]
    PageSize {
        /// The pool's, in bytes.
        pool: u64,
        /// The rack's, in bytes.
        rack: u64,
    },
    /// The rack has other geometry than when its memory was first seen.
    #[error(
        "this memory has {now} frames but had {before} when it joined: start the daemon with the old --memory"
    )]
    FramesChanged {
        /// Frames when it joined.
        before: u32,
        /// Frames now.
        now: u32,
    },
    /// The rack's memory belongs to the pool of another store.
    #[error(
        "the rack's memory belongs to another metadata store ({:016x}) than the metadata server has now ({:016x}): start the metadata server with the store that it had (--store), or remove the rack's folder to give its contents up", .seen.store, .own.store
    )]
    OtherStore {
        /// What the rack has acted on.
        seen: StorePosition,
        /// The last commit of the store.
        own: StorePosition,
    },
    /// The store is older than what the rack has acted on.
    #[error(
        "the metadata store is an older copy: the rack has acted on {seen}, and this store ends at {own}: start the metadata server with the newest copy (--store); if there is none, remove the folders of all racks that are refused, to give their contents up"
    )]
    OlderStore {
        /// What the rack has acted on.
        seen: StorePosition,
        /// The last commit of the store.
        own: StorePosition,
    },
    /// A rack that is served reaches others by another fabric.
    #[error(
        "{rack} is served over the fabric {theirs:?}, this daemon has {own:?}, and the racks of a pool use the same: start this daemon with --fabric {theirs}, or stop all daemons first"
    )]
    OtherFabric {
        /// The rack that is served.
        rack: RackId,
        /// The fabric of that rack.
        theirs: String,
        /// The fabric of the rack that is refused.
        own: String,
    },
    /// No page ids are left.
    #[error("the pool has handed out all of its 2^32 page ids: create a new pool")]
    PageIdsExhausted,
    /// A heartbeat of a rack that never registered or whose lease ran out.
    #[error("rack {} is no member (its lease ran out): register again", .0.0)]
    NotMember(RackId),
    /// The request breaks a limit.
    #[error("{0}")]
    Invalid(String),
    /// A field of the request is outside its bounds.
    #[error(transparent)]
    OutOfBounds(OutOfBounds),
    /// The requester's credentials don't allow it.
    #[error("{0}")]
    Denied(String),
    /// The store could not make the change durable. Whether it has, shows when the metadata server
    /// is started again: until then nobody sees the change.
    #[error(
        "the metadata store failed: {0}; see the metadata server's log; whether the change was made shows when the metadata server is started again"
    )]
    Store(String),
}

/// A rack of the pool as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Member {
    /// The rack.
    pub rack: RackId,
    /// Its daemon's life.
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
    /// Where other racks find it.
    pub fabric_address: String,
}

/// The pool's state for people.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PoolStatus {
    /// The page size in bytes; 0 before the first rack has joined.
    pub page_bytes: u64,
    /// How long a lease lasts, in milliseconds.
    pub lease_ms: u64,
    /// Membership version.
    pub version: u64,
    /// All racks ever seen, the dead ones included.
    pub members: Vec<Member>,
    /// Those of them whose daemons have given their lease back: they ended on purpose.
    pub left: Vec<RackId>,
    /// Named addresses.
    pub roots: Vec<(String, GlobalAddr)>,
    /// Page ids whose contents are lost.
    pub lost_pages: u64,
    /// Bytes of the store's file.
    pub store_bytes: u64,
}
