//! A file system in the pool: names, inodes and contents.
//!
//! Any number of mounts in any rack use a volume at the same time. There is no server, and a mount
//! may be killed at any step.
//!
//! [`Volume`] has the operations of a kernel's file system, by inode number. `docs/design/fs.md`
//! describes the layout and crash recovery.
//!
//! A module imports only from modules above its own in this table:
//!
//! | module | contains |
//! |---|---|
//! | `attr`, `error`, `volume_memory` | types of the operations; errors; interface to the memory |
//! | `format` | the bytes of superblock, inodes, directories, locks and words |
//! | `volume` | [`Volume`], transactions on its table, and what a mount keeps in its own memory |
//! | `tree` | the words that lead to files' contents, and the heads of files |
//! | `files` | open files, contents, lengths, attributes |
//! | `namespace` | directories and names |
//! | `locks` | locks of byte ranges and of whole files |
//! | `mounts` | create and open a volume, sweep, walk a whole volume |
#![forbid(unsafe_code)]

mod attr;
mod error;
mod files;
mod format;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod locks;
mod mounts;
mod namespace;
mod tree;
mod volume;
mod volume_memory;

pub use attr::{
    AllocateMode, Attr, Caller, FileType, Ino, NewNode, NewTime, ReadDirEntry, RenameMode, SetAttr,
    StatFs, Timestamp, XattrMode,
};
pub use error::{FsError, VolumeOpenError};
pub use files::contents::Appended;
pub use format::file_locks::{LockFamily, LockMode, LockOwner, LockRange};
pub use format::superblock::{begins_volume, table_of};
pub use locks::{LockOutcome, LockRequest, OtherLock, Outdated};
pub use mounts::walk::walk_volume;
pub use volume::Volume;
pub use volume_memory::{Capacity, HeldSeat, PoolSeat, VolumeMemory};
