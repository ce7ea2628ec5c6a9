//! Ctrl-C, requests to end, and deadlines. All waits of the lab check for them.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The time between two checks.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Catches the signals that ask a program to end, for this thread until it is dropped. Programs
/// started meanwhile have these signals blocked and must be killed.
#[derive(Debug)]
pub(super) struct Interrupts {
    signals: SigSet,
    arrived: SignalFd,
}

impl Interrupts {
    /// Catches the signals from now on.
    pub(super) fn catch() -> Result<Self> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self { signals, arrived: SignalFd::with_flags(&signals, flags)? })
    }

    /// Checks for a signal.
    ///
    /// # Errors
    /// When one has arrived.
    pub(super) fn check(&self) -> Result<()> {
        let Some(signal) = self.arrived.read_signal()? else { return Ok(()) };
        let number = i32::try_from(signal.ssi_signo)?;
        bail!("interrupted by {}", Signal::try_from(number)?)
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// When it can't be started, fails, takes longer than `limit` (then it is killed), or when a
    /// signal arrives.
    pub(super) fn run(&self, command: &mut Command, limit: Duration) -> Result<String> {
        let line = format!("{command:?}");
        let mut child = Running(
            command
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("{line} did not start"))?,
        );
        let mut printed = child.0.stdout.take().context("no pipe")?;
        // In a thread of its own: a full pipe would block the command.
        let reader = thread::spawn(move || {
            let mut text = String::new();
            printed.read_to_string(&mut text).map(|_| text)
        });
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.0.try_wait()? {
                break status;
            }
            self.check()?;
            ensure!(Instant::now() < end, "{line} took longer than {} s", limit.as_secs());
            thread::sleep(PAUSE);
        };
        ensure!(status.success(), "{line} failed: {status}");
        let Ok(text) = reader.join() else { bail!("{line}: its output was not read") };
        text.with_context(|| format!("{line}: its output is no text"))
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        // Fails only for arguments that the type excludes.
        let _ = self.signals.thread_unblock();
    }
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn what_a_command_prints_is_returned_also_when_it_is_more_than_a_pipe_holds() {
        let interrupts = Interrupts::catch().unwrap();
        let text = interrupts.run(&mut shell("yes | head -c 300000"), LIMIT).unwrap();
        assert_eq!(text.len(), 300_000);
        let error = interrupts.run(&mut shell("exit 3"), LIMIT).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let interrupts = Interrupts::catch().unwrap();
        let limit = Duration::from_millis(100);
        let error = interrupts.run(&mut shell("exec sleep 1000"), limit).unwrap_err();
        assert!(error.to_string().contains("took longer than"), "{error}");
    }

    #[test]
    fn a_signal_ends_the_waiting_and_not_the_program() {
        let interrupts = Interrupts::catch().unwrap();
        interrupts.check().unwrap();
        raise(Signal::SIGTERM).unwrap();
        let error = interrupts.run(&mut shell("exec sleep 1000"), LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "interrupted by SIGTERM");
        interrupts.check().unwrap();
    }
}
