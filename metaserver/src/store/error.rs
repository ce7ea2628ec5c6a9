use std::io;
use std::path::{Path, PathBuf};

use rackpool_shm::folder::FolderError;
use redb::{DatabaseError, StorageError};

/// Why the store can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the file open.
    #[error("{path} is in use by another metadata server: stop that one or choose another --store")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// Another release of rackpool wrote the file.
    #[error(
        "{path} has store format {found}, this program knows format {known}: run the rackpool release that wrote it, or choose another --store; it was left as it is"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The format it has.
        found: u64,
        /// The format it should have.
        known: u64,
    },
    /// The file is not a store.
    #[error("{path} is no metadata store: choose another --store; it was left as it is")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file was changed or truncated.
    #[error(
        "{path} is damaged ({cause}): restore it from a copy or choose another --store; it was left as it is"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// The system refuses to open or create the file.
    #[error(
        "can't open {path}: {source}; does the directory of --store exist, and may this user write there?"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can replace the file.
    #[error("the metadata store is not safe: {0}")]
    Folder(#[from] FolderError),
    /// A change could not be written, now or earlier.
    #[error("{cause}; free space or mend the disk, then start the metadata server again")]
    Failed {
        /// The first error.
        cause: String,
    },
}

impl StoreError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn opening(path: &Path, error: DatabaseError) -> Self {
        let path = path.to_owned();
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
                Self::Locked { path }
            }
            DatabaseError::Storage(StorageError::Io(source))
                if source.kind() == io::ErrorKind::InvalidData =>
            {
                Self::Foreign { path }
            }
            DatabaseError::Storage(StorageError::Io(source)) => Self::Io { path, source },
            error => Self::Damaged { path, cause: error.to_string() },
        }
    }
}
