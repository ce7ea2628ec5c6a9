use std::path::PathBuf;

use rackpool_client::{
    AccessError, AllocError, DaemonError, FreeError, GlobalAddr, MapError, PinError, RackId,
    RootError,
};
use rackpool_kv::{KvError, PoolError};
use rackpool_wire::CodecError;

use crate::cast::CastFailure;
use crate::group::GroupFailure;

/// Why an operation of a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The id is empty or longer than 64 bytes.
    #[error("an id of {bytes} B: ids have 1 to 64 bytes")]
    IdLength {
        /// The length of the id in bytes.
        bytes: usize,
    },
    /// There is a sealed object of this id.
    #[error("there is an object of this id: objects do not change; delete it, or use another id")]
    Exists,
    /// The object and its metadata are longer than an object can be.
    #[error("an object of {bytes} B in all: bytes and metadata have at most {max} B")]
    TooLarge {
        /// The requested length in bytes.
        bytes: u64,
        /// The most that an object can have.
        max: u64,
    },
    /// The rack has room, but not in few enough pieces.
    #[error(
        "the rack has no room for {bytes} B in {most} pieces or fewer: delete objects or free other memory of the rack"
    )]
    Fragmented {
        /// The length of the object and its metadata in bytes.
        bytes: u64,
        /// The most pieces that were allowed.
        most: u64,
    },
    /// The store's capacity in this rack is reached, and nothing can be evicted: the policy keeps
    /// objects, or programs use them.
    #[error(
        "the store has a capacity of {capacity} B in this rack, of which {used} B are used, and nothing else may be evicted for {bytes} B more: delete objects, drop views, or raise the capacity"
    )]
    StoreFull {
        /// The memory that the new object needs, in bytes.
        bytes: u64,
        /// The memory of the store in this rack, in bytes.
        used: u64,
        /// The capacity in bytes.
        capacity: u64,
    },
    /// An option of a store has a value that is not allowed.
    #[error("{name} of a store: allowed are {allowed}")]
    Option {
        /// The option.
        name: &'static str,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The object has another layout tag than the reader expects.
    #[error(
        "the object has layout tag {found:#x}, not {expected:#x}: read it with the program version that wrote it"
    )]
    LayoutTag {
        /// The reader's tag.
        expected: u64,
        /// The object's tag.
        found: u64,
    },
    /// The root of this name does not lead to a store.
    #[error("{name:?} is no object store: choose another name")]
    NotAStore {
        /// The name of the root.
        name: String,
    },
    /// The store was removed since it was opened, or its removal has begun.
    #[error(
        "the store was removed, or its removal has begun: create it anew, or complete the removal with `Store::remove` or `rackpool objects remove-store`"
    )]
    Removed,
    /// Another program removes the store at this moment.
    #[error(
        "another program removes the store: wait until it is done, or, if that program has ended, try again in a few seconds"
    )]
    RemovalUnderWay,
    /// The store was written by another version of this library.
    #[error(
        "the store has format {found}, this library reads {supported}: use the release that created it"
    )]
    Version {
        /// The format of the store.
        found: u32,
        /// The format that this library reads.
        supported: u32,
    },
    /// The bytes of the object are not those that were sealed.
    #[error(
        "the object at {addr} is damaged (its checksum is wrong): some program wrote to its memory. Delete it and store it again"
    )]
    Damaged {
        /// The address of the object's head.
        addr: GlobalAddr,
    },
    /// A copy from another rack is this program's own.
    #[error(
        "the copy can't be shared with other programs of the rack: a delete of the object began and did not end, or a rack is away that is needed to register the copy: repeat the delete, or start that rack"
    )]
    NotShared,
    /// The policy of the store is to spill, and the rack has no folder for it.
    #[error(
        "{rack} has no folder for objects that are moved out of memory: start its daemon with --spill-dir, as it was when objects were spilled, or set another policy"
    )]
    NoSpillFolder {
        /// The rack.
        rack: RackId,
    },
    /// A file of a spilled object could not be written or read.
    #[error(
        "{path}, a file for objects that are moved out of memory: {source}: make room on the disk or mend it, or delete the object if its file is gone",
        path = path.display()
    )]
    SpillFile {
        /// The file, or its folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file of a spilled object does not have the bytes that were sealed.
    #[error(
        "{path} is damaged (its checksum is wrong): the disk or some program changed it. Delete the object and store it again",
        path = path.display()
    )]
    DamagedFile {
        /// The file.
        path: PathBuf,
    },
    /// The object is in a file of another rack, and no program there brings it back.
    #[error(
        "the object is in a file of {rack}, which is not restored: {why}. Start `rackpool agent` in that rack, or get the object there"
    )]
    NotRestored {
        /// The rack of the file.
        rack: RackId,
        /// The reason.
        why: String,
    },
    /// A cast did not bring the object into this rack.
    #[error("the cast did not bring the object into this rack: {0}")]
    Cast(CastFailure),
    /// A group can't be made, joined or used.
    #[error(transparent)]
    Group(#[from] GroupFailure),
    /// A thread could not be started.
    #[error("a thread could not be started: {0}: raise the limit of threads")]
    Thread(std::io::Error),
    /// A record of a cast is not one of this release.
    #[error(transparent)]
    Record(#[from] CodecError),
    /// A table of the store failed.
    #[error(transparent)]
    Table(#[from] KvError<PoolError>),
    /// An allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// An access failed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The object could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The object's memory could not be used in place.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Memory could not be freed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// The root of the store could not be read or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The daemon of the own rack did not serve a request.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

impl StoreError {
    /// Whether the rack has no folder for files, or its disk has failed.
    pub(crate) const fn is_of_disk(&self) -> bool {
        matches!(self, Self::NoSpillFolder { .. } | Self::SpillFile { .. })
    }

    /// Whether the memory of an entry is lost with that of its rack.
    pub(crate) const fn is_lost(&self) -> bool {
        matches!(
            self,
            Self::Access(AccessError::PageLost(_))
                | Self::Table(KvError::Memory(PoolError::Access(AccessError::PageLost(_))))
        )
    }
}

/// The same result, but what is lost needs no work.
pub(crate) fn but_lost(done: Result<(), StoreError>) -> Result<(), StoreError> {
    done.or_else(|error| if error.is_lost() { Ok(()) } else { Err(error) })
}
