//! Between a client and its rack daemon, over the daemon's Unix socket. The first exchange passes
//! the descriptors of the rack's files; the rest are rare requests for which no ring is worth it.
//!
//! Each side sends [`Tagged`](crate::metadata::Tagged) messages; an answer carries its request's
//! tag, so that one that comes after the client has given up is not taken for the next.

use bincode::{Decode, Encode};
use rackpool_model::{ClientId, GlobalAddr, Incarnation, MemoryId, RackId};

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
    RackStatus(RackStatus),
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
    /// The metadata server refused.
    #[error(transparent)]
    Metadata(Refusal),
    /// The metadata server does not answer.
    #[error(
        "the metadata server does not answer: start it again; local memory can be used meanwhile"
    )]
    MetadataUnreachable,
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
    /// Bytes in objects handed out, caches of clients included.
    pub allocated_bytes: u64,
    /// Connected clients.
    pub clients: u32,
    /// Bytes of metadata the rack keeps for each frame, the bitmaps of slab objects not counted.
    pub metadata_bytes_per_frame: u32,
    /// One-sided operations done for clients of this rack.
    pub remote_operations: u64,
    /// Requests of clients served.
    pub requests: u64,
    /// How often the data plane went to sleep.
    pub sleeps: u64,
    /// The fabric in use and its figures, for people.
    pub fabric: String,
}
