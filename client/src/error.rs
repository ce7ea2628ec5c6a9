mod lock;
mod no_cell;
mod out_of_memory;

use std::io;
use std::path::PathBuf;

use rackpool_model::{GlobalAddr, RackId};
use rackpool_shm::folder::FolderError;
use rackpool_shm::superblock::SuperblockError;
use rackpool_wire::CodecError;
use rackpool_wire::bounds::OutOfBounds;
use rackpool_wire::control::ControlRefusal;
use rackpool_wire::metadata::Refusal;

pub use lock::LockError;
pub use no_cell::NoCell;
pub use out_of_memory::OutOfMemory;

/// The reason why [`Pool::open`](crate::Pool::open) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No daemon listens on the socket.
    #[error(
        "no rack daemon at {socket} ({source}): start one with `rackpool up` or check the folder and the rack"
    )]
    Connect {
        /// The daemon's socket.
        socket: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Other users of the host could replace the daemon's socket.
    #[error("the rack's folder is not safe: {0}")]
    Folder(#[from] FolderError),
    /// The connection broke, or a descriptor could not be used.
    #[error(
        "the connection to the rack daemon failed ({0}): see whether it runs (`rackpool status`) and what its log says, then open the pool again"
    )]
    Io(#[from] io::Error),
    /// The other end speaks another protocol version, or is not a rack daemon.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The daemon refused the client.
    #[error(transparent)]
    Refused(ControlRefusal),
    /// A file that the daemon passed has a wrong or damaged superblock.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The daemon's files or answers violate the protocol.
    #[error("the rack daemon broke the protocol: {0}; run the same rackpool release everywhere")]
    Protocol(String),
}

impl OpenError {
    /// Returns true if the daemon has closed the connection. Returns false after a timeout.
    pub(crate) fn is_end_of_stream(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Io(error)
            if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

/// The reason why an access or an atomic operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The address belongs to no page of the pool.
    #[error("{0} is no address of this pool: use addresses that `alloc` returned")]
    InvalidAddress(GlobalAddr),
    /// The page holds no object: it was never allocated, or all its objects were freed.
    #[error(
        "{0} is not allocated (the object was freed, or the address is wrong): use addresses that `alloc` returned, until they are freed"
    )]
    NotAllocated(GlobalAddr),
    /// The access goes past the end of the allocation.
    #[error(
        "{len} B at {addr} end past what is allocated there: access at most {available} B from there on"
    )]
    BeyondObject {
        /// Where the access starts.
        addr: GlobalAddr,
        /// Length of the access in bytes.
        len: u64,
        /// Bytes from `addr` to the end of the object's last page; in a checked client, to the end
        /// of the object.
        available: u64,
    },
    /// The access has a length of 0 bytes.
    #[error("an access of 0 B: give at least one byte")]
    Empty,
    /// The address of an atomic operation is not a multiple of 8.
    #[error(
        "{0} is not aligned to 8 B: compare-and-swap and fetch-and-add need an address that is a multiple of 8"
    )]
    Misaligned(GlobalAddr),
    /// The contents of the page were lost with its rack's memory.
    #[error(
        "the page of {0} is lost (its rack came back without its memory): allocate anew and write the contents again"
    )]
    PageLost(GlobalAddr),
    /// The home rack of the address does not answer.
    #[error("{} does not answer: its daemon is down or cut off; start it again", .0)]
    RackUnavailable(RackId),
    /// The page did not become accessible within the request timeout: it was moving between racks,
    /// or was not found where the client was told.
    #[error("the page of {0} moves and could not be reached, last at {1}: try again")]
    PageBusy(GlobalAddr, RackId),
    /// The daemon of this rack (the home or the own rack) died during an atomic operation or during
    /// a write in a page that was moving or had just moved. The operation may or may not have been
    /// executed.
    #[error("{} died during the operation: it may or may not have happened; read the value to know", .0)]
    Indeterminate(RackId),
    /// The reservation cannot be published: it is published already, in doubt, or of another pool.
    #[error(
        "{0} is no reservation that can be published (it was published, or is in doubt, or of another pool): finish it with the pool that made it and begin another"
    )]
    NotAReservation(GlobalAddr),
    /// The object is not owned by this program: `alloc_fixed` did not return it, or it was
    /// disowned, reserved or freed since.
    #[error(
        "this program does not own {0}: pass what `alloc_fixed` returned, until it is disowned, reserved or freed"
    )]
    NotOwned(GlobalAddr),
    /// The address is no fixed object of the own rack.
    #[error(
        "{0} is no fixed object of this rack: only what `alloc_fixed` returned here can be pinned"
    )]
    NotFixed(GlobalAddr),
    /// This program writes the object in place.
    #[error("{0} is being written in place by this program: drop its `PinnedBytesMut` first")]
    BeingWritten(GlobalAddr),
    /// The lock of the bytes was taken from this process: it stood still while others waited, or a
    /// daemon ended. The operation was not executed.
    #[error(
        "the lock of {0} is lost (this process stood still for seconds, or a daemon ended): lock again, and read before you write"
    )]
    LockLost(GlobalAddr),
    /// The bytes are not among the lines that the guard locks.
    #[error("{0} is outside of the guard's lock: lock all bytes that are used together")]
    NotLocked(GlobalAddr),
    /// The daemon of the own rack did not serve the request.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// The reason why the own rack's daemon did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The daemon does not run, or did not answer within the timeout.
    #[error(
        "the rack daemon does not answer: start it again, or raise the request timeout if it is overloaded"
    )]
    Unavailable,
    /// A restarted daemon serves the rack and does not know this client. The pool must be opened
    /// again.
    #[error(
        "the rack daemon no longer knows this client (the client was disconnected too long, or the rack's memory is new): open the pool again"
    )]
    Forgotten,
    /// The metadata server does not answer.
    #[error("the metadata server does not answer: start it again")]
    MetadataUnreachable,
    /// All thread slots are in use, and no thread returned one within the timeout.
    #[error(
        "{0} threads use this pool and none of them can leave it: finish their reservations, or open the pool with more `ClientOptions::threads`"
    )]
    TooManyThreads(u16),
    /// The program has closed the pool.
    #[error("the pool is closed: open it again")]
    Closed,
    /// This process was forked from the process that opened the pool.
    #[error(
        "this pool was opened by the process that this one was forked from: open it again here, after the fork"
    )]
    Inherited,
    /// The daemon's answer violates the protocol.
    #[error("the rack daemon broke the protocol: run the same rackpool release everywhere")]
    Protocol,
}

