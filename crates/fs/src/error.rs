use std::error::Error;

use rackpool_kv::KvError;

use crate::volume_memory::VolumeMemory;

/// Why an operation on a volume failed; each kind is one of the system's error numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// There is nothing of that name, or the inode is gone (`ENOENT`).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (`EEXIST`).
    #[error("the name exists already")]
    Exists,
    /// A directory is needed (`ENOTDIR`).
    #[error("not a directory")]
    NotDirectory,
    /// A directory is not what is needed (`EISDIR`).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (`ENOTEMPTY`).
    #[error("the directory is not empty: remove its entries first")]
    NotEmpty,
    /// A name has more than 255 bytes (`ENAMETOOLONG`).
    #[error("a name of more than 255 bytes, or a link target of more than 4095: shorten it")]
    NameTooLong,
    /// No memory is left for it (`ENOSPC`).
    #[error("no space is left in the pool: remove files, or add a rack or memory")]
    NoSpace,
    /// The arguments make no sense together (`EINVAL`).
    #[error("invalid argument")]
    InvalidArgument,
    /// The file would be larger than 2^63 - 1 bytes (`EFBIG`).
    #[error("a file has at most 2^63 - 1 bytes")]
    TooLarge,
    /// The inode has as many links as it can have (`EMLINK`).
    #[error("too many links to one file")]
    TooManyLinks,
    /// Not allowed for this kind of file (`EPERM`).
    #[error("the operation is not permitted")]
    Permission,
    /// There is no such extended attribute, or no data there (`ENODATA`).
    #[error("no such attribute")]
    NoAttribute,
    /// Nothing of that sort lies at or after the offset (`ENXIO`).
    #[error("the offset is past the end of the file, or nothing is there")]
    NoSuchOffset,
    /// An attribute's name or value is too long (`ERANGE`, `E2BIG`).
    #[error("an attribute's name has at most 255 bytes, all attributes of a file {0} bytes")]
    AttributeTooLarge(usize),
    /// No lock more can be had (`ENOLCK`).
    #[error(
        "no room for another lock: of the file, for files with locks in this mount, or in the pool"
    )]
    NoLocks,
    /// Another mount has the file in its hands for longer than an operation waits (`EBUSY`).
    #[error("another mount works on the file and does not go on: try again, or end that mount")]
    Busy,
    /// Bytes in the pool are not what this library writes there (`EIO`).
    #[error(
        "the volume is damaged: {0}. Some other program wrote to its memory, or a page was lost"
    )]
    Damaged(&'static str),
    /// The pool failed (`EIO`).
    #[error("the pool failed: {0}")]
    Io(#[source] Box<dyn Error + Send + Sync>),
}

impl FsError {
    /// What became of an access to the pool's memory.
    pub(crate) fn of_memory<M: VolumeMemory>(error: M::Error) -> Self {
        if M::is_full(&error) { Self::NoSpace } else { Self::Io(Box::new(error)) }
    }

    /// What became of an access to the table.
    pub(crate) fn of_table<M: VolumeMemory>(error: KvError<M::Error>) -> Self {
        match error {
            KvError::Memory(error) => Self::of_memory::<M>(error),
            KvError::TableFull { .. } | KvError::TooLarge { .. } => Self::NoSpace,
            error => Self::Io(Box::new(error)),
        }
    }
}

/// Why a volume can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not one.
    #[error("a volume is named by 1 to 200 bytes")]
    Name,
    /// What the pool has under the name is no volume.
    #[error("{name} is no file system of this pool: choose another name")]
    NotAVolume {
        /// The name that was given.
        name: String,
    },
    /// The volume was made by another version of this library.
    #[error(
        "the file system {name} has format {found}, this release reads {supported}: use the release that made it"
    )]
    Version {
        /// The name that was given.
        name: String,
        /// The format found.
        found: u32,
        /// The format this library reads and writes.
        supported: u32,
    },
    /// The pool's pages are too small.
    #[error("pages of {0} B: a file system needs pages of at least 64 KiB")]
    PageSize(u64),
    /// As many mounts as a volume can have are there.
    #[error("{0} mounts have the file system open: end some")]
    TooManyMounts(u16),
    /// The pool's names could not be asked.
    #[error(transparent)]
    Root(#[from] rackpool_client::RootError),
    /// The volume could not be read or made.
    #[error(transparent)]
    Fs(#[from] FsError),
}
