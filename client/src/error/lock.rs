use rackpool_model::GlobalAddr;

use super::AccessError;

/// The reason why a lock could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Others held the lock until the time had passed.
    #[error("others hold the lock of {0}: try again, or wait longer")]
    TimedOut(GlobalAddr),
    /// The thread holds a lock of one of the lines.
    #[error(
        "this thread holds a lock of the cache line of {0}: use its guard, or drop it before you lock again"
    )]
    AlreadyHeld(GlobalAddr),
    /// The bytes are none, or lie in more than 64 lines or in two pages.
    #[error("{len} B at {addr} can't be locked together: lock 1 to 64 cache lines of one page")]
    TooLarge {
        /// The first byte.
        addr: GlobalAddr,
        /// Number of bytes.
        len: u64,
    },
    /// The thread holds 32 locks.
    #[error("this thread holds 32 locks: drop one first")]
    TooMany,
    /// The file system of the pool has no room for the locked lines, which are in another rack.
    #[error(
        "the file system of the pool has no room for locked lines of another rack: make it larger, or free some objects"
    )]
    NoRoom,
    /// The bytes can't be accessed.
    #[error(transparent)]
    Access(#[from] AccessError),
}
