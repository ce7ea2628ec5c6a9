//! A server of a test, as a process that is killed and started again.

use std::process::{Child, Command, Stdio};

/// A server; killed when dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    process: Child,
    command: Vec<String>,
}

impl ServerProcess {
    /// Starts a program with its arguments.
    pub(crate) fn start(command: Vec<String>) -> Self {
        Self { process: run(&command), command }
    }

    /// The process.
    pub(crate) const fn process(&mut self) -> &mut Child {
        &mut self.process
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the server as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a process to kill");
        self.process.wait().expect("a process that ends");
    }

    /// Starts a killed server again.
    pub(crate) fn restart(&mut self) {
        self.process = run(&self.command);
    }
}

fn run(command: &[String]) -> Child {
    Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a program that starts")
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
