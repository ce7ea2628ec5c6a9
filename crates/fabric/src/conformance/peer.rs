//! Test peers in processes of their own, which the test can kill and stop.

use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ADDRESS: &str = "RACKPOOL_TEST_FABRIC_ADDRESS";

/// The test program started again to run a single test. Dropping it kills the process.
#[derive(Debug)]
pub struct Peer(pub Child);

impl Peer {
    /// Starts the process with the address of a fabric, which it gets from [`starter`].
    #[must_use]
    pub fn running(test: &str, address: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let arguments = ["--exact", test, "--quiet"];
        let started = Command::new(program).args(arguments).env(ADDRESS, address).spawn();
        Self(started.expect("this program again"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("a running peer");
    }

    /// Stops the process and waits until it has stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.0);
        let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child");
        let (_, status) = stopped.expect("something to report");
        assert!(status.stopped(), "the peer ended: {status:?}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The address with which a peer was started; `None` in the test itself.
#[must_use]
pub fn starter() -> Option<String> {
    std::env::var(ADDRESS).ok()
}
