//! A limit on the running time of a program, and on the processes that it leaves behind: a program
//! that hangs fails its step and is named, instead of blocking all later steps.

use std::fs;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The time between two checks of the processes.
const PAUSE: Duration = Duration::from_millis(20);
/// How long processes that are about to end may take to do so.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `command` to its end.
///
/// # Errors
/// When it can't be started; when it runs longer than `limit`; and when processes that it started
/// are still running [`GRACE`] after its end. All its descendants are killed then.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    // Processes whose parent ends become children of this one, so all of them can be found.
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

/// Kills all descendants of this process until none runs; returns their names and ids.
fn kill_descendants() -> Result<String> {
    let mut killed: Vec<String> = Vec::new();
    loop {
        let running = descendants()?;
        if running.is_empty() {
            return Ok(killed.join(", "));
        }
        for process in running {
            // A process may have ended meanwhile.
            kill(process.id, Signal::SIGKILL).ok();
            let name = format!("{} ({})", process.name, process.id);
            if !killed.contains(&name) {
                killed.push(name);
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Reaps adopted processes that have ended. The program itself was waited for before.
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
        // The name is in parentheses and may itself contain some.
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

/// The running descendants of this process. Zombies do not count.
fn descendants() -> Result<Vec<Process>> {
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc").context("/proc can't be read")? {
        // A process may end during the loop; other entries have no such file.
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
