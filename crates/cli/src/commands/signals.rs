//! Waiting for Ctrl-C or a request to end.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that ask a command to end, caught from now on.
#[derive(Debug)]
pub(super) struct Interrupts(SignalFd);

impl Interrupts {
    /// Catches them for this thread and those it starts.
    pub(super) fn catch() -> anyhow::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits until one arrives or `look` finds a reason to end.
    pub(super) fn wait<R>(self, mut look: impl FnMut() -> Option<R>) -> anyhow::Result<Option<R>> {
        loop {
            if self.0.read_signal()?.is_some() {
                return Ok(None);
            }
            if let Some(reason) = look() {
                return Ok(Some(reason));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
