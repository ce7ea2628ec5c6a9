//! A limit on how long a program may run, and on what it may leave behind: one that hangs fails
//! its step and is named, instead of holding up everything after it.

use std::fs;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How often waiting looks at the processes.
const PAUSE: Duration = Duration::from_millis(20);
/// How long processes that are about to end may take to do so.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `command` to its end.
///
/// # Errors
/// When it can't be started; when it runs longer than `limit`; and when processes that it started
/// are still running [`GRACE`] after its end. Whatever descends from it is killed then.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    // Processes whose parent ends become children of this one, so that all can be found.
    set_child_subreaper(true).context("can't adopt processes whose parent ends")?;
    let mut child = command.spawn()?;
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            let killed = kill_descendants()?;
            child.wait()?;
            reap_adopted();
            bail!("ran longer than its limit of {} s; killed: {killed}", limit.as_secs());
        }
        thread::sleep(PAUSE);
    };
    let end = Instant::now() + GRACE;
    while !descendants()?.is_empty() {
        if Instant::now() >= end {
            let killed = kill_descendants()?;
            reap_adopted();
            bail!("left processes running; killed: {killed}");
        }
        thread::sleep(PAUSE);
    }
    Ok(status)
}

/// Kills every process that descends from this one until none runs; returns their names and ids.
fn kill_descendants() -> Result<String> {
    let mut killed: Vec<String> = Vec::new();
    loop {
        let running = descendants()?;
        if running.is_empty() {
            return Ok(killed.join(", "));
        }
        for process in running {
            // One that has ended meanwhile needs no signal.
            kill(process.id, Signal::SIGKILL).ok();
            let name = format!("{} ({})", process.name, process.id);
            if !killed.contains(&name) {
                killed.push(name);
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Takes the statuses of adopted processes that have ended. The own child was waited for before.
fn reap_adopted() {
    while waitpid(None, Some(WaitPidFlag::WNOHANG)).is_ok_and(|it| it != WaitStatus::StillAlive) {}
}

/// A process as `/proc/PID/stat` describes it.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    id: Pid,
    name: String,
    state: char,
    parent: Pid,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        // The name stands in parentheses and may itself contain some.
        let (id, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(Self {
            id: Pid::from_raw(id.parse().ok()?),
            name: name.into(),
            state: fields.next()?.chars().next()?,
            parent: Pid::from_raw(fields.next()?.parse().ok()?),
        })
    }
}

/// The running processes that descend from this one. Those that have ended and were not waited
/// for (zombies) do not count.
fn descendants() -> Result<Vec<Process>> {
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc can't be read")? {
        // A process may end between two looks; what isn't a process has no such file.
        let stat = fs::read_to_string(entry?.path().join("stat"));
        others.extend(stat.ok().and_then(|stat| Process::parse(&stat)));
    }
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![Pid::this()];
    while let Some(parent) = parents.pop() {
        let (children, rest) = others.into_iter().partition(|other| other.parent == parent);
        others = rest;
        parents.extend(children.iter().map(|child: &Process| child.id));
        found.extend(children);
    }
    found.retain(|process| process.state != 'Z');
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_any_name() {
        let process = Process::parse("42 (a) (b c) S 7 42 42 0 -1 4194560").unwrap();
        let expected = Process {
            id: Pid::from_raw(42),
            name: "a) (b c".into(),
            state: 'S',
            parent: Pid::from_raw(7),
        };
        assert_eq!(process, expected);
        assert_eq!(Process::parse("uptime"), None);
    }
}
