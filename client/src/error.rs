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

pub use out_of_memory::OutOfMemory;

/// Why a pool can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No daemon listens there.
    #[error(
        "no rack daemon at {socket} ({source}): start one with `rackpool up` or check the folder and the rack"
    )]
    Connect {
        /// The daemon's socket.
        socket: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Other users of the host could replace the daemon's socket.
    #[error("the rack's folder is not safe: {0}")]
    Folder(#[from] FolderError),
    /// The connection broke or a descriptor could not be used.
    #[error(
        "the connection to the rack daemon failed ({0}): see whether it runs (`rackpool status`) and what its log says, then open the pool again"
    )]
    Io(#[from] io::Error),
    /// The daemon speaks another version, or it is no daemon.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The daemon refuses.
    #[error(transparent)]
    Refused(ControlRefusal),
    /// The files it passed are not what they should be.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The files or answers break the protocol.
    #[error("the rack daemon broke the protocol: {0}; run the same rackpool release everywhere")]
    Protocol(String),
}

impl OpenError {
    /// Whether the other end of the connection has gone, and is not merely slow.
    pub(crate) fn is_end_of_stream(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Io(error)
            if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

/// Why memory can't be read, written or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The address names no page.
    #[error("{0} is no address of this pool: use addresses that `alloc` returned")]
    InvalidAddress(GlobalAddr),
    /// The page holds no object: its objects were all freed, or it was never allocated.
    #[error(
        "{0} is not allocated (the object was freed, or the address is wrong): use addresses that `alloc` returned, until they are freed"
    )]
    NotAllocated(GlobalAddr),
    /// The access goes past the end of what was allocated there.
    #[error(
        "{len} B at {addr} end past what is allocated there: access at most {available} B from there on"
    )]
    BeyondObject {
        /// Where the access starts.
        addr: GlobalAddr,
        /// Its length in bytes.
        len: u64,
        /// Bytes from `addr` to the end of the object's last page, in a checked client of the
        /// object.
        available: u64,
    },
    /// An access of no bytes.
    #[error("an access of 0 B: give at least one byte")]
    Empty,
    /// Atomics work on 8 aligned bytes.
    #[error(
        "{0} is not aligned to 8 B: compare-and-swap and fetch-and-add need an address that is a multiple of 8"
    )]
    Misaligned(GlobalAddr),
    /// The contents are gone with their rack's memory.
    #[error(
        "the page of {0} is lost (its rack came back without its memory): allocate anew and write the contents again"
    )]
    PageLost(GlobalAddr),
    /// The home rack of the address does not answer.
    #[error("{} does not answer: its daemon is down or cut off; start it again", .0)]
    RackUnavailable(RackId),
    /// The page of the address was on its way between racks, or not where it was said to be, for as
    /// long as a request waits.
    #[error("the page of {0} moves and could not be reached, last at {1}: try again")]
    PageBusy(GlobalAddr, RackId),
    /// The home rack's daemon died during an atomic operation, or a write in a page that moves or
    /// has just moved, which may or may not have happened.
    #[error("{} died during the operation: it may or may not have happened; read the value to know", .0)]
    Indeterminate(RackId),
    /// It is no reservation of this pool that waits to be published.
    #[error(
        "{0} is no reservation that can be published (it was published, or is in doubt, or of another pool): finish it with the pool that made it and begin another"
    )]
    NotAReservation(GlobalAddr),
    /// The daemon of the own rack does not answer.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// Why the own rack's daemon did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// It is not running, or runs but does not answer in time.
    #[error(
        "the rack daemon does not answer: start it again, or raise the request timeout if it is overloaded"
    )]
    Unavailable,
    /// It came back but does not know this client any more.
    #[error(
        "the rack daemon gave this client up (it was away too long, or its memory is new): open the pool again"
    )]
    Forgotten,
    /// The metadata server does not answer.
    #[error("the metadata server does not answer: start it again")]
    MetadataUnreachable,
    /// More threads use the pool than it was opened for, and none of them gave its slot back in
    /// time.
    #[error(
        "{0} threads use this pool and let no other one in: finish their reservations, or open the pool with more `ClientOptions::threads`"
    )]
    TooManyThreads(u16),
    /// The pool has been closed.
    #[error("the pool is closed: open it again")]
    Closed,
    /// This process was forked from the one that has opened the pool.
    #[error(
        "this pool was opened by the process that this one was forked from: open it again here, after the fork"
    )]
    Inherited,
    /// It broke the protocol.
    #[error("the rack daemon broke the protocol: run the same rackpool release everywhere")]
    Protocol,
}

/// Why no memory was allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// 0 bytes were asked for.
    #[error("an allocation of 0 B: ask for at least one byte")]
    ZeroSize,
    /// More bytes than any rack of the pool has were asked for.
    #[error(
        "an allocation of {bytes} B is larger than the pool's largest rack ({most} B), and an object lies in one rack: split it"
    )]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes of the largest rack.
        most: u64,
    },
    /// No rack has room.
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// The thread has as many unfinished reservations as it can have.
    #[error("this thread has 16 reservations: publish or finish some")]
    TooManyReservations,
    /// The word that an object was to be taken out of could not be swapped.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The daemon of the own rack does not answer.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// Why memory was not freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// The address is not the start of an object.
    #[error(
        "{addr} is not the start of an object (objects there have {object_bytes} B): free what `alloc` returned"
    )]
    NotAnObject {
        /// The address.
        addr: GlobalAddr,
        /// Size of the objects in its page, in bytes.
        object_bytes: u64,
    },
    /// The object is free already.
    #[error(
        "{0} is not allocated (it was freed before, or never handed out): free what `alloc` returned, and only once"
    )]
    NotAllocated(GlobalAddr),
    /// The page could not be found.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Why a named address can't be read or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RootError {
    /// The name is no name. Nobody was asked.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The metadata server refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A daemon does not answer.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

impl RootError {
    /// Whether a change that failed with this error was surely not made.
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
