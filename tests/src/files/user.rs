//! Doing things as somebody else.

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// Somebody without privileges.
pub const NOBODY: u32 = 65_534;
/// Somebody else without privileges.
pub const OTHER: u32 = 65_533;

/// Whether this process may act as others.
#[must_use]
pub fn may_be_others() -> bool {
    Uid::effective().is_root()
}

/// Does something as a user without privileges: in a thread of its own, whose file system identity
/// is that user's and which the kernel takes the matching capabilities from.
#[track_caller]
pub fn as_user<T: Send>(user: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setfsgid(Gid::from_raw(group));
            setfsuid(Uid::from_raw(user));
            work()
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does something with a umask, which no other thread has meanwhile.
///
/// # Panics
/// When the thread can't have a umask of its own.
#[track_caller]
pub fn with_umask<T: Send>(umask: u32, work: impl FnOnce() -> T + Send) -> T {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_FS).expect("a umask of its own");
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
            work()
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
