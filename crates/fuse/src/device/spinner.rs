//! Polling for the next request before sleeping.
//!
//! A program that reads or writes a file in small pieces sends the next request a few microseconds
//! after an answer, and waking a thread for it takes as long as serving it. So after an answer to a
//! read or a write one thread at a time, the spinner, polls for the next request. More spinners
//! would take cores away from the programs.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::opcode;

/// Longer than a program takes from an answer to its next request, and no longer than waking a
/// thread takes when a core leaves an idle state.
const LOOK: Duration = Duration::from_micros(30);
/// After this many useless polls in a row, only one in [`RETRY`] answers is followed by a poll.
const IN_VAIN: u32 = 8;
const RETRY: u32 = 32;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The state that the threads of a mount share.
#[derive(Debug, Default)]
pub(super) struct Spinner {
    /// Set while a thread polls.
    is_held: AtomicBool,
    /// Useless polls since the last useful one, plus answers since then that were not followed by a
    /// poll.
    vain: AtomicU32,
}

impl Spinner {
    /// Polls for the next request after an answer, if that is likely to find one. The caller reads
    /// next in any case.
    pub(super) fn answered(&self, opcode: u32, device: &File) {
        if !matches!(opcode, opcode::READ | opcode::WRITE) || !self.pays() {
            return;
        }
        if self.is_held.swap(true, Ordering::Acquire) {
            return;
        }
        let has_come = is_ready_within(device, LOOK);
        self.looked(has_come);
        self.is_held.store(false, Ordering::Release);
    }

    /// Returns whether recent polls found requests, or another try is due.
    fn pays(&self) -> bool {
        self.vain.load(Ordering::Relaxed) < IN_VAIN
            || self.vain.fetch_add(1, Ordering::Relaxed).is_multiple_of(RETRY)
    }

    fn looked(&self, has_come: bool) {
        if has_come {
            self.vain.store(0, Ordering::Relaxed);
        } else {
            self.vain.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Polls until a request can be read, for at most `time`. Returns true on an error as well, which
/// the next read reports.
fn is_ready_within(device: &File, time: Duration) -> bool {
    let start = Instant::now();
    loop {
        let mut fds = [PollFd::new(device, PollFlags::IN)];
        if poll(&mut fds, Some(&AT_ONCE)) != Ok(0) {
            return true;
        }
        if start.elapsed() >= time {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (File, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        (File::from(OwnedFd::from(ours)), theirs)
    }

    #[test]
    fn what_has_come_ends_the_look() {
        let (device, mut kernel) = pair();
        assert!(!is_ready_within(&device, Duration::ZERO));
        kernel.write_all(&[1]).expect("room");
        assert!(is_ready_within(&device, Duration::ZERO));
    }

    #[test]
    fn looks_that_are_in_vain_become_rare_and_one_that_is_not_makes_them_frequent() {
        let spinner = Spinner::default();
        for _ in 0..IN_VAIN {
            assert!(spinner.pays());
            spinner.looked(false);
        }
        // The first of these answers is counted as a try, too.
        assert_eq!((0..10 * RETRY).filter(|_| spinner.pays()).count(), 10);
        spinner.looked(true);
        assert!((0..100).all(|_| spinner.pays()));
    }

    #[test]
    fn nobody_looks_while_another_does_or_after_other_requests() {
        let (device, mut kernel) = pair();
        let spinner = Spinner::default();
        spinner.is_held.store(true, Ordering::Relaxed);
        spinner.answered(opcode::READ, &device);
        assert!(spinner.is_held.load(Ordering::Relaxed));
        assert_eq!(spinner.vain.load(Ordering::Relaxed), 0);
        spinner.is_held.store(false, Ordering::Relaxed);
        spinner.answered(opcode::GETATTR, &device);
        assert_eq!(spinner.vain.load(Ordering::Relaxed), 0);
        spinner.answered(opcode::READ, &device);
        assert_eq!(spinner.vain.load(Ordering::Relaxed), 1);
        kernel.write_all(&[1]).expect("room");
        spinner.answered(opcode::WRITE, &device);
        assert_eq!(spinner.vain.load(Ordering::Relaxed), 0);
        assert!(!spinner.is_held.load(Ordering::Relaxed));
    }
}
