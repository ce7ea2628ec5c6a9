//! Executes a program instruction by instruction, and kills it at one of them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rackpool_client::GlobalAddr;

use super::executable::Executable;
use crate::client::parse_addr;
use rackpool_testing::skipped;

/// How programs are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// At a chosen instruction.
    Steps,
    /// At a random time: where tracing is forbidden.
    Times,
}

/// How programs can be killed on this machine. Some containers and processors forbid tracing, which
/// is then reported as skipped.
#[must_use]
pub fn may_trace() -> Means {
    let mut child = Command::new("sleep").arg("60").spawn().expect("a program that starts");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let seized = ptrace::seize(pid, ptrace::Options::empty());
    let stopped = seized
        .and_then(|()| ptrace::interrupt(pid))
        .and_then(|()| waitpid(pid, Some(WaitPidFlag::__WALL)));
    let can = stopped.is_ok() && program_counter(pid).is_some();
    // Both fail for a process that has ended.
    let _ = child.kill();
    let _ = child.wait();
    if can {
        return Means::Steps;
    }
    skipped(&format!(
        "programs can't be traced here ({stopped:?}): no kill at a chosen instruction, at random times instead"
    ));
    Means::Times
}

/// Where a program has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Before another instruction.
    Step,
    /// At its next mark.
    Mark,
    /// The program has ended: another of its threads reached the breakpoint.
    End,
}

/// An instruction of a program's run. The program runs to the `times`th hit of a breakpoint at
/// `at`, and from there `more` single steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number of instructions before the target in the measured run.
    pub step: usize,
    /// Offset in the program of the target, or of an instruction before it.
    pub at: u64,
    /// Hits of the breakpoint.
    pub times: usize,
    /// Single steps from the last hit to the target.
    pub more: usize,
}

/// The breakpoint instruction, where it is one byte long.
const BREAKPOINT: Option<i64> = if cfg!(target_arch = "x86_64") { Some(0xcc) } else { None };

/// A client that stops at its marks; killed when dropped. Only the thread that started the client
/// can trace it.
#[derive(Debug)]
pub struct Victim {
    process: Child,
    stdout: BufReader<ChildStdout>,
    pid: Pid,
    /// The address at which its program is mapped.
    base: u64,
}

impl Victim {
    /// Starts `client`, a `rackpool-test-client`, with these arguments.
    #[must_use]
    pub fn start(client: &Executable, dir: &Path, rack: u16, arguments: &[String]) -> Self {
        let mut process = Command::new(client.path())
            .arg(dir)
            .arg(rack.to_string())
            .arg("step")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let stdout = BufReader::new(process.stdout.take().expect("a piped output"));
        let pid = Pid::from_raw(i32::try_from(process.id()).expect("a process id"));
        Self { process, stdout, pid, base: 0 }
    }

    /// Waits for the first mark; returns the client's objects.
    pub fn wait_for_mark(&mut self) -> Vec<GlobalAddr> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a readable output");
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("ready"), "the client failed while it prepared");
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => {}
            other => panic!("the client did not come to its mark: {other:?}"),
        }
        self.base = base_of(self.pid);
        words.map(parse_addr).collect()
    }

    /// Files that the client has mapped.
    #[must_use]
    pub fn mapped_files(&self) -> Vec<PathBuf> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid));
        let maps = maps.expect("the maps of a stopped program");
        maps.lines().filter_map(|line| Some(PathBuf::from(line.get(line.find('/')?..)?))).collect()
    }

    /// The offset in the program of the next instruction.
    #[must_use]
    pub fn at(&self) -> u64 {
        program_counter(self.pid).expect("a stopped program").wrapping_sub(self.base)
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> At {
        let mut signal = None;
        loop {
            ptrace::step(self.pid, signal).expect("a stopped program");
            match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => return At::Step,
                Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => return At::Mark,
                Ok(WaitStatus::Stopped(_, other)) => signal = Some(other),
                other => panic!("the client ended by itself: {other:?}"),
            }
        }
    }

    /// Runs the client to an instruction.
    pub fn run_to(&mut self, target: Target) -> At {
        for time in 0..target.times {
            // After a step, since the client may be at this instruction already.
            let at = if time > 0 { self.step() } else { At::Step };
            let at = if at == At::Step { self.run_to_next(target.at) } else { at };
            if at != At::Step {
                return at;
            }
        }
        let mut at = At::Step;
        for _ in 0..target.more {
            at = self.step();
            if at != At::Step {
                break;
            }
        }
        at
    }

    fn run_to_next(&mut self, wanted: u64) -> At {
        let Some(breakpoint) = BREAKPOINT else {
            while self.at() != wanted {
                if self.step() == At::Mark {
                    return At::Mark;
                }
            }
            return At::Step;
        };
        let place = usize::try_from(self.base.wrapping_add(wanted)).expect("an address");
        let place = std::ptr::without_provenance_mut(place);
        let original = ptrace::read(self.pid, place).expect("an instruction of the program");
        ptrace::write(self.pid, place, original & !0xff | breakpoint).expect("a traced program");
        let mut signal = None;
        let at = loop {
            ptrace::cont(self.pid, signal).expect("a stopped program");
            match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => break At::Step,
                Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => break At::Mark,
                Ok(WaitStatus::Stopped(_, other)) => signal = Some(other),
                Ok(WaitStatus::Signaled(_, Signal::SIGTRAP, _)) => return At::End,
                other => panic!("the client ended by itself: {other:?}"),
            }
        };
        ptrace::write(self.pid, place, original).expect("a traced program");
        if at == At::Step {
            step_back(self.pid);
        }
        at
    }

    /// Runs the client for a time and stops it, unless it reaches its next mark before.
    pub fn run_for(&mut self, time: Duration) -> At {
        match ptrace::cont(self.pid, None) {
            Ok(()) => {}
            // The client is not traced and waits for the signal. A traced client is not affected by
            // the signal.
            Err(_) => kill(self.pid, Signal::SIGCONT).expect("a process to signal"),
        }
        std::thread::sleep(time);
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => return At::Mark,
            other => panic!("the client ended by itself: {other:?}"),
        }
        kill(self.pid, Signal::SIGSTOP).expect("a process to signal");
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => At::Step,
            other => panic!("the client does not stop: {other:?}"),
        }
    }

    /// Resumes a client at its second mark up to its last one; returns the object that its
    /// operation allocated.
    pub fn what_it_brought(&mut self) -> Option<GlobalAddr> {
        ptrace::cont(self.pid, None).expect("a stopped program");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a readable output");
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => {}
            other => panic!("the client did not come to its last mark: {other:?}"),
        }
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("brought"), "the client failed");
        words.next().map(parse_addr)
    }

    /// Kills the client.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.end();
    }
}

