use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use redb::Durability;
use redb::backends::FileBackend;

use super::{StoreError, builder, secret, tables};

/// Creates an empty store. It is created under another name and linked to its place when it is
/// complete: a server that is killed meanwhile leaves no partial store, and an existing file is
/// never replaced.
pub(super) fn create(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io(path, source);
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = Path::new(&unfinished);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(secret::MODE)
        .open(unfinished)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StoreError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // Checked under the lock: another server may have finished the store meanwhile.
    if !path.try_exists().map_err(failed)? {
        file.set_len(0).map_err(failed)?;
        fill(path, file, unfinished)?;
    }
    match fs::remove_file(unfinished) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed(source)),
        _ => sync_directory(path).map_err(failed),
    }
}

fn fill(path: &Path, file: File, unfinished: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::io(path, source);
    let backend = FileBackend::new(file).map_err(|error| StoreError::opening(path, error))?;
    let database =
        builder().create_with_backend(backend).map_err(|error| StoreError::opening(path, error))?;
    let format = || -> Result<(), redb::Error> {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        tables::format(&transaction)?;
        transaction.commit()?;
        Ok(())
    };
    format().map_err(|error| failed(io::Error::other(error)))?;
    // Before the database is closed, which releases the lock.
    fs::hard_link(unfinished, path).map_err(failed)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
