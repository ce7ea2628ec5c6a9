//! The folder of one rule, and helpers for files in it.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};

/// A folder for one rule; dropping it removes it with its contents.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
}

/// The times of a file, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time of the last access.
    pub access: i128,
    /// Time of the last change of the contents.
    pub modified: i128,
    /// Time of the last change of the attributes.
    pub changed: i128,
}

impl Place {
    /// Creates the folder.
    ///
    /// # Panics
    /// When it can't be created.
    #[must_use]
    #[track_caller]
    pub fn new(root: &Path, name: &str) -> Self {
        let folder = root.join(name);
        std::fs::create_dir(&folder).expect("a folder for the rule");
        set_mode(&folder, 0o777);
        Self { folder }
    }

    /// The folder itself.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of `name` in the folder.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// Creates a file with these contents.
    #[track_caller]
    pub fn file(&self, name: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).expect("a new file");
        path
    }

    /// Creates a subfolder.
    #[track_caller]
    pub fn subfolder(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).expect("a new folder");
        path
    }

    /// Creates a file and opens it for reading and writing.
    #[track_caller]
    pub fn open_new(&self, name: impl AsRef<Path>) -> std::fs::File {
        let options = &mut std::fs::File::options();
        let options = options.read(true).write(true).create_new(true);
        options.open(self.path(name)).expect("a new file")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Files that a failed rule has left may resist removal.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// open(2) with these flags and mode.
pub fn open(path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_bits_retain(mode))
}

/// Attributes of the path itself; symbolic links are not followed.
///
/// # Panics
/// When the path names nothing.
#[must_use]
#[track_caller]
pub fn stat(path: &Path) -> Stat {
    match rustix::fs::lstat(path) {
        Ok(stat) => stat,
        Err(error) => panic!("{} has no attributes: {error}", path.display()),
    }
}

/// The permission bits.
#[must_use]
#[track_caller]
pub fn mode(path: &Path) -> u32 {
    stat(path).st_mode & 0o7777
}

/// Sets the permission bits.
///
/// # Panics
/// When that is refused.
#[track_caller]
pub fn set_mode(path: &Path, mode: u32) {
    chmod(path, mode).expect("a mode that can be set");
}

/// chmod(2).
pub fn chmod(path: &Path, mode: u32) -> Result<()> {
    rustix::fs::chmod(path, Mode::from_bits_retain(mode))
}

/// chown(2) without following links; `None` leaves the user or group unchanged.
pub fn chown(path: &Path, user: Option<u32>, group: Option<u32>) -> Result<()> {
    let user = user.map(rustix::fs::Uid::from_raw);
    let group = group.map(rustix::fs::Gid::from_raw);
    rustix::fs::chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)
}

/// The number of hard links of a file.
#[must_use]
#[track_caller]
pub fn links(path: &Path) -> u64 {
    stat(path).st_nlink
}

/// The times of a file.
#[must_use]
#[track_caller]
pub fn times(path: &Path) -> Times {
    let stat = stat(path);
    let join = |seconds: i64, nanoseconds: u64| {
        i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
    };
    Times {
        access: join(stat.st_atime, stat.st_atime_nsec),
        modified: join(stat.st_mtime, stat.st_mtime_nsec),
        changed: join(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// Returns true if the path names nothing.
#[must_use]
pub fn is_missing(path: &Path) -> bool {
    matches!(rustix::fs::lstat(path), Err(Errno::NOENT))
}

/// Fails the rule unless the call was refused with this error.
#[track_caller]
pub fn refused<T: Debug>(outcome: Result<T>, wanted: Errno) {
    match outcome {
        Ok(done) => panic!("done ({done:?}) where {wanted:?} ({wanted}) is due"),
        Err(error) => assert_eq!(error, wanted, "{error} where {wanted} is due"),
    }
}

/// Fails the rule unless the call was refused with one of these errors.
#[track_caller]
pub fn refused_with_one_of<T: Debug>(outcome: Result<T>, wanted: &[Errno]) {
    match outcome {
        Ok(done) => panic!("done ({done:?}) where one of {wanted:?} is due"),
        Err(error) => assert!(wanted.contains(&error), "{error} where {wanted:?} is due"),
    }
}

/// Waits until the clocks from which file systems take their times have advanced.
pub fn let_clocks_move() {
    std::thread::sleep(Duration::from_millis(15));
}

/// Fails the rule unless `work` updates exactly those times of the path that `which` names.
#[track_caller]
pub fn sets_times(path: &Path, which: &str, work: impl FnOnce()) {
    let before = times(path);
    let_clocks_move();
    work();
    let after = times(path);
    assert_eq!(
        after.modified > before.modified,
        which.contains('m'),
        "mtime: {before:?} {after:?}"
    );
    assert_eq!(after.changed > before.changed, which.contains('c'), "ctime: {before:?} {after:?}");
}
