//! One child process of a pool.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_output::UsageError;

use super::program::find_program;
use super::wait::wait_for;

/// How long a process may take to stop cleanly before it is killed.
const STOP: Duration = Duration::from_secs(20);

/// A longer log is moved away, in bytes.
const MAX_LOG: u64 = 16 << 20;

/// A process of the pool.
#[derive(Debug)]
pub struct Child {
    program: &'static str,
    log: PathBuf,
    /// The length of the log when the process started.
    log_start: u64,
    process: std::process::Child,
}

/// Moves the contents of a log longer than `MAX_LOG` to `NAME.old`, replacing that file. Returns
/// whether it did. A line written meanwhile may be lost.
fn keep_bounded(log: &Path) -> anyhow::Result<bool> {
    if std::fs::metadata(log).map_or(0, |found| found.len()) <= MAX_LOG {
        return Ok(false);
    }
    let old = log.with_extension("log.old");
    std::fs::copy(log, &old)
        .and_then(|_| File::options().write(true).open(log)?.set_len(0))
        .with_context(|| format!("can't move {} to {}", log.display(), old.display()))?;
    Ok(true)
}

impl Child {
    /// Starts a program that ends with this one. Its output is appended to `log`.
    pub fn start(
        program: &'static str,
        arguments: &[(&str, impl AsRef<OsStr>)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        Self::start_on(program, None, arguments, log)
    }

    /// As [`start`](Self::start), with a positional argument.
    pub fn start_on(
        program: &'static str,
        object: Option<&Path>,
        arguments: &[(&str, impl AsRef<OsStr>)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        keep_bounded(log)?;
        let open = || File::options().create(true).append(true).mode(0o600).open(log);
        let output = open().with_context(|| format!("can't write {}", log.display()))?;
        let log_start = output.metadata().map_or(0, |found| found.len());
        let mut command = Command::new(find_program(program)?);
        command.args(object);
        for (name, value) in arguments {
            command.arg(name).arg(value);
        }
        let process = command
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C in the terminal is for the parent.
            .process_group(0)
            .spawn()
            .with_context(|| format!("can't start {program}"))?;
        Ok(Self { program, log: log.to_path_buf(), log_start, process })
    }

    /// The program's name.
    #[must_use]
    pub const fn program(&self) -> &'static str {
        self.program
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The file with the process's output.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Bounds the log while the process appends to it.
    pub(crate) fn keep_log_bounded(&mut self) -> anyhow::Result<()> {
        if keep_bounded(&self.log)? {
            self.log_start = 0;
        }
        Ok(())
    }

    /// The last lines of output of this process, not of an earlier one.
    fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(0);
        let text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// The exit status, once the process has ended.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok()?
    }

    /// Describes the end of the process, with the end of its log.
    pub(crate) fn last_words(&self, status: ExitStatus) -> String {
        format!("{} ended ({status}):\n{}", self.program, self.log_tail())
    }

    /// Waits until `ready` returns true. Fails if the process ends first or `timeout` expires.
    pub fn wait_until(
        &mut self,
        timeout: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> anyhow::Result<()> {
        let mut ended = None;
        let in_time = wait_for(timeout, || {
            ended = self.exit_status();
            ended.is_some() || ready()
        });
        match ended {
            // The child's usage error stems from this program's own arguments.
            Some(status) if status.code() == Some(UsageError::STATUS) => {
                bail!(UsageError::new(self.last_words(status)))
            }
            Some(status) => bail!(self.last_words(status)),
            None if in_time => Ok(()),
            None => bail!(
                "{} is not ready after {} s; the end of its log:\n{}",
                self.program,
                timeout.as_secs(),
                self.log_tail()
            ),
        }
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill(Pid::from_raw(i32::try_from(self.process.id())?), signal)
            .with_context(|| format!("can't signal {}", self.program))
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks the process to end.
    pub fn terminate(&mut self) {
        drop(self.process.stdin.take());
        // A process that has ended needs no signal.
        let _ = self.signal(Signal::SIGTERM);
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        Ok(self.process.wait()?)
    }

    /// Waits for the end of the process for up to 20 s, then kills it and fails.
    pub fn wait_or_kill(&mut self) -> anyhow::Result<()> {
        if wait_for(STOP, || matches!(self.process.try_wait(), Ok(Some(_)))) {
            return Ok(());
        }
        self.kill()?;
        bail!(
            "{} did not stop within {} s and was killed; its log is {}",
            self.program,
            STOP.as_secs(),
            self.log.display()
        )
    }
}
