//! Other processes of a benchmark: this program again, in a role. Messages are lines on their
//! standard input and output; a process ends when its input ends.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;

/// How far in the future a common start is set, so that every process learns of it before.
const AHEAD: Duration = Duration::from_millis(50);

/// One of these processes. Dropping it kills the process and waits for its end.
pub(crate) struct Helper {
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts this program with a role and its arguments.
    pub(crate) fn start(role: &str, arguments: &[String]) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(role)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = process.stdin.take();
        let from = BufReader::new(process.stdout.take().context("its output")?);
        Ok(Self { process, to, from })
    }

    /// Sends a line.
    pub(crate) fn tell(&mut self, what: impl Display) -> anyhow::Result<()> {
        use std::io::Write;
        let to = self.to.as_mut().context("its input")?;
        Ok(writeln!(to, "{what}")?)
    }

    /// The next line that the process prints.
    pub(crate) fn hear(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let count = self.from.read_line(&mut line)?;
        anyhow::ensure!(count > 0, "a process of the benchmark ended early");
        Ok(line.trim_end().to_owned())
    }

    /// Kills the process in the middle of its work.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.process.kill()?)
    }

    /// Lets the process end by itself.
    pub(crate) fn leave(mut self) -> anyhow::Result<()> {
        drop(self.to.take());
        let status = self.process.wait()?;
        anyhow::ensure!(status.success(), "a process of the benchmark ended with {status}");
        Ok(())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.to.take());
        // A busy process does not read its input.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A point in time in the near future, by a clock that all processes read.
pub(crate) fn soon() -> anyhow::Result<u128> {
    Ok((SystemTime::now().duration_since(UNIX_EPOCH)? + AHEAD).as_nanos())
}

/// That point in time by the monotonic clock of this process.
pub(crate) fn at(time: u128) -> anyhow::Result<Instant> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let here = Instant::now();
    let ahead = u64::try_from(time.saturating_sub(now)).context("a time")?;
    Ok(here + Duration::from_nanos(ahead))
}

/// Sleeps until that point in time.
pub(crate) fn sleep_until(time: u128) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let left = u64::try_from(time.saturating_sub(now)).context("a time")?;
    std::thread::sleep(Duration::from_nanos(left));
    Ok(())
}