/// A thread of a running process that is about to be killed.
#[derive(Debug)]
pub struct TracedThread {
    process: Pid,
    thread: Pid,
    base: u64,
}

impl TracedThread {
    /// Stops the thread of this name; `None` when tracing is forbidden.
    #[must_use]
    pub fn stop(process: u32, name: &str) -> Option<Self> {
        let process = Pid::from_raw(i32::try_from(process).expect("a process id"));
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a running process");
        let threads = tasks.filter_map(|task| {
            let path = task.ok()?.path();
            let found = std::fs::read_to_string(path.join("comm")).ok()?;
            let id = path.file_name()?.to_str()?.parse().ok()?;
            (found.trim_end() == name).then(|| Pid::from_raw(id))
        });
        let thread = threads.last().expect("a thread of that name");
        match ptrace::seize(thread, ptrace::Options::empty()) {
            Ok(()) => {}
            Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS) => return None,
            Err(error) => panic!("{name} can't be traced: {error}"),
        }
        ptrace::interrupt(thread).expect("a traced thread");
        let stopped = waitpid(thread, Some(WaitPidFlag::__WALL));
        assert!(stopped.is_ok(), "{name} does not stop: {stopped:?}");
        Some(Self { process, thread, base: base_of(process) })
    }

    /// The offset in the program of the thread's next instruction.
    #[must_use]
    pub fn at(&self) -> u64 {
        program_counter(self.thread).expect("a stopped thread").wrapping_sub(self.base)
    }

    /// Executes one instruction. Returns false once the thread sleeps in a system call and
    /// `is_over` returns true.
    pub fn step(&mut self, mut is_over: impl FnMut() -> bool) -> bool {
        let mut signal = None;
        loop {
            ptrace::step(self.thread, signal).expect("a stopped thread");
            loop {
                match waitpid(self.thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                    Ok(WaitStatus::StillAlive) if is_over() => return false,
                    Ok(WaitStatus::StillAlive) => std::thread::yield_now(),
                    Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => return true,
                    Ok(WaitStatus::Stopped(_, other)) => {
                        signal = Some(other);
                        break;
                    }
                    // A stop that is an event of tracing alone.
                    Ok(WaitStatus::PtraceEvent(..)) => {
                        signal = None;
                        break;
                    }
                    other => panic!("the thread ended by itself: {other:?}"),
                }
            }
        }
    }

    /// Kills the process. Its parent must wait for it.
    pub fn kill_process(self) {
        drop(self);
    }
}

impl Drop for TracedThread {
    fn drop(&mut self) {
        // Both fail for a process that has ended. A traced thread is gone only after its tracer has
        // waited for it, and only then can its process be waited for.
        let _ = kill(self.process, Signal::SIGKILL);
        let _ = waitpid(self.thread, Some(WaitPidFlag::__WALL));
    }
}

/// The address at which the program of a process is mapped.
fn base_of(process: Pid) -> u64 {
    let program = std::fs::read_link(format!("/proc/{process}/exe")).expect("a running program");
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("its maps");
    let first = maps.lines().find(|line| line.ends_with(program.to_str().expect("a plain path")));
    let start = first.and_then(|line| line.split('-').next()).expect("a mapped program");
    u64::from_str_radix(start, 16).expect("an address")
}

#[cfg(target_arch = "x86_64")]
fn program_counter(thread: Pid) -> Option<u64> {
    ptrace::getregs(thread).ok().map(|registers| registers.rip)
}

/// After a breakpoint, moves the program counter back to the instruction that the breakpoint
/// replaced.
#[cfg(target_arch = "x86_64")]
fn step_back(thread: Pid) {
    let mut registers = ptrace::getregs(thread).expect("a stopped program");
    registers.rip -= 1;
    ptrace::setregs(thread, registers).expect("a stopped program");
}

#[cfg(not(target_arch = "x86_64"))]
const fn step_back(_: Pid) {}

#[cfg(target_arch = "aarch64")]
fn program_counter(thread: Pid) -> Option<u64> {
    ptrace::getregs(thread).ok().map(|registers| registers.pc)
}

/// The registers of other processors are not known; there programs are killed at random times.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const fn program_counter(_: Pid) -> Option<u64> {
    None
}
