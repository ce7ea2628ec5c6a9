//! File locks, through the interfaces that programs use; detection of threads that wait for one.

use std::fs::File;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use rackpool_testing::wait::{TIMEOUT, wait_until};

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process, that is, all threads that share the descriptor table.
    Process,
    /// The open file description.
    Description,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Excludes exclusive locks of other owners.
    Shared,
    /// Excludes all locks of other owners.
    Exclusive,
    /// Releases the lock.
    None,
}

/// The system call's argument for a lock of `len` bytes from `start`; a `len` of 0 extends to the
/// end of the file.
#[must_use]
pub fn range(lock: Lock, (start, len): (i64, i64)) -> libc::flock {
    let kind = match lock {
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
        Lock::None => libc::F_UNLCK,
    };
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Requests a lock of `bytes`, an offset and a length (0: to the end of the file). Does not wait.
///
/// # Errors
/// The system's error; `EAGAIN` when another owner holds a conflicting lock.
pub fn try_lock(file: &File, holder: Holder, bytes: (i64, i64), lock: Lock) -> Result<(), Errno> {
    let range = range(lock, bytes);
    fcntl(
        file,
        match holder {
            Holder::Process => FcntlArg::F_SETLK(&range),
            Holder::Description => FcntlArg::F_OFD_SETLK(&range),
        },
    )
    .map(drop)
}

/// As [`try_lock`], but waits for the lock.
///
/// # Errors
/// The system's error; `EDEADLK` when the request would wait for ever.
pub fn lock(file: &File, holder: Holder, bytes: (i64, i64), lock: Lock) -> Result<(), Errno> {
    let range = range(lock, bytes);
    fcntl(
        file,
        match holder {
            Holder::Process => FcntlArg::F_SETLKW(&range),
            Holder::Description => FcntlArg::F_OFD_SETLKW(&range),
        },
    )
    .map(drop)
}

/// Returns true while `thread` of `process` is inside the system call `call`. Locks are requested
/// by `SYS_flock` and `SYS_fcntl`.
#[must_use]
pub fn waits_in(process: u32, thread: u32, call: i64) -> bool {
    let said = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    said.is_ok_and(|said| said.split(' ').next() == Some(&call.to_string()))
}

/// Starts a thread that makes a request which may block; returns the thread and its thread id.
pub fn waiter<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    ask: impl FnOnce() -> T + Send + 'scope,
) -> (ScopedJoinHandle<'scope, T>, u32) {
    let (tell, told) = channel();
    let thread = scope.spawn(move || {
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        ask()
    });
    let number = told.recv().expect("a thread that starts");
    (thread, number)
}

/// Waits until a thread of this process is inside the system call `call`.
pub fn expect_waiting(thread: u32, call: i64) {
    let own = std::process::id();
    wait_until("a lock is waited for", TIMEOUT, || waits_in(own, thread, call));
}
