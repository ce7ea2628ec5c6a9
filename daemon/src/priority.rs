//! The scheduling priority of the data plane's thread. Clients wait for this thread, so it should
//! not wait for their threads: on a host with fewer cores than busy processes, the kernel then
//! prefers it.

use std::fmt;

use rustix::io::Errno;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

/// The priority with which the data plane's thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// This niceness, as requested.
    Nice(i32),
    /// This niceness, because the kernel refused the requested one.
    Refused {
        /// The thread's niceness.
        nice: i32,
        /// The requested niceness.
        wanted: i32,
        /// The kernel's error.
        error: Errno,
    },
}

impl Priority {
    /// Sets the niceness of the calling thread, -20 (first) to 19 (last), if the process may.
    pub(crate) fn take(wanted: i32) -> Self {
        let thread = Some(gettid());
        match setpriority_process(thread, wanted) {
            Ok(()) => Self::Nice(wanted),
            Err(error) => {
                Self::Refused { nice: getpriority_process(thread).unwrap_or(0), wanted, error }
            }
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nice(nice) => write!(f, "nice {nice}"),
            Self::Refused { nice, wanted, error } => write!(
                f,
                "nice {nice}, not {wanted} ({error}): allow CAP_SYS_NICE or raise RLIMIT_NICE, or choose with --nice"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_priority_or_says_why_not() {
        let thread = || {
            let before = getpriority_process(Some(gettid())).unwrap();
            let taken = [Priority::take(before + 1), Priority::take(-20)];
            (before, taken, getpriority_process(Some(gettid())).unwrap())
        };
        // In a separate thread, so that the priority of the other tests does not change.
        let (before, [lower, highest], after) = std::thread::spawn(thread).join().unwrap();
        assert_eq!(lower, Priority::Nice(before + 1));
        match highest {
            Priority::Nice(nice) => assert_eq!((nice, after), (-20, -20)),
            Priority::Refused { nice, .. } => {
                assert_eq!((nice, after), (before + 1, before + 1));
                assert!(highest.to_string().contains("--nice"));
            }
        }
    }
}
