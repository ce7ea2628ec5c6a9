//! The folder of a pool: its racks, its lock, the address of its metadata server.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use rackpool_model::RackId;
use rackpool_shm::folder::{self, FolderError};

/// Returns a name that no other folder has.
pub fn unique_name() -> anyhow::Result<String> {
    static STARTED: AtomicU64 = AtomicU64::new(0);

    // A process of another container may have the same id and share the folder; two threads may
    // read the same time.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos();
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(format!("rackpool-{}-{now:x}-{number}", std::process::id()))
}

/// Removes the folders in `folder` whose names begin with `prefix` and whose pools do not run any
/// more: what killed programs have left. A folder that is younger than a minute may be of a pool
/// that just starts, and stays.
pub fn remove_abandoned(folder: &Path, prefix: &str) {
    const START: Duration = Duration::from_secs(60);

    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| name.starts_with(prefix));
        let age = entry.metadata().and_then(|data| data.modified()).map(|made| made.elapsed());
        let is_old = age.is_ok_and(|age| age.is_ok_and(|age| age > START));
        // What can't be removed belongs to another user, or is being removed by another program.
        if is_named && is_old && lock(&entry.path()).is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The file to which the metadata server of the pool in `dir` writes its address.
#[must_use]
pub fn address_file(dir: &Path) -> PathBuf {
    dir.join("metadata.addr")
}

/// Returns the racks that have a folder in `dir`.
pub fn racks_in(dir: &Path) -> anyhow::Result<Vec<RackId>> {
    let entries = std::fs::read_dir(dir).with_context(|| {
        format!("there is no pool in {}: start one with `rackpool up`, or give the folder of a pool with --dir", dir.display())
    })?;
    let mut racks = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let rack = name.to_str().and_then(|name| name.strip_prefix("rack-"));
        racks.extend(rack.and_then(|number| number.parse().ok()).map(RackId));
    }
    racks.sort_unstable();
    Ok(racks)
}

/// Reads the address of the metadata server of the pool in `dir`.
pub fn metadata_address(dir: &Path) -> anyhow::Result<String> {
    let text = match folder::require_trusted(dir) {
        Ok(dir) => std::fs::read_to_string(address_file(&dir)),
        Err(FolderError::Io { source, .. }) => Err(source),
        Err(error) => return Err(error.into()),
    };
    let text = text.with_context(|| {
        format!(
            "no pool runs in {}: start one with `rackpool up`, or give the folder of a pool with --dir",
            dir.display()
        )
    })?;
    Ok(text.trim().to_owned())
}

/// Locks the folder, so that no other pool uses it.
pub(crate) fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::options().create(true).append(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("can't write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "{} is in use by a running pool: stop that pool, or give another folder with --dir",
                dir.display()
            )
        }
        Err(TryLockError::Error(error)) => Err(error).context(path.display().to_string()),
    }
}
