//! Creating, opening and locking the files of a rack.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The reason why a file of the rack cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused.
    #[error("can't {action} {path}: {source}")]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process holds the lock.
    #[error(
        "{path} is in use by another rack daemon: stop that daemon, or serve another rack or folder"
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error(
        "{path} belongs to user {owner}, this process to user {own}: user {owner} can change what lies in it; have it removed, and the rack's folder with it"
    )]
    OtherUser {
        /// The file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
        /// This process's user.
        own: u32,
    },
    /// The file does not have the required length.
    #[error(
        "{path} has {found} B where {expected} B are needed: it was cut or belongs to another configuration; start with the old --memory and --page-size, or remove the rack's folder to start with an empty rack"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The required length in bytes.
        expected: u64,
    },
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |source| FileError::Io { action, path: path.to_path_buf(), source }
}

/// Creates a file of `len` zero bytes that only this user can open. Fails if the file exists.
pub fn create(path: &Path, len: u64) -> Result<File, FileError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("create", path))?;
    file.set_len(len).map_err(io_error("size", path))?;
    Ok(file)
}

/// Opens a file for reading and writing. Returns `None` if it does not exist.
pub fn open(path: &Path) -> Result<Option<File>, FileError> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("open", path)(error)),
    }
}

/// Opens a file for reading only, so that its descriptor can be passed to other processes.
pub fn open_read_only(path: &Path) -> Result<File, FileError> {
    File::open(path).map_err(io_error("open", path))
}

/// Fails for a file of another user. For folders in which other users can create files.
pub fn require_own(file: &File, path: &Path) -> Result<(), FileError> {
    let owner = file.metadata().map_err(io_error("examine", path))?.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner == own {
        return Ok(());
    }
    Err(FileError::OtherUser { path: path.to_path_buf(), owner, own })
}

/// Fails unless the file has the expected length.
pub fn check_len(file: &File, path: &Path, expected: u64) -> Result<(), FileError> {
    let found = file.metadata().map_err(io_error("examine", path))?.len();
    if found == expected {
        Ok(())
    } else {
        Err(FileError::Length { path: path.to_path_buf(), found, expected })
    }
}

/// Locks the file for this process. The kernel releases the lock when the process ends in any way.
pub fn lock(file: &File, path: &Path) -> Result<(), FileError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(FileError::Locked { path: path.to_path_buf() }),
        Err(error) => Err(io_error("lock", path)(error.into())),
    }
}

/// Marks a file as held until the last descriptor that shares this open file, and the last mapping
/// made through it, are gone.
pub fn hold(file: &File, path: &Path) -> Result<(), FileError> {
    flock(file, FlockOperation::NonBlockingLockShared)
        .map_err(|error| io_error("hold", path)(error.into()))
}

/// Returns true if any process [holds](hold) the file.
#[must_use]
pub fn is_held(path: &Path) -> bool {
    let Ok(Some(file)) = open(path) else { return false };
    // An error other than a held file is treated as held.
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metadata");
        let first = create(&path, 4096).unwrap();
        lock(&first, &path).unwrap();
        let second = open(&path).unwrap().unwrap();
        assert!(matches!(lock(&second, &path), Err(FileError::Locked { .. })));
        drop(first);
        lock(&second, &path).unwrap();
    }

    #[test]
    fn a_file_of_another_user_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frames");
        let file = create(&path, 4096).unwrap();
        require_own(&file, &path).unwrap();
        if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
            return rackpool_testing::skipped("only root can make a file of another user");
        }
        let error = require_own(&file, &path).unwrap_err();
        assert!(matches!(error, FileError::OtherUser { owner: 65534, .. }), "{error}");
    }

    #[test]
    fn lengths_are_checked_and_files_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frames");
        let file = create(&path, 8192).unwrap();
        check_len(&file, &path, 8192).unwrap();
        assert!(matches!(
            check_len(&file, &path, 4096),
            Err(FileError::Length { found: 8192, .. })
        ));
        assert!(matches!(create(&path, 1), Err(FileError::Io { .. })));
        assert!(open(&folder.path().join("none")).unwrap().is_none());
    }
}
