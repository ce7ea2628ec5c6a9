//! Locks of files, as programs ask for them; and who waits for one.

use std::fs::File;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::wait::{TIMEOUT, wait_until};

/// Who is to have a lock of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process: all that have the same descriptors.
    Process,
    /// The open file description.
    Description,
}

/// What is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Others may have shared locks.
    Shared,
    /// Others may have none.
    Exclusive,
    /// Nothing.
    None,
}

/// What the system is asked for.
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

/// Asks for a lock of some bytes, from an offset on, so many or all (0); does not wait.
///
/// # Errors
/// The system's; `EAGAIN` when others have it.
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

/// The same; waits for it.
///
/// # Errors
/// The system's; `EDEADLK` when it would wait for ever.
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

/// Whether a thread of some process waits within a system call of this number. A lock is asked for
/// by `SYS_flock` and `SYS_fcntl`.
#[must_use]
pub fn waits_in(process: u32, thread: u32, call: i64) -> bool {
    let said = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    said.is_ok_and(|said| said.split(' ').next() == Some(&call.to_string()))
}

/// Has a thread ask for something that may be waited for; gives the thread, and its number.
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

/// Waits until a thread of this process waits in a system call.
pub fn expect_waiting(thread: u32, call: i64) {
    let own = std::process::id();
    wait_until("a lock is waited for", TIMEOUT, || waits_in(own, thread, call));
}
