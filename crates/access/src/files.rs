//! Reading and writing the files of keys and certificates.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rackpool_shm::folder::{self, FolderError};

use crate::CredentialsError;

/// Mode of a key file.
pub(crate) const SECRET: u32 = 0o600;
/// Mode of a certificate file.
pub(crate) const PUBLIC: u32 = 0o644;

/// Creates a folder that only its owner can use.
pub(crate) fn make_folder(path: &Path) -> Result<(), CredentialsError> {
    match folder::create(path) {
        Err(FolderError::Io { source, .. }) => Err(CredentialsError::unwritable(path)(source)),
        made => Ok(made.map(drop)?),
    }
}

/// Returns the folder's path without symbolic links. A folder in which other users can replace
/// files is refused.
pub(crate) fn require_trusted(path: &Path) -> Result<PathBuf, CredentialsError> {
    match folder::require_trusted(path) {
        Err(FolderError::Io { source, .. }) => Err(CredentialsError::unreadable(path)(source)),
        found => Ok(found?),
    }
}

/// Writes a file atomically: after a crash the file is complete or unchanged. The file never has
/// more permissions than `mode`.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), CredentialsError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let write = || -> std::io::Result<()> {
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
        // `set_permissions` is independent of the umask.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(CredentialsError::unwritable(path))
}

/// Reads a certificate.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    fs::read(path).map_err(CredentialsError::unreadable(path))
}

/// Reads a key. A key that other users can read is refused.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let found = fs::metadata(path).map_err(CredentialsError::unreadable(path))?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed { path: path.to_owned(), mode });
    }
    read(path)
}
