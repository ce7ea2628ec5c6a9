//! The programs: started, killed, restarted, ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackpool_client::{GlobalAddr, RackId};
use rackpool_kv::{Table, TableOptions};
use rackpool_model::PageState;
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Kind, Usage, files};
use crate::census;
use crate::client::TestClient;
use crate::mount::{TestMount, why_not};
use crate::pool::TestPool;
use crate::program::traffic;
use crate::service::{Answer, Service};
use rackpool_testing::wait::{TIMEOUT, wait_until};

const RACKS: u16 = 2;
/// Offset of the table's address in a volume's superblock: docs/design/fs.md.
const SUPERBLOCK_TABLE: u64 = 16;
/// Clients of the library in each rack.
const CLIENTS: u16 = 1;
/// Memory of a rack in bytes; the loads need a fraction of it.
const MEMORY: u64 = 192 << 20;
const PAGE: u64 = 256 << 10;
/// The lease. A rack whose daemon was restarted lets no page become free for about this time.
const LEASE_MS: u64 = 4000;
/// The most time until everything that ended programs held is reclaimed.
const RETURN: Duration = Duration::from_secs(30);

/// Two racks, each with a service instance, a mount, and clients of the library.
#[derive(Debug)]
pub(super) struct Scene {
    mounts: Vec<TestMount>,
    services: Vec<Service>,
    clients: Vec<Client>,
    table: GlobalAddr,
    seed: u64,
    pool: TestPool,
}

/// A client of the library, and its current process.
#[derive(Debug)]
struct Client {
    rack: u16,
    program: TestClient,
}

/// A program that may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Client(usize),
    Service(usize),
    Mount(usize),
    Daemon(u16),
    Metadata,
}

impl Scene {
    pub(super) fn start(seed: u64) -> Self {
        let pool = TestPool::with(|options| {
            options.memory = MEMORY;
            options.page_size = PAGE;
            options.lease_ms = LEASE_MS;
        });
        pool.wait_until_racks_meet();
        let own = Arc::new(pool.open(0));
        let options = TableOptions { max_depth: 12, ..TableOptions::default() };
        let table = Table::create(Arc::clone(&own), &options).expect("an empty pool").addr();
        let services = (0..RACKS).map(|rack| Service::start(&pool, rack, &["--threads", "2"]));
        let services = services.collect();
        let mounts = match why_not() {
            Some(reason) => {
                eprintln!("without mounts: {reason}");
                Vec::new()
            }
            None => (0..RACKS).map(|rack| TestMount::start(&pool, rack)).collect(),
        };
        let mut scene = Self { mounts, services, clients: Vec::new(), table, seed, pool };
        for rack in (0..RACKS).flat_map(|rack| (0..CLIENTS).map(move |_| rack)) {
            let program = scene.start_client(rack);
            scene.clients.push(Client { rack, program });
        }
        for folder in scene.folders() {
            std::fs::create_dir_all(folder).expect("a mount");
        }
        scene
    }

    fn start_client(&mut self, rack: u16) -> TestClient {
        self.seed += 1;
        let (table, seed) = (format!("{:x}", self.table.raw()), self.seed.to_string());
        self.pool.client(rack, &["traffic", &table, &seed])
    }

