//! Operations as another user.

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// A user and group without privileges.
pub const NOBODY: u32 = 65_534;
/// Another user and group without privileges.
pub const OTHER: u32 = 65_533;

/// Returns true if this process may act as other users.
#[must_use]
pub fn may_be_others() -> bool {
    Uid::effective().is_root()
}

/// Runs `work` as a user without privileges, in a thread of its own. The thread has that user's
/// file system identity, so the kernel drops its file system capabilities.
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

/// Runs `work` in a thread with a umask of its own.
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
