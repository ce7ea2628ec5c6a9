//! A forked child of this process, for tests: no other crate may have the unsafe code.

use std::io::{Error, ErrorKind, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A child that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// What a child ends with that has panicked.
const PANICKED: u8 = 101;

/// Forks this process, has the child do `work` and end with what that returns, and waits for it.
/// The child ends without running what is registered for the end of a process.
///
/// # Errors
/// The child can't be made, was killed, or took too long, after which it is killed.
pub fn run(work: impl FnOnce() -> u8) -> Result<u8> {
    // SAFETY: the child has this thread alone; what others held at this moment stays locked in it,
    // which `work` has to bear: a hang is ended below.
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
            // SAFETY: a child that has not been waited for: its number is nobody else's.
            unsafe { libc::kill(process, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(process, &raw mut status, 0) };
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