    /// The sockets of the services.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        self.services.iter().map(|service| service.socket.clone()).collect()
    }

    /// The folders for the file loads: one for each mount, and one that all mounts use.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let numbered = self.mounts.iter().enumerate();
        let both = |(number, mount): (usize, &TestMount)| {
            [mount.path(format!("own-{number}")), mount.path("shared")]
        };
        numbered.flat_map(both).collect()
    }

    fn targets(&self, kind: Kind) -> Vec<Target> {
        match kind {
            Kind::Clients => (0..self.clients.len()).map(Target::Client).collect(),
            Kind::Services => (0..self.services.len()).map(Target::Service).collect(),
            Kind::Mounts => (0..self.mounts.len()).map(Target::Mount).collect(),
            Kind::Daemons => (0..RACKS).map(Target::Daemon).collect(),
            Kind::Metadata => vec![Target::Metadata],
        }
    }

    /// Kills one program of these kinds, several, or all, and starts them again. Returns the kinds
    /// of the killed programs.
    pub(super) fn strike(&mut self, kinds: &[Kind], random: &mut SmallRng) -> Vec<Kind> {
        let all = kinds
            .iter()
            .flat_map(|kind| self.targets(*kind).into_iter().map(move |target| (*kind, target)));
        let mut struck: Vec<(Kind, Target)> = all.collect();
        match random.random_range(0..4) {
            0 => {}
            1 => struck.retain(|_| random.random_bool(0.5)),
            _ if struck.is_empty() => {}
            _ => struck = vec![struck[random.random_range(0..struck.len())]],
        }
        for (_, target) in &struck {
            self.kill(*target);
        }
        // Servers first: the other programs can't start without them.
        for (_, target) in struck.iter().rev() {
            self.restart(*target);
        }
        struck.into_iter().map(|(kind, _)| kind).collect()
    }

    fn kill(&mut self, target: Target) {
        match target {
            Target::Client(index) => self.clients[index].program.kill(),
            Target::Service(index) => self.services[index].kill(),
            Target::Mount(index) => self.mounts[index].kill(),
            Target::Daemon(rack) => self.pool.kill_daemon(rack),
            Target::Metadata => {
                self.pool.cluster.metadata().kill().expect("a metadata server to kill");
            }
        }
    }

    fn restart(&mut self, target: Target) {
        match target {
            Target::Client(index) => {
                let rack = self.clients[index].rack;
                self.clients[index].program = self.start_client(rack);
            }
            Target::Service(index) => self.services[index].restart(),
            Target::Mount(index) => self.mounts[index].mount(),
            Target::Daemon(rack) => self.pool.restart_daemon(rack),
            Target::Metadata => {
                self.pool.cluster.restart_metadata().expect("a metadata server that starts");
            }
        }
    }

    /// Restarts programs that ended by themselves; returns how many did.
    pub(super) fn revive(&mut self) -> u64 {
        let mut ended = Vec::new();
        for index in 0..self.clients.len() {
            self.clients[index].program.listen();
            if self.clients[index].program.has_ended() {
                ended.push(Target::Client(index));
            }
        }
        for index in 0..self.services.len() {
            if self.services[index].has_ended() {
                ended.push(Target::Service(index));
            }
        }
        for index in 0..self.mounts.len() {
            if self.mounts[index].is_dead() {
                self.kill(Target::Mount(index));
                ended.push(Target::Mount(index));
            }
        }
        ended.iter().for_each(|target| self.restart(*target));
        ended.len() as u64
    }

    /// Ends the clients, and deletes all stored data.
    pub(super) fn clear(&mut self) {
        for client in &mut self.clients {
            assert!(client.program.finish(), "a client ended with an error");
        }
        let own = Arc::new(self.pool.open(0));
        traffic::clear(&own, (0..RACKS).map(RackId)).expect("roots that can be deleted");
        // Racks that were just restarted may refuse requests for a while.
        wait_until("the table of the clients goes", TIMEOUT, || {
            let table = Table::open(Arc::clone(&own), self.table);
            table.and_then(Table::destroy).is_ok()
        });
        wait_until("the keys go", TIMEOUT, || {
            self.services[0].wire().ask(&["FLUSHALL"]) == Answer::ok()
        });
        for folder in self.folders() {
            wait_until("the files go", TIMEOUT, || files::remove(&folder).is_ok());
        }
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.pool.allocated().iter().sum()
    }

    /// The number of pages that are unused and not yet free: a rack whose daemon was killed may
    /// have leased them.
    pub(super) fn leaving_pages(&self) -> usize {
        let pages = census::pages(&self.pool);
        pages.iter().filter(|(_, state)| *state == PageState::Leaving).count()
    }

    /// The current usage.
    pub(super) fn usage(&self) -> Usage {
        Usage::of(&self.pool, self.entries())
    }

    /// Entries of the tables of the services and of the volume.
    fn entries(&self) -> BTreeMap<String, u64> {
        let own = Arc::new(self.pool.open(0));
        let root = |name| own.root(name).expect("a pool that answers");
        let volume = root("fs:main").map(|superblock| {
            let mut table = [0; 8];
            let at = GlobalAddr::from_raw(superblock.raw() + SUPERBLOCK_TABLE);
            own.read(at, &mut table).expect("a superblock");
            GlobalAddr::from_raw(u64::from_le_bytes(table))
        });
        let tables = [("keys", root("kv")), ("maps", root("kv/nodes")), ("files", volume)];
        let mut all = BTreeMap::new();
        for (name, table) in tables.into_iter().filter_map(|(name, at)| Some((name, at?))) {
            let mut handle = Table::open(Arc::clone(&own), table).expect("a table").handle();
            let segments = handle.segments().expect("a whole table");
            for (what, count) in [
                ("entries", handle.count().expect("a whole table")),
                ("segments", segments.current),
                ("spare segments", segments.spare),
                ("marked segments", segments.marked),
                ("taken segments", segments.taken),
            ] {
                all.insert(format!("{name}: {what}"), count);
            }
        }
        all
    }

    /// Ends all programs except the servers of the racks; returns the usage after everything that
    /// they held was reclaimed.
    pub(super) fn end(mut self) -> Usage {
        let entries = self.entries();
        for mount in &mut self.mounts {
            assert!(mount.end(), "a mount ended with an error");
        }
        for service in &mut self.services {
            service.stop();
        }
        let files = || (0..RACKS).map(|rack| census::client_files(&self.pool, rack)).sum::<usize>();
        wait_until("all clients are gone", RETURN, || files() == 0);
        wait_until("nothing is on its way", RETURN, || census::exchanges_have_ended(&self.pool));
        Usage::of(&self.pool, entries)
    }
}
