//! A small pool of real processes for one test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_cli::commands::status;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_wire::control::RackStatus;

use crate::client::TestClient;
use crate::wait::{PATIENCE, wait_for};

/// The page size of most tests: small, so that pages fill up and empty quickly.
pub const PAGE: u64 = 64 << 10;

/// A metadata server and rack daemons; all of it goes when this is dropped.
#[derive(Debug)]
pub struct TestPool {
    /// The processes.
    pub cluster: Cluster,
}

impl TestPool {
    /// Two racks of 16 MiB with pages of 64 KiB.
    #[must_use]
    pub fn small() -> Self {
        Self::start(16 << 20, PAGE)
    }

    /// Two racks.
    #[must_use]
    pub fn start(memory: u64, page_size: u64) -> Self {
        Self::with(|options| {
            options.memory = memory;
            options.page_size = page_size;
        })
    }

    /// Two racks of 16 MiB with pages of 64 KiB, unless `change` says something else.
    #[must_use]
    pub fn with(change: impl FnOnce(&mut ClusterOptions)) -> Self {
        let mut options = ClusterOptions::ephemeral().expect("a clock that works");
        options.memory = 16 << 20;
        options.page_size = PAGE;
        change(&mut options);
        match Cluster::start(options) {
            Ok(cluster) => Self { cluster },
            Err(error) => panic!("the pool does not start: {error:#}"),
        }
    }

    /// The pool's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.cluster.options().dir
    }

    /// The folder of a rack.
    #[must_use]
    pub fn rack_dir(&self, rack: u16) -> PathBuf {
        self.dir().join(format!("rack-{rack}"))
    }

    /// How a client of the rack opens the pool.
    #[must_use]
    pub fn options(&self, rack: u16) -> ClientOptions {
        ClientOptions::new(self.dir(), RackId(rack))
    }

    /// A client of the rack in this process.
    #[must_use]
    pub fn open(&self, rack: u16) -> Pool {
        Pool::open(self.options(rack)).expect("a daemon that serves")
    }

    /// A client of the rack in a process of its own.
    #[must_use]
    pub fn client(&self, rack: u16, arguments: &[&str]) -> TestClient {
        TestClient::start(self.dir(), rack, arguments)
    }

    /// The figures of a rack; `None` when its daemon does not answer.
    #[must_use]
    pub fn try_status(&self, rack: u16) -> Option<RackStatus> {
        let socket = self.rack_dir(rack).join("daemon.sock");
        status::rack_status(&socket.display().to_string()).ok()
    }

    /// The figures of a rack.
    #[must_use]
    pub fn status(&self, rack: u16) -> RackStatus {
        self.try_status(rack).expect("a daemon that answers")
    }

    /// Bytes in use in both of the first two racks.
    #[must_use]
    pub fn allocated(&self) -> [u64; 2] {
        [0, 1].map(|rack| self.status(rack).allocated_bytes)
    }

    /// Waits until the bytes in use in the first two racks are what is wanted.
    #[track_caller]
    pub fn wait_allocated(&self, what: &str, patience: Duration, wanted: [u64; 2]) {
        let mut last = [0; 2];
        let all = wait_or_last(patience, || {
            last = self.allocated();
            last == wanted
        });
        assert!(all, "{what}: {last:?} B in use instead of {wanted:?} B after {patience:?}");
    }

    /// Kills a daemon as `kill -9` does.
    pub fn kill_daemon(&mut self, rack: u16) {
        self.cluster.daemon(RackId(rack)).and_then(|d| d.kill()).expect("a daemon to kill");
    }

    /// Starts a killed daemon again and waits until it serves.
    pub fn restart_daemon(&mut self, rack: u16) {
        if let Err(error) = self.cluster.restart_daemon(RackId(rack)) {
            panic!("the daemon of rack {rack} does not start again: {error:#}");
        }
    }

    /// Waits until the first two racks can use each other's memory. A rack learns of one that has
    /// just started with its next heartbeat.
    pub fn wait_until_racks_meet(&self) {
        self.wait_until_racks_serve();
        self.wait_allocated("nothing is in use", PATIENCE, [0, 0]);
    }

    /// The same for racks that hold objects.
    pub fn wait_until_racks_serve(&self) {
        let racks = [self.open(0), self.open(1)];
        for (own, other) in [(&racks[0], &racks[1]), (&racks[1], &racks[0])] {
            let addr = other.alloc(16).expect("an empty rack");
            wait_for("the racks meet", PATIENCE, || own.is_local(addr).ok());
            other.free(addr).expect("an object in use");
        }
        racks.into_iter().for_each(Pool::close);
    }
}

fn wait_or_last(patience: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = std::time::Instant::now() + patience;
    loop {
        if condition() {
            return true;
        }
        if std::time::Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
