use std::error::Error;

use rackpool_kv::KvError;

use crate::volume_memory::VolumeMemory;

/// Why an operation on a volume failed. Each kind corresponds to an error number of the system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The name or the inode does not exist (`ENOENT`).
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already (`EEXIST`).
    #[error("the name exists already")]
    Exists,
    /// The operation requires a directory (`ENOTDIR`).
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not accept a directory (`EISDIR`).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (`ENOTEMPTY`).
    #[error("the directory is not empty: remove its entries first")]
    NotEmpty,
    /// A name has more than 255 bytes, or a link target more than 4095 (`ENAMETOOLONG`).
    #[error("a name of more than 255 bytes, or a link target of more than 4095: shorten it")]
    NameTooLong,
    /// The pool has too little free memory (`ENOSPC`).
    #[error("no space is left in the pool: remove files, or add a rack or memory")]
    NoSpace,
    /// The arguments are invalid, or invalid together (`EINVAL`).
    #[error("invalid argument")]
    InvalidArgument,
    /// The file would be larger than 2^63 - 1 bytes (`EFBIG`).
    #[error("a file has at most 2^63 - 1 bytes")]
    TooLarge,
    /// The inode has the most links that an inode can have (`EMLINK`).
    #[error("too many links to one file")]
    TooManyLinks,
    /// The operation is not allowed for this kind of file (`EPERM`).
    #[error("the operation is not permitted")]
    Permission,
    /// The extended attribute does not exist (`ENODATA`).
    #[error("no such attribute")]
    NoAttribute,
    /// No data lies at or after the offset, or the offset is past the end (`ENXIO`).
    #[error("the offset is past the end of the file, or nothing is there")]
    NoSuchOffset,
    /// An attribute's name or value is too long (`ERANGE`, `E2BIG`).
    #[error("an attribute's name has at most 255 bytes, all attributes of a file {0} bytes")]
    AttributeTooLarge(usize),
    /// There is no room for another lock (`ENOLCK`).
    #[error(
        "no room for another lock: of the file, for files with locks in this mount, or in the pool"
    )]
    NoLocks,
    /// Another mount has held the file for longer than an operation waits (`EBUSY`).
    #[error("another mount works on the file and does not go on: try again, or end that mount")]
    Busy,
    /// Bytes in the pool are not a valid record of this library (`EIO`).
    #[error(
        "the volume is damaged: {0}. Some other program wrote to its memory, or a page was lost"
    )]
    Damaged(&'static str),
    /// The pool failed (`EIO`).
    #[error("the pool failed: {0}")]
    Io(#[source] Box<dyn Error + Send + Sync>),
}

impl FsError {
    /// Converts an error of the pool's memory.
    pub(crate) fn of_memory<M: VolumeMemory>(error: M::Error) -> Self {
        if M::is_full(&error) { Self::NoSpace } else { Self::Io(Box::new(error)) }
    }

    /// Converts an error of the table.
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
pub enum VolumeOpenError {
    /// The name is empty or longer than 200 bytes.
    #[error("a volume is named by 1 to 200 bytes")]
    Name,
    /// The root of this name does not lead to a volume.
    #[error("{name} is no file system of this pool: choose another name")]
    NotAVolume {
        /// The name that was given.
        name: String,
    },
    /// The volume has another version of the format.
    #[error(
        "the file system {name} has format {found}, this release reads {supported}: use the release that made it"
    )]
    Version {
        /// The name that was given.
        name: String,
        /// The format found.
        found: u32,
        /// The format that this library reads and writes.
        supported: u32,
    },
    /// The pool's pages are smaller than 64 KiB.
    #[error("pages of {0} B: a file system needs pages of at least 64 KiB")]
    PageSize(u64),
    /// All seats of the volume are taken.
    #[error("{0} mounts have the file system open: end some")]
    TooManyMounts(u16),
    /// A root of the pool could not be read or stored.
    #[error(transparent)]
    Root(#[from] rackpool_client::RootError),
    /// The volume could not be read or created.
    #[error(transparent)]
    Fs(#[from] FsError),
}
