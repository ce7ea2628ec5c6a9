//! A small pool of real processes for one test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use rackpool_admin::{rack_status, top_pages};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::FabricKind;
use rackpool_wire::control::RackStatus;
use rackpool_wire::history::PageHeat;

use crate::client::TestClient;
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_for, wait_until};

/// The page size of most tests: small, so that pages fill up and empty quickly.
pub const PAGE: u64 = 64 << 10;

/// A lease in milliseconds. It exceeds every pause of a busy machine, so that none expires.
const LONG_LEASE_MS: u64 = 20_000;

/// Lines of each log that are printed when a test fails.
const LAST_LINES: usize = 60;

/// A metadata server and rack daemons. Dropping it ends them and removes their files.
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

    /// Two racks with leases that do not expire because the machine is busy, for tests in which no
    /// lease may expire.
    #[must_use]
    pub fn start(memory: u64, page_size: u64) -> Self {
        Self::with(|options| {
            options.memory = memory;
            options.page_size = page_size;
            options.lease_ms = LONG_LEASE_MS;
        })
    }

    /// Two small racks that reach each other over this fabric.
    #[must_use]
    pub fn over(fabric: FabricKind) -> Self {
        Self::with(|options| options.fabric = fabric)
    }

    /// Two racks of 16 MiB with pages of 64 KiB, without swaps, unless `change` says otherwise.
    /// Most tests rely on an object staying in the rack where it was allocated.
    #[must_use]
    pub fn with(change: impl FnOnce(&mut ClusterOptions)) -> Self {
        let mut options = ClusterOptions::ephemeral().expect("a clock that works");
        options.memory = 16 << 20;
        options.page_size = PAGE;
        // The store is in memory, like the rest: a registration that waits for a busy disk may take
        // longer than a lease. The tests of the store itself use a disk.
        options.store = options.dir.join("metadata.redb");
        options.daemon_arguments = vec![("--swap", "off".into())];
        change(&mut options);
        // Tests run in parallel on few cores. With their default, raised priority the data planes
        // would delay heartbeats and the metadata server for longer than a lease.
        if options.daemon_arguments.iter().all(|(name, _)| *name != "--nice") {
            options.daemon_arguments.push(("--nice", "0".into()));
        }
        match Cluster::start(options) {
            Ok(cluster) => Self { cluster },
            Err(error) => panic!("the pool does not start: {error:#}"),
        }
    }

    /// Two racks in which a page moves to the rack that uses it as soon as it is used, and is
    /// copied where both racks read it.
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

    /// Returns true once a page has moved to the other rack or has been copied there.
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

    /// Options of a client whose requests go through the daemon with this number.
    #[must_use]
    pub fn options(&self, rack: u16) -> ClientOptions {
        ClientOptions::new(self.dir(), RackId(rack)).exact_daemon(true)
    }

    /// Opens a client of the rack in this process.
    #[must_use]
    pub fn open(&self, rack: u16) -> Pool {
        Pool::open(self.options(rack)).expect("a daemon that serves")
    }

    /// Starts a client of the rack in a process of its own.
    #[must_use]
    pub fn client(&self, rack: u16, arguments: &[&str]) -> TestClient {
        TestClient::start(self.dir(), rack, arguments)
    }

    /// The status of a rack; `None` when its daemon does not answer.
    #[must_use]
    pub fn try_status(&self, rack: u16) -> Option<RackStatus> {
        let socket = self.rack_dir(rack).join("daemon.sock");
        rack_status(&socket.display().to_string()).ok()
    }

    /// The status of a rack.
    #[must_use]
    pub fn status(&self, rack: u16) -> RackStatus {
        self.try_status(rack).expect("a daemon that answers")
    }

    /// The hottest pages of a rack, as its daemon reports them.
    #[must_use]
    pub fn hottest(&self, rack: u16) -> Vec<PageHeat> {
        let socket = self.rack_dir(rack).join("daemon.sock");
        top_pages(&socket.display().to_string(), 16).expect("a daemon that answers")
    }

    /// Bytes in use in each of the first two racks.
    #[must_use]
    pub fn allocated(&self) -> [u64; 2] {
        [0, 1].map(|rack| self.status(rack).allocated_bytes)
    }

    /// Waits until the bytes in use in the first two racks are `wanted`.
    #[track_caller]
    pub fn wait_allocated(&self, what: &str, timeout: Duration, wanted: [u64; 2]) {
        let mut last = [0; 2];
        let all = try_wait_until(timeout, || {
            last = self.allocated();
            last == wanted
        });
        assert!(all, "{what}: {last:?} B in use instead of {wanted:?} B after {timeout:?}");
    }

    /// Prints the last log lines of all processes.
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

    /// Stops a daemon with `SIGSTOP` and returns once all its threads have stopped. The thread that
    /// handles the signal may have to wait for a core, and the others run until then.
    pub fn stop_daemon(&mut self, rack: u16) {
        let daemon = self.cluster.daemon(RackId(rack)).expect("a daemon to stop");
        daemon.signal(Signal::SIGSTOP).expect("a running daemon");
        wait_until_stopped(daemon.id());
    }

    /// Resumes a stopped daemon.
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

    /// Waits until the first two racks can use each other's memory. A rack learns of a newly
    /// started rack with its next heartbeat. The racks must be empty.
    pub fn wait_until_racks_meet(&self) {
        self.wait_until_racks_serve();
        self.wait_allocated("nothing is in use", TIMEOUT, [0, 0]);
    }

    /// As [`Self::wait_until_racks_meet`], for racks that hold objects.
    pub fn wait_until_racks_serve(&self) {
        let daemons = 0..self.cluster.options().all_daemons();
        let racks: Vec<_> = daemons.map(|rack| self.open(rack)).collect();
        for other in &racks {
            let addr = other.alloc(16).expect("an empty rack");
            for own in racks.iter().filter(|own| own.rack() != other.rack()) {
                wait_for("the racks meet", TIMEOUT, || own.is_local(addr).ok());
            }
            other.free(addr).expect("an object in use");
        }
        racks.into_iter().for_each(Pool::close);
    }
}

/// A failed test prints the logs of its processes: a failure that occurs once in a hundred runs
/// must be explicable.
impl Drop for TestPool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
    }
}

/// Waits until all threads of a process that received `SIGSTOP` have stopped.
pub fn wait_until_stopped(process: u32) {
    let tasks = format!("/proc/{process}/task");
    wait_until("all threads have stopped", TIMEOUT, || {
        let mut tasks = std::fs::read_dir(&tasks).expect("a running process");
        tasks.all(|task| task.is_ok_and(|task| is_stopped(&task.path())))
    });
}

/// Returns true if a thread is stopped. In `stat` the state follows the name in parentheses.
fn is_stopped(task: &Path) -> bool {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}
