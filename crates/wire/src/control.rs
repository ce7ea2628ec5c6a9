//! Messages between a client and its rack daemon, over the daemon's Unix socket. The first exchange
//! passes the file descriptors of the rack's memory; the rest are rare requests that need no ring.
//!
//! Both sides send [`Tagged`](crate::metadata::Tagged) messages. An answer carries its request's
//! tag, so a client that has timed out does not take a late answer for the answer to its next
//! request.

use bincode::{Decode, Encode};
use rackpool_model::{ClientId, GlobalAddr, Incarnation, MemoryId, PageId, RackId};

use crate::bounds::OutOfBounds;
use crate::history::{PageHeat, PageHistory};
use crate::metadata::Refusal;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ControlRequest {
    /// The first message of every connection.
    Hello {
        /// The number of threads that may use the connection at the same time.
        threads: u16,
        /// The client's identity when it reconnects to a restarted daemon.
        resume: Option<Resume>,
    },
    /// Read the address stored under a name in the pool.
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
    /// Read the rack's metrics.
    RackStatus,
    /// Read what the rack's daemon knows of a page.
    PageHistory {
        /// The page.
        page: PageId,
    },
    /// List the hottest pages among those of the rack and those of other racks that it uses.
    TopPages {
        /// The most pages to return; at most [`MAX_TOP_PAGES`](crate::history::MAX_TOP_PAGES).
        limit: u16,
    },
}

/// The identity of a reconnecting client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Resume {
    /// Its id.
    pub client: ClientId,
    /// The memory it was connected to.
    pub memory: MemoryId,
}

/// An answer of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ControlReply {
    /// Answer to `Hello`. Six file descriptors come with it: frames (read-write), rack metadata
    /// (read-only), marks and lock words (read-write), the client's own file (read-write), the
    /// eventfd that wakes the daemon.
    Welcome {
        /// The client's id.
        client: ClientId,
        /// The rack.
        rack: RackId,
        /// The identity of the rack's memory.
        memory: MemoryId,
        /// The daemon's incarnation.
        incarnation: Incarnation,
    },
    /// The address now stored under the name.
    Root {
        /// The address; `None`: the name is not set.
        addr: Option<GlobalAddr>,
        /// Whether this answers a `PutRoot` that took effect.
        changed: bool,
    },
    /// The rack's metrics.
    RackStatus(Box<RackStatus>),
    /// What the rack's daemon knows of the page.
    PageHistory(PageHistory),
    /// The hottest pages, hottest first.
    TopPages(Vec<PageHeat>),
    /// The daemon refused the request.
    Refused(ControlRefusal),
}

/// Why the daemon refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum ControlRefusal {
    /// The client runs as another user than the daemon.
    #[error(
        "the daemon serves user {owner}, this process runs as user {caller}: start both as the same user"
    )]
    Credentials {
        /// The daemon's user id.
        owner: u32,
        /// The client's user id.
        caller: u32,
    },
    /// The daemon does not know this client: it was away for too long, or the rack has other memory
    /// now.
    #[error("the daemon does not know this client any more: open the pool again")]
    UnknownClient,
    /// The daemon can't meet the options.
    #[error("{0}")]
    Invalid(String),
    /// A field of the request exceeds its limit.
    #[error(transparent)]
    OutOfBounds(OutOfBounds),
    /// The metadata server refused the request.
    #[error(transparent)]
    Metadata(Refusal),
    /// The metadata server does not answer.
    #[error(
        "the metadata server does not answer: start it again; local memory can be used meanwhile"
    )]
    MetadataUnreachable,
}

/// Counters of swaps since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SwapStatus {
    /// Prepare messages sent to other racks, repetitions included.
    pub asked: u64,
    /// Prepare messages of other racks, repetitions included.
    pub served: u64,
    /// Pages that arrived.
    pub arrived: u64,
    /// Pages that departed.
    pub departed: u64,
    /// Swaps that began and were aborted.
    pub given_up: u64,
    /// Forwarded writes executed here in pages that moved.
    pub forwarded: u64,
    /// Bytes copied into this rack, aborted swaps included.
    pub copied_bytes: u64,
    /// Refused swaps by reason.
    pub refused: Vec<(String, u64)>,
    /// Histogram of how long writers waited for a moving page: upper bound of the bucket in
    /// microseconds (`None`: unbounded) and the number of waits in it.
    pub pauses: Vec<(Option<u64>, u64)>,
}

/// Counters of sharing: pages of this rack that others have replicas of, and replicas that this
/// rack keeps; totals since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ShareStatus {
    /// Pages of this rack that are shared now.
    pub shared: u64,
    /// Sharings that began here.
    pub begun: u64,
    /// Sharings that ended here.
    pub ended: u64,
    /// Replicas that this rack keeps now.
    pub copies: u64,
    /// Replicas copied.
    pub made: u64,
    /// Reads of replicas, estimated from access samples.
    pub reads: u64,
}