/// The reason why an allocation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The requested size is 0 bytes.
    #[error("an allocation of 0 B: ask for at least one byte")]
    ZeroSize,
    /// The requested size exceeds the memory of every rack.
    #[error(
        "an allocation of {bytes} B is larger than the pool's largest rack ({most} B), and an object lies in one rack: split it"
    )]
    TooLarge {
        /// Requested bytes.
        bytes: u64,
        /// Bytes of the largest rack.
        most: u64,
    },
    /// No rack has enough free memory.
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// The own rack has no room for fixed memory, which lies nowhere else.
    #[error(
        "{rack} has no room for {bytes} B that keep their place ({free} of {frames} frames free), and no other rack is asked for them: free objects there, or give the rack more memory"
    )]
    RackFull {
        /// The bytes for which there is no room.
        bytes: u64,
        /// The own rack.
        rack: RackId,
        /// Its frames.
        frames: u32,
        /// Its free frames.
        free: u32,
    },
    /// A fixed object is at most a page.
    #[error(
        "a fixed object of {bytes} B is larger than a page ({page_bytes} B): allocate a head with `alloc_fixed` and the rest with `alloc_extents`"
    )]
    LargerThanPage {
        /// Requested bytes.
        bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// The object can't have extents.
    #[error(
        "{0} is no fixed object of at least 64 B of this rack: extents belong to what `alloc_fixed` returned here"
    )]
    NotAHead(GlobalAddr),
    /// The program owns too many objects, or the file system has no room for notes of more.
    #[error(transparent)]
    NoCell(#[from] NoCell),
    /// The thread already has the maximum number of unfinished reservations.
    #[error("this thread has 16 reservations: publish or finish some")]
    TooManyReservations,
    /// The word that the object was to be borrowed from could not be swapped.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The daemon of the own rack did not serve the request.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// The reason why an object was not freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// The address is not the first byte of an object.
    #[error(
        "{addr} is not the start of an object (objects there have {object_bytes} B): free what `alloc` returned"
    )]
    NotAnObject {
        /// The address.
        addr: GlobalAddr,
        /// Size in bytes of the objects in that page.
        object_bytes: u64,
    },
    /// The object is already free.
    #[error(
        "{0} is not allocated (it was freed before, or never handed out): free what `alloc` returned, and only once"
    )]
    NotAllocated(GlobalAddr),
    /// The object's page could not be found or reached.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// The reason why a root could not be read or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The name is not valid. No request was sent.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The metadata server refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The own rack's daemon or the metadata server did not serve the request.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

impl RootError {
    /// Returns true if the change that failed with this error was certainly not made.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        match self {
            Self::OutOfBounds(_) => true,
            Self::Refused(refusal) => !matches!(refusal, Refusal::Store(_)),
            Self::Daemon(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
