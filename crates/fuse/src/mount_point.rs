//! The mount point: what is mounted there already, detaching it, and read-ahead.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::mount::{MntFlags, umount2};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The most dead mounts on one another that are detached.
const LAYERS: u32 = 16;
/// How long to wait for the watcher of a killed mount.
const WATCHER: Duration = Duration::from_secs(10);
/// How long a dead mount stays before its watcher is assumed to be gone as well.
const OWN_WATCHER: Duration = Duration::from_secs(1);

/// A mount point, locked against other mounts while this or a duplicate of its file is open.
#[derive(Debug)]
pub(crate) struct MountPoint {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    /// The folder beneath the mount, locked.
    pub(crate) folder: File,
}

impl MountPoint {
    /// Detaches dead mounts and locks the folder.
    pub(crate) fn claim(path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path).context("the mount point has no absolute path")?;
        let deadline = Instant::now() + WATCHER;
        loop {
            detach_abandoned(&path)?;
            let resolved = path.canonicalize().with_context(|| {
                format!("can't mount at {}: make the folder first", path.display())
            })?;
            ensure!(resolved.is_dir(), "can't mount at {}: it is no folder", path.display());
            ensure!(
                !mounted(&resolved).is_some_and(|source| source.starts_with(SOURCE)),
                "{} is mounted already: unmount it first (umount {})",
                path.display(),
                path.display()
            );
            let folder = File::open(&resolved)
                .with_context(|| format!("can't open {}", resolved.display()))?;
            if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(Self { path: resolved, folder });
            }
            // The watcher of a killed mount holds the lock until it has detached that mount.
            ensure!(
                Instant::now() < deadline,
                "{} is being mounted by another process: end that one first",
                path.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The prefix of our mounts' source in the kernel's table; the volume's name follows.
pub(crate) const SOURCE: &str = "rackpool:";

/// Detaches dead mounts at a path. The caller does not hold the lock of the folder: the watcher of
/// such a mount detaches it too, and another process may mount there right after. So this detaches
/// only a mount that stays dead for a while, and only while it is the same mount.
fn detach_abandoned(path: &Path) -> anyhow::Result<()> {
    for _ in 0..LAYERS {
        let (seen, began) = (dead_mount(path), Instant::now());
        if seen.is_none() {
            return Ok(());
        }
        while began.elapsed() < OWN_WATCHER && dead_mount(path) == seen {
            std::thread::sleep(Duration::from_millis(5));
        }
        if dead_mount(path) == seen {
            detach(path)
                .with_context(|| format!("can't detach the dead mount at {}", path.display()))?;
        }
    }
    bail!("{} has more than {LAYERS} dead mounts on one another: unmount them", path.display())
}

/// Returns the mount at a path, by the kernel's table, if its process is gone.
fn dead_mount(path: &Path) -> Option<Option<Topmost>> {
    // The folder itself no longer answers.
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    let resolved = parent.zip(path.file_name()).map(|(parent, name)| parent.join(name));
    is_dead(path).then(|| topmost(resolved.as_deref().unwrap_or(path)))
}

/// Detaches dead mounts at a path. The caller holds the lock of the folder.
pub(crate) fn detach_dead(path: &Path) -> anyhow::Result<()> {
    for _ in 0..LAYERS {
        if !is_dead(path) {
            return Ok(());
        }
        detach(path)
            .with_context(|| format!("can't detach the dead mount at {}", path.display()))?;
    }
    bail!("{} has more than {LAYERS} dead mounts on one another: unmount them", path.display())
}

/// Returns whether the process of the mount at a path is gone.
pub(crate) fn is_dead(path: &Path) -> bool {
    let gone = [Errno::NOTCONN, Errno::CONNABORTED];
    matches!(rustix::fs::stat(path), Err(error) if gone.contains(&error))
}

/// Detaches a mount. Programs with open files there keep them while the mount's process lives.
pub(crate) fn detach(path: &Path) -> anyhow::Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // Another process has detached it first.
        Ok(()) | Err(nix::errno::Errno::EINVAL) => return Ok(()),
        Err(nix::errno::Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    let mut helper = Command::new("fusermount3");
    let output = helper
        .args(["-u", "-z", "--"])
        .arg(path)
        .output()
        .context("fusermount3, which unmounts for users, can't be run: install fuse3")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fusermount3 says: {}", said.trim());
    Ok(())
}

/// Returns the source of the topmost file system mounted at exactly this path.
fn mounted(path: &Path) -> Option<String> {
    topmost(path).map(|topmost| topmost.source)
}

/// The mount that hides all others at its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Topmost {
    /// The kernel's number of the mount.
    id: String,
    source: String,
}

fn topmost(path: &Path) -> Option<Topmost> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let at = escaped(path);
    let is_space = |byte: &u8| *byte == b' ';
    table.split(|byte| *byte == b'\n').rev().find_map(|line| {
        let is_there = line.split(is_space).nth(4)? == at;
        // Paths need not be UTF-8; they precede the type and the source.
        let line = is_there.then(|| String::from_utf8_lossy(line))?;
        let (id, source) = (line.split(' ').next()?, line.split_once(" - ")?.1.split(' ').nth(1)?);
        Some(Topmost { id: id.to_owned(), source: source.to_owned() })
    })
}

/// Escapes a path as the kernel's tables do.
fn escaped(path: &Path) -> Vec<u8> {
    let mut escaped = Vec::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").into_bytes()),
            _ => escaped.push(*byte),
        }
    }
    escaped
}

/// Sets the kernel's read-ahead in KiB. Without the permission the setting stays as it was.
pub fn set_read_ahead(path: &Path, kib: u32) {
    let Ok(root) = std::fs::metadata(path) else { return };
    let (major, minor) = (rustix::fs::major(root.dev()), rustix::fs::minor(root.dev()));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, kib.to_string()) {
        tracing::info!("can't set --read-ahead in {setting}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_claimed_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = MountPoint::claim(folder.path()).unwrap();
        let again = File::open(folder.path()).unwrap();
        assert!(flock(&again, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(first);
        MountPoint::claim(folder.path()).unwrap();
    }

    #[test]
    fn what_is_no_folder_is_refused_with_the_way_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = MountPoint::claim(file.path()).unwrap_err().to_string();
        assert!(error.contains("no folder"), "{error}");
        let missing = file.path().with_extension("missing");
        let error = MountPoint::claim(&missing).unwrap_err().to_string();
        assert!(error.contains("make the folder"), "{error}");
    }

    #[test]
    fn mounts_are_found_by_their_path() {
        assert!(mounted(Path::new("/proc")).is_some());
        assert_eq!(mounted(Path::new("/proc/self")), None);
        assert_eq!(escaped(Path::new("/a b\\c")), b"/a\\040b\\134c");
    }
}