/// What fixed memory takes in a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FixedStatus {
    /// Fixed objects in use: those of object stores, and others.
    pub objects: u64,
    /// Their bytes, without extents.
    pub object_bytes: u64,
    /// Extents of these objects.
    pub extents: u64,
    /// The bytes of the extents.
    pub extent_bytes: u64,
    /// Objects that were freed and whose memory programs still read.
    pub retired: u64,
    /// The memory of retired objects, with their extents.
    pub retired_bytes: u64,
}

/// Bytes in flight to a rack, of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct BytesInFlight {
    /// The limit.
    pub limit: u64,
    /// Bytes in flight now.
    pub used: u64,
    /// The most that were in flight at once.
    pub peak: u64,
}

/// The bytes in flight to a rack, by what they belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct InFlightStatus {
    /// Data of requests and answers.
    pub requests: BytesInFlight,
    /// The rack's one-sided reads.
    pub reads: BytesInFlight,
    /// One-sided writes of other racks: what they may have in flight.
    pub peer_writes: BytesInFlight,
}

/// The memory behind a rack's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FrameMemory {
    /// Its size in bytes.
    pub bytes: u64,
    /// The size of the kernel's pages in bytes; 0 if it is unknown.
    pub page_bytes: u64,
    /// The NUMA nodes of a sample of its pages, with the number of these pages on each.
    pub nodes: Vec<(u32, u32)>,
}

/// The rack's metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RackStatus {
    /// The daemon's process id.
    pub pid: u32,
    /// The other daemons of the rack.
    pub siblings: Vec<RackId>,
    /// Frames in the rack.
    pub frames: u32,
    /// The memory behind them.
    pub frame_memory: FrameMemory,
    /// Frames that hold no page.
    pub free_frames: u32,
    /// The other racks that are alive, as the metadata server last reported.
    pub other_racks: Vec<RackId>,
    /// Frames of these racks.
    pub other_frames: u64,
    /// The free ones of them.
    pub other_free_frames: u64,
    /// Bytes in objects handed out, including those in clients' magazines.
    pub allocated_bytes: u64,
    /// Fixed memory, which is a part of these bytes.
    pub fixed: FixedStatus,
    /// Bytes in flight between racks, which card and processor keep in the cache.
    pub in_flight: InFlightStatus,
    /// Connected clients.
    pub clients: u32,
    /// Bytes of rack metadata for each frame, without the bitmaps of slab objects.
    pub metadata_bytes_per_frame: u32,
    /// One-sided operations executed for clients of this rack.
    pub remote_operations: u64,
    /// Accesses of clients to memory of their own rack, estimated from access samples.
    pub local_accesses: u64,
    /// Histogram of the latency of one-sided operations for clients, from a sample: upper bound of
    /// the bucket in microseconds (`None`: unbounded) and the number of operations in it.
    pub remote_times: Vec<(Option<u64>, u64)>,
    /// Requests of clients that the data plane has served.
    pub requests: u64,
    /// How often the data plane slept.
    pub sleeps: u64,
    /// Requests to other racks in mode pure RPC: the data came in the answer.
    pub pure_requests: u64,
    /// Requests to other racks in mode RPC then one-sided: the caller read the data after the
    /// answer.
    pub then_one_sided_requests: u64,
    /// Requests to other racks in mode zero-copy: the server wrote the data.
    pub zero_copy_requests: u64,
    /// One-sided operations posted.
    pub posted: u64,
    /// Messages sent to other racks.
    pub messages: u64,
    /// Flushes for both: at most one for each peer in a poll round.
    pub doorbells: u64,
    /// Swap counters.
    pub swaps: SwapStatus,
    /// Sharing counters.
    pub sharing: ShareStatus,
    /// Work requests posted to the RDMA device, or frames written to the sockets of the TCP fabric;
    /// 0 for the emulated fabric.
    pub device_requests: u64,
    /// Doorbells rung at the device for them, or writes to the sockets.
    pub device_doorbells: u64,
    /// Completions polled from the device, or answers received.
    pub device_completions: u64,
    /// Work requests posted signalled.
    pub device_signalled: u64,
    /// Work requests posted with inline data.
    pub device_inlined: u64,
    /// For each connected rack: which RPC mode is used for which size; text for operators.
    pub thresholds: Vec<(RackId, String)>,
    /// The fabric in use and its model; text for operators.
    pub fabric: String,
    /// The kind of memory and its page size; text for operators.
    pub memory: String,
    /// NUMA placement of the data plane's thread and of the files it shares with clients; text for
    /// operators.
    pub placement: String,
}
