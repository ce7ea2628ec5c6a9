//! Waiting for Ctrl-C or a request to end.

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that end a command, as a descriptor.
#[derive(Debug)]
pub(super) struct Interrupts(SignalFd);

impl Interrupts {
    /// Blocks the signals for this thread and the threads that it starts, and reads them from a
    /// descriptor.
    pub(super) fn catch() -> anyhow::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits until a signal arrives (`None`) or `look` returns a reason to end; polls both every 50
    /// ms.
    pub(super) fn wait<R>(&self, mut look: impl FnMut() -> Option<R>) -> anyhow::Result<Option<R>> {
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
