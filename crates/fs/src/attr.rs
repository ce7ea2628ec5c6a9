//! What is known of files: the types of the public operations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of an inode; never used again in its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
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

/// A time: seconds since 1970, and nanoseconds after that (below 10^9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanoseconds: u32,
}

impl Time {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Time {
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

impl From<Time> for SystemTime {
    fn from(time: Time) -> Self {
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
    /// Its number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// The permission bits, with set-user-id, set-group-id and sticky: 0 to 0o7777.
    pub mode: u32,
    /// How many names it has; of a directory 2 and one for each directory in it.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device of a device file.
    pub rdev: u32,
    /// Bytes; of a symbolic link those of its target.
    pub size: u64,
    /// What is allocated for its contents, in units of 512 B. After a mount was killed it may be
    /// off by what that one had allocated since it last wrote it down.
    pub blocks: u64,
    /// Last read; kept like `relatime` does.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Grows with every change of the inode that was written to the pool, but for who has it open.
    pub change: u64,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
    /// Permission bits that what the caller creates does not get, unless the directory has a
    /// default ACL, which decides then.
    pub umask: u32,
}

impl Caller {
    /// A user and a group without a umask.
    #[must_use]
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, umask: 0 }
    }

    /// The same with a umask, of which the permission bits count.
    #[must_use]
    pub const fn with_umask(self, umask: u32) -> Self {
        Self { umask: umask & 0o777, ..self }
    }
}

/// A new time of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    /// Now.
    Now,
    /// That one.
    At(Time),
}

/// Which attributes to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length in bytes of a regular file.
    pub size: Option<u64>,
    /// The time of the last read.
    pub atime: Option<NewTime>,
    /// The time of the last change of the contents.
    pub mtime: Option<NewTime>,
    /// The time of the last change; now unless set.
    pub ctime: Option<Time>,
    /// Set-user-id and set-group-id of what is no directory go, as with a new owner.
    pub drops_privileges: bool,
}

/// What is to be created.
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
    /// A character device of this number.
    CharDevice(u32),
    /// A block device of this number.
    BlockDevice(u32),
}

/// What a rename may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace what has the new name.
    #[default]
    Replace,
    /// Fail if something has the new name.
    NoReplace,
    /// Swap both; both must exist.
    Exchange,
    /// Leave a *whiteout* under the old name, which overlay file systems take for a removed name of
    /// the layers below: a character device of number 0, without any permissions.
    Whiteout {
        /// To whom the whiteout belongs.
        owner: Caller,
        /// Whether something may have the new name, which is replaced.
        replaces: bool,
    },
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// What it names.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
    /// Reading goes on behind this entry with it, whatever changes meanwhile; below 2^63, never 0.
    pub cookie: u64,
}

/// What `fallocate` is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Have memory for the range; the file becomes longer if need be.
    Allocate,
    /// The same, and the length stays.
    AllocateKeepSize,
    /// Make the range a hole; the length stays.
    PunchHole,
    /// Make the range zeros; the file becomes longer if need be.
    ZeroRange,
    /// The same, and the length stays.
    ZeroRangeKeepSize,
}

/// Whether an extended attribute may, or must, be there before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    #[default]
    Set,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// The figures of a volume's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The block size in bytes, in which the others are given.
    pub block_bytes: u32,
    /// Blocks of the memory of all racks that can be reached.
    pub blocks: u64,
    /// Those that are free.
    pub free_blocks: u64,
    /// The longest name in bytes.
    pub max_name_bytes: u32,
}
