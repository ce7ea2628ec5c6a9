//! Peers of a test in processes of their own, to be killed and stopped.

use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const ADDRESS: &str = "RACKPOOL_TEST_FABRIC_ADDRESS";

/// The test program again, running one test alone. It ends with this.
#[derive(Debug)]
pub struct Peer(pub Child);

impl Peer {
    /// Starts it with the address of a fabric, which it finds with [`starter`].
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

    /// Stops it; it has stopped when this returns.
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
        // It has ended already when this fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In a peer: the address that it was started with. `None` in the test itself.
#[must_use]
pub fn starter() -> Option<String> {
    std::env::var(ADDRESS).ok()
}
