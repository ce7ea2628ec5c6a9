//! A file system in the pool: names, inodes and contents.
//!
//! Any number of mounts in any rack use a volume at the same time. There is no server, and a mount
//! may be killed at any step.
//!
//! [`Volume`] has the operations of a kernel's file system, by inode number. `docs/design/fs.md`
//! describes the layout and crash recovery.
#![forbid(unsafe_code)]

mod acl;
mod attr;
mod attributes;
mod codec;
mod contents;
mod directory;
mod error;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod heads;
mod inode;
mod keys;
mod locks;
mod names;
mod number_map;
mod parts;
mod read_dir;
mod remove;
mod rename;
mod session;
mod size;
mod store;
mod superblock;
mod sweep;
mod tree;
mod unlinked_inodes;
mod volume;
mod volume_memory;

pub use attr::{
    AllocateMode, Attr, Caller, FileType, Ino, NewNode, NewTime, ReadDirEntry, RenameMode, SetAttr,
    StatFs, Timestamp, XattrMode,
};
pub use contents::Appended;
pub use error::{FsError, VolumeOpenError};
pub use locks::{
    LockFamily, LockMode, LockOutcome, LockOwner, LockRange, LockRequest, OtherLock, Outdated,
};
pub use parts::walk_volume;
pub use superblock::{begins_volume, table_of};
pub use volume::Volume;
pub use volume_memory::{Capacity, HeldSeat, PoolSeat, VolumeMemory};
