//! A client in a process of its own, driven over its standard input and output, and killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::GlobalAddr;

use rackpool_testing::wait::TIMEOUT;

/// A running `rackpool-test-client`; killed when dropped.
#[derive(Debug)]
pub struct TestClient {
    process: Child,
    lines: Receiver<String>,
    /// All lines that the client has printed.
    pub said: Vec<String>,
}

/// Path of a program that was built with the tests and lies beside them.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of the test");
    let found = own.ancestors().skip(1).take(3).map(|dir| dir.join(name)).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built: run `cargo build --workspace --bins`"))
}

impl TestClient {
    /// Starts a client of a rack.
    #[must_use]
    pub fn start(dir: &Path, rack: u16, arguments: &[&str]) -> Self {
        Self::start_as(Command::new(program("rackpool-test-client")), dir, rack, arguments)
    }

    /// Starts a client of a rack through `command`, which runs the program in another environment.
    #[must_use]
    pub fn start_as(mut command: Command, dir: &Path, rack: u16, arguments: &[&str]) -> Self {
        let mut process = command
            .arg(dir)
            .arg(rack.to_string())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let stdout = process.stdout.take().expect("a piped output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines, said: Vec::new() }
    }

    /// The client's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The next line that the client prints; `None` at the end of its output.
    pub fn next_line(&mut self, timeout: Duration) -> Option<String> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => {
                self.said.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the client said nothing for {timeout:?}"),
        }
    }

    /// Waits until the client has printed `count` lines in all.
    #[track_caller]
    pub fn wait_for_lines(&mut self, count: usize) {
        while self.said.len() < count {
            assert!(self.next_line(TIMEOUT).is_some(), "the client ended early: {:?}", self.said);
        }
    }

    /// Reads the lines that the client has printed so far, without waiting.
    pub fn listen(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.said.push(line);
        }
    }

    /// Sends a line to the client.
    #[track_caller]
    pub fn say(&mut self, request: &str) {
        let stdin = self.process.stdin.as_mut().expect("a piped input");
        writeln!(stdin, "{request}").expect("a client that listens");
    }

    /// Sends a line to the client and returns its answer.
    #[track_caller]
    pub fn ask(&mut self, request: &str) -> String {
        self.say(request);
        self.next_line(TIMEOUT).expect("a client that answers")
    }

    /// Has the client allocate an object of `bytes` bytes.
    #[track_caller]
    pub fn alloc(&mut self, bytes: u64) -> GlobalAddr {
        parse_addr(&self.ask(&format!("alloc {bytes}")))
    }

    /// Returns true once the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("a process").is_some()
    }

    /// Sends the client a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(id), signal).expect("a process to signal");
    }

    /// Kills the client as `kill -9` does; afterwards `said` holds all that it has printed.
    pub fn kill(&mut self) {
        self.process.kill().expect("a process to kill");
        self.finish();
    }

    /// Closes the client's input and waits until it ends; returns true if it succeeded.
    pub fn finish(&mut self) -> bool {
        drop(self.process.stdin.take());
        while self.next_line(TIMEOUT).is_some() {}
        self.process.wait().expect("a process that ends").success()
    }
}

impl Drop for TestClient {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Parses an address: [`GlobalAddr::raw`] in hexadecimal digits.
#[must_use]
#[track_caller]
pub fn parse_addr(text: &str) -> GlobalAddr {
    match u64::from_str_radix(text, 16) {
        Ok(raw) => GlobalAddr::from_raw(raw),
        Err(_) => panic!("'{text}' is no address"),
    }
}
