//! Looking for the next request before sleeping for it.
//!
//! Who reads or writes a file bit by bit sends the next request a few microseconds after an answer,
//! and waking a thread for it takes as long as serving it. So one thread at a time, after it has
//! answered a read or a write, looks whether something comes. More of them would take the cores
//! away from those who ask.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::opcode;

/// Longer than a program needs from one answer to its next request, and no longer than waking takes
/// where a core has to be brought back.
const LOOK: Duration = Duration::from_micros(30);
/// So many looks in vain in a row, and only one in [`RETRY`] answers is followed by one.
const IN_VAIN: u32 = 8;
const RETRY: u32 = 32;
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What the threads of a mount know of each other.
#[derive(Debug, Default)]
pub(super) struct Spinner {
    /// Some thread looks.
    is_held: AtomicBool,
    /// Looks in vain since the last that was not, and answers since then without a look.
    vain: AtomicU32,
}

impl Spinner {
    /// A request has been answered: looks for the next one, if that is likely to pay. Whether there
    /// is one or not, the caller reads next.
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

    /// Whether looks found something lately, or it is time to try.
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

/// Whether something can be read, looked at again and again for so long. An error is what the
/// reader hears next.
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
        // An answer counts by itself.
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
