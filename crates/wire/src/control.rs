//! Between a client and its rack daemon, over the daemon's Unix socket. The first exchange passes
//! the descriptors of the rack's files; the rest are rare requests for which no ring is worth it.
//!
//! Each side sends [`Tagged`](crate::metadata::Tagged) messages; an answer carries its request's
//! tag, so that one that comes after the client has given up is not taken for the next.

use bincode::{Decode, Encode};
use rackpool_model::{ClientId, GlobalAddr, Incarnation, MemoryId, PageId, RackId};

use crate::bounds::OutOfBounds;
use crate::history::{PageHeat, PageHistory};
use crate::metadata::Refusal;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ControlRequest {
    /// The first message of every connection.
    Hello {
        /// Threads that shall be able to use the connection at the same time.
        threads: u16,
        /// The client this is, when it comes back to a restarted daemon.
        resume: Option<Resume>,
    },
    /// The address stored under a name in the pool.
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
    /// The rack's figures.
    RackStatus,
    /// What the rack knows of a page.
    PageHistory {
        /// The page.
        page: PageId,
    },
    /// The hottest pages of the rack and of those that it uses.
    TopPages {
        /// At most so many, and at most [`MAX_TOP_PAGES`](crate::history::MAX_TOP_PAGES).
        limit: u16,
    },
}

/// Who a returning client was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Resume {
    /// Its id.
    pub client: ClientId,
    /// The memory it was connected to.
    pub memory: MemoryId,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ControlReply {
    /// Comes with four descriptors: frames (read-write), rack metadata (read-only), the client's
    /// own file (read-write), the event that wakes the daemon.
    Welcome {
        /// The client's id.
        client: ClientId,
        /// The rack.
        rack: RackId,
        /// The identity of the rack's memory.
        memory: MemoryId,
        /// This life of the daemon.
        incarnation: Incarnation,
    },
    /// What stands under the name now.
    Root {
        /// The address, or `None`.
        addr: Option<GlobalAddr>,
        /// Whether a change was asked for and made.
        changed: bool,
    },
    /// The rack's figures.
    RackStatus(Box<RackStatus>),
    /// What the rack knows of a page.
    PageHistory(PageHistory),
    /// The hottest pages, the hottest first.
    TopPages(Vec<PageHeat>),
    /// The request can't be granted.
    Refused(ControlRefusal),
}

/// Why the daemon says no.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum ControlRefusal {
    /// The peer runs under another user.
    #[error(
        "the daemon serves user {owner}, this process runs as user {caller}: start both as the same user"
    )]
    Credentials {
        /// The daemon's user id.
        owner: u32,
        /// The caller's.
        caller: u32,
    },
    /// No such client is known: it was gone for too long or its rack's memory is another one.
    #[error("the daemon does not know this client any more: open the pool again")]
    UnknownClient,
    /// The options can't be met.
    #[error("{0}")]
    Invalid(String),
    /// A field of the request is outside its bounds.
    #[error(transparent)]
    OutOfBounds(OutOfBounds),
    /// The metadata server refused.
    #[error(transparent)]
    Metadata(Refusal),
    /// The metadata server does not answer.
    #[error(
        "the metadata server does not answer: start it again; local memory can be used meanwhile"
    )]
    MetadataUnreachable,
}

/// Swaps of hot pages, counted since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SwapStatus {
    /// Asked of other racks; one that is asked again for want of an answer counts again.
    pub asked: u64,
    /// Asked by other racks, counted likewise.
    pub served: u64,
    /// Pages that came.
    pub arrived: u64,
    /// Pages that went.
    pub departed: u64,
    /// Begun and given up.
    pub given_up: u64,
    /// Writes of others that were carried out here in pages that moved.
    pub forwarded: u64,
    /// Bytes copied to here, those of swaps that were given up included.
    pub copied_bytes: u64,
    /// How often a swap was refused, by reason.
    pub refused: Vec<(String, u64)>,
    /// For how long those who wanted to write a page waited because it moved: how often for longer
    /// than the bound before and at most this one, in microseconds; `None` is without bound.
    pub pauses: Vec<(Option<u64>, u64)>,
}

/// Pages that other racks have copies of, and copies of theirs, since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ShareStatus {
    /// Pages of this rack that are shared now.
    pub shared: u64,
    /// How often a page of this rack began to be shared.
    pub begun: u64,
    /// How often that ended, because somebody wanted to write.
    pub ended: u64,
    /// Copies that this rack keeps now.
    pub copies: u64,
    /// Copies that were made.
    pub made: u64,
    /// Reads of copies, as far as a sample tells.
    pub reads: u64,
}

/// The rack's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RackStatus {
    /// The daemon's process id.
    pub pid: u32,
    /// Frames in the rack.
    pub frames: u32,
    /// Frames that hold no page.
    pub free_frames: u32,
    /// Frames of the other racks that can be reached, as the metadata server last said.
    pub other_frames: u64,
    /// Those of them that hold no page.
    pub other_free_frames: u64,
    /// Bytes in objects handed out, caches of clients included.
    pub allocated_bytes: u64,
    /// Connected clients.
    pub clients: u32,
    /// Bytes of metadata the rack keeps for each frame, the bitmaps of slab objects not counted.
    pub metadata_bytes_per_frame: u32,
    /// One-sided operations done for clients of this rack.
    pub remote_operations: u64,
    /// Accesses of clients to their own rack, as far as a sample tells.
    pub local_accesses: u64,
    /// How long one-sided operations for clients took, of a sample: how many longer than the bound
    /// before and at most this one, in microseconds; `None` is without bound.
    pub remote_times: Vec<(Option<u64>, u64)>,
    /// Requests of clients served.
    pub requests: u64,
    /// How often the data plane went to sleep.
    pub sleeps: u64,
    /// Requests to other racks whose answer came with a message.
    pub pure_requests: u64,
    /// Requests to other racks whose data was read after the answer.
    pub then_one_sided_requests: u64,
    /// Requests to other racks whose data was written by the other side.
    pub zero_copy_requests: u64,
    /// One-sided operations posted.
    pub posted: u64,
    /// Messages sent to other racks.
    pub messages: u64,
    /// Doorbells for both: one for each rack in a poll round that had something for it.
    pub doorbells: u64,
    /// What there is to count of swaps.
    pub swaps: SwapStatus,
    /// What there is to count of sharing.
    pub sharing: ShareStatus,
    /// Work requests that the fabric's device was given, or frames that its sockets were; 0 when it
    /// has neither.
    pub device_requests: u64,
    /// Doorbells that it was rung with for them, or writes to the sockets.
    pub device_doorbells: u64,
    /// Completions that it gave for them, or answers that came.
    pub device_completions: u64,
    /// Work requests that were to complete by themselves.
    pub device_signalled: u64,
    /// Work requests that carried their bytes within them.
    pub device_inlined: u64,
    /// For each rack this one is connected to: which mode is chosen for which size, for people.
    pub thresholds: Vec<(RackId, String)>,
    /// The fabric in use and its figures, for people.
    pub fabric: String,
    /// The kind of memory and the pages it lies in, for people.
    pub memory: String,
    /// Where the daemon's thread and the files it shares with clients are placed, for people.
    pub placement: String,
}
