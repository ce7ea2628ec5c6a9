//! A small pool of real processes for one test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_cli::commands::{racks, status};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_model::FabricKind;
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;

use crate::client::TestClient;
use crate::wait::{TIMEOUT, wait_for, wait_until};

/// The page size of most tests: small, so that pages fill up and empty quickly.
pub const PAGE: u64 = 64 << 10;

/// A lease that no busy machine outlasts, in milliseconds.
const LONG_LEASE_MS: u64 = 20_000;

/// Lines of each log that are shown when a test fails.
const LAST_LINES: usize = 60;

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
        Self::with(|_| {})
    }

    /// Two racks whose leases do not run out because the machine is busy: for tests that wait for
    /// none to run out.
    #[must_use]
    pub fn start(memory: u64, page_size: u64) -> Self {
        Self::with(|options| {
            options.memory = memory;
            options.page_size = page_size;
            options.lease_ms = LONG_LEASE_MS;
        })
    }

    /// The same with racks that reach each other in this way.
    #[must_use]
    pub fn over(fabric: FabricKind) -> Self {
        Self::with(|options| options.fabric = fabric)
    }

    /// Two racks of 16 MiB with pages of 64 KiB that stay where they are, unless `change` says
    /// something else: most tests count on it that an object lies where it was allocated.
    #[must_use]
    pub fn with(change: impl FnOnce(&mut ClusterOptions)) -> Self {
        let mut options = ClusterOptions::ephemeral().expect("a clock that works");
        options.memory = 16 << 20;
        options.page_size = PAGE;
        // In memory, as all the rest: a registration that waits for a busy disk may take longer
        // than a lease. What the disk is for is tested with the store itself.
        options.store = options.dir.join("metadata.redb");
        options.daemon_arguments = vec![("--swap", "off".into())];
        change(&mut options);
        // Tests run beside each other, on as few cores as there are: data planes that went first,
        // as they do by themselves, would keep heartbeats and the metadata server waiting for
        // longer than a lease.
        if options.daemon_arguments.iter().all(|(name, _)| *name != "--nice") {
            options.daemon_arguments.push(("--nice", "0".into()));
        }
        match Cluster::start(options) {
            Ok(cluster) => Self { cluster },
            Err(error) => panic!("the pool does not start: {error:#}"),
        }
    }

    /// Two racks in which pages go where they are used as soon as they are, and are copied where
    /// both read them.
    #[must_use]
    pub fn restless(memory: u64, page_size: u64) -> Self {
        Self::with(|options| {
            options.memory = memory;
            options.page_size = page_size;
            options.daemon_arguments = vec![
                ("--hot", "1.5".into()),
                ("--read-hot", "0.9".into()),
                ("--rest-ms", "0".into()),
                ("--swap-pause-ms", "1".into()),
                ("--swap", "on".into()),
                ("--share", "on".into()),
            ];
        })
    }

    /// Whether pages have gone from rack to rack, or been copied.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        [0, 1]
            .map(|rack| self.status(rack))
            .iter()
            .any(|rack| rack.swaps.arrived > 0 || rack.sharing.made > 0)
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

    /// The hottest pages of a rack, as its daemon knows them.
    #[must_use]
    pub fn hottest(&self, rack: u16) -> Vec<PageHeat> {
        let socket = self.rack_dir(rack).join("daemon.sock");
        racks::top_pages(&socket.display().to_string(), 16).expect("a daemon that answers")
    }

    /// Bytes in use in both of the first two racks.
    #[must_use]
    pub fn allocated(&self) -> [u64; 2] {
        [0, 1].map(|rack| self.status(rack).allocated_bytes)
    }

    /// Waits until the bytes in use in the first two racks are what is wanted.
    #[track_caller]
    pub fn wait_allocated(&self, what: &str, timeout: Duration, wanted: [u64; 2]) {
        let mut last = [0; 2];
        let all = wait_or_last(timeout, || {
            last = self.allocated();
            last == wanted
        });
        assert!(all, "{what}: {last:?} B in use instead of {wanted:?} B after {timeout:?}");
    }

    /// Shows what all processes have said last.
    pub fn show_logs(&self) {
        for process in self.cluster.processes() {
            let log = process.log();
            let said = std::fs::read(log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
            eprintln!("---- the end of {} ----\n{}", log.display(), last.join("\n"));
        }
    }

    /// Kills a daemon as `kill -9` does.
    pub fn kill_daemon(&mut self, rack: u16) {
        self.cluster.daemon(RackId(rack)).and_then(|d| d.kill()).expect("a daemon to kill");
    }

    /// Stops a daemon for a while. All its threads have stopped when this returns: the one that
    /// gets the signal may have to wait for a core, and the others go on until then.
    pub fn stop_daemon(&mut self, rack: u16) {
        let daemon = self.cluster.daemon(RackId(rack)).expect("a daemon to stop");
        daemon.signal(Signal::SIGSTOP).expect("a running daemon");
        wait_until_stopped(daemon.id());
    }

    /// Lets a stopped daemon go on.
    pub fn resume_daemon(&mut self, rack: u16) {
        let daemon = self.cluster.daemon(RackId(rack)).expect("a stopped daemon");
        daemon.signal(Signal::SIGCONT).expect("a stopped daemon");
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
        self.wait_allocated("nothing is in use", TIMEOUT, [0, 0]);
    }

    /// The same for racks that hold objects.
    pub fn wait_until_racks_serve(&self) {
        let racks = [self.open(0), self.open(1)];
        for (own, other) in [(&racks[0], &racks[1]), (&racks[1], &racks[0])] {
            let addr = other.alloc(16).expect("an empty rack");
            wait_for("the racks meet", TIMEOUT, || own.is_local(addr).ok());
            other.free(addr).expect("an object in use");
        }
        racks.into_iter().for_each(Pool::close);
    }
}

/// What the processes of a test that fails have said goes with its pool: a failure that comes once
/// in a hundred runs has to tell why.
impl Drop for TestPool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

/// Waits until all threads of a process that was told to stop have done so.
pub fn wait_until_stopped(process: u32) {
    let tasks = format!("/proc/{process}/task");
    wait_until("all threads have stopped", TIMEOUT, || {
        let mut tasks = std::fs::read_dir(&tasks).expect("a running process");
        tasks.all(|task| task.is_ok_and(|task| is_stopped(&task.path())))
    });
}

/// Whether a thread is stopped; its state follows its name in parentheses.
fn is_stopped(task: &Path) -> bool {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}

/// Looks every 2 ms until the condition holds; whether it did in time.
pub(crate) fn wait_or_last(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = std::time::Instant::now() + timeout;
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
