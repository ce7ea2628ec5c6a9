//! A forked child of this process, for tests; other crates must not contain unsafe code.

use std::io::{Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A child that takes longer counts as hung.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Exit code of a child that has panicked.
const PANICKED: u8 = 101;

/// Forks this process, runs `work` in the child, waits for the child and returns its exit code,
/// which is the result of `work`. The child exits without running the process's exit handlers.
///
/// # Errors
/// The child cannot be created, was killed, or took too long; it is killed then.
pub fn run(work: impl FnOnce() -> u8) -> Result<u8> {
    // SAFETY: the child has only this thread. Locks that other threads held stay locked in the
    // child, so `work` may hang; the loop below ends a child that hangs.
    let process = unsafe { libc::fork() };
    if process == 0 {
        let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
        // SAFETY: ends the child here.
        unsafe { libc::_exit(i32::from(code)) }
    }
    if process < 0 {
        return Err(Error::last_os_error());
    }
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: a place for the status of a child of this process.
        let ended = unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) };
        if ended == process && libc::WIFEXITED(status) {
            let code = libc::WEXITSTATUS(status);
            return u8::try_from(code).map_err(|_| Error::from(ErrorKind::InvalidData));
        }
        if ended != 0 {
            return Err(Error::other("the child was killed"));
        }
        if began.elapsed() > TIMEOUT {
            // SAFETY: the child has not been waited for, so its process id is not reused.
            unsafe { libc::kill(process, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(process, &raw mut status, 0) };
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
