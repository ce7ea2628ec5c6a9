//! The types of the public operations: attributes, entries, modes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of an inode. It is never reused within its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A point in time: seconds since 1970, and nanoseconds after that (below 10^9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970; negative for earlier times.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The current time.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let of = |span: Duration| {
            (i64::try_from(span.as_secs()).unwrap_or(i64::MAX), span.subsec_nanos())
        };
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                let (seconds, nanoseconds) = of(after);
                Self { seconds, nanoseconds }
            }
            Err(before) => match of(before.duration()) {
                (seconds, 0) => Self { seconds: -seconds, nanoseconds: 0 },
                (seconds, nanos) => {
                    Self { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanos }
                }
            },
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let nanos = Duration::from_nanos(time.nanoseconds.into());
        let span = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            UNIX_EPOCH.checked_sub(span)
        } else {
            UNIX_EPOCH.checked_add(span)
        };
        whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
    }
}

/// The attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode's number.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileType,
    /// The permission bits, with set-user-id, set-group-id and sticky: 0 to 0o7777.
    pub mode: u32,
    /// The number of names. Of a directory: 2, and one for each directory in it.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device file.
    pub rdev: u32,
    /// Length in bytes; of a symbolic link, the length of its target.
    pub size: u64,
    /// Memory allocated for the contents, in units of 512 B. After a kill of a mount it misses what
    /// that mount had allocated since it last stored the count.
    pub blocks: u64,
    /// Time of the last read, updated as with `relatime`.
    pub atime: Timestamp,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Time of the last change of contents or attributes.
    pub ctime: Timestamp,
    /// Incremented by every change of the inode that is stored in the pool, except a change of the
    /// list of mounts that have it open.
    pub change: u64,
}

/// The user and group on whose behalf an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// Permission bits to withhold from what the caller creates. If the directory has a default
    /// ACL, that decides instead.
    pub umask: u32,
}

impl Caller {
    /// A user and a group without a umask.
    #[must_use]
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, umask: 0 }
    }

    /// Sets the umask; only its permission bits count.
    #[must_use]
    pub const fn with_umask(self, umask: u32) -> Self {
        Self { umask: umask & 0o777, ..self }
    }
}

/// A new time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// The current time.
    Now,
    /// The given time.
    At(Timestamp),
}

/// The attributes to change; `None` keeps an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length in bytes; only regular files.
    pub size: Option<u64>,
    /// The time of the last read.
    pub atime: Option<NewTime>,
    /// The time of the last change of the contents.
    pub mtime: Option<NewTime>,
    /// The time of the last change; the current time if `None`.
    pub ctime: Option<Timestamp>,
    /// Clears set-user-id and set-group-id of anything but a directory, as a new owner does.
    pub drops_privileges: bool,
}

/// The kind of inode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this number.
    CharDevice(u32),
    /// A block device with this number.
    BlockDevice(u32),
}

/// How a rename treats the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace what the new name names.
    #[default]
    Replace,
    /// Fail if the new name exists.
    NoReplace,
    /// Exchange the two names; both must exist.
    Exchange,
    /// Leave a *whiteout* under the old name: a character device of number 0 without permissions.
    /// Overlay file systems read it as a name removed from the layers below.
    Whiteout {
        /// The owner of the whiteout.
        owner: Caller,
        /// Whether an existing new name is replaced; if not, the rename fails.
        replaces: bool,
    },
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDirEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// The inode that the name refers to.
    pub ino: Ino,
    /// The kind of that inode.
    pub kind: FileType,
    /// Pass it to `read_dir` to continue behind this entry. It stays valid whatever changes
    /// meanwhile. Below 2^63, never 0.
    pub cookie: u64,
}

/// The operation of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Allocate memory for the range; extends the file if needed.
    Allocate,
    /// Allocate memory for the range; the length stays.
    AllocateKeepSize,
    /// Make the range a hole; the length stays.
    PunchHole,
    /// Fill the range with zeros; extends the file if needed.
    ZeroRange,
    /// Fill the range with zeros; the length stays.
    ZeroRangeKeepSize,
}

/// Whether an extended attribute may or must exist already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// It may exist.
    #[default]
    Set,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

/// The size and free space of a volume's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The block size in bytes, the unit of the counts below.
    pub block_bytes: u32,
    /// Blocks in the memory of all reachable racks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// The longest name, in bytes.
    pub max_name_bytes: u32,
}
