//! Clients in eight slots are killed inside operations while others work; after each batch the
//! oracle checks the pool.

mod account;
mod batch;
mod finding;
mod oracle;
mod report;
mod store;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::program::step::SEGMENT;
use rackpool_client::GlobalAddr;
use rackpool_kv::{Table, TableOptions};

use super::executable::Executable;
use super::log::Log;
use super::plan::{Plan, operations};
use super::symbols::Symbols;
use super::tracer::Means;
use crate::census::{self, Census};
use crate::client::{TestClient, program};
use crate::pool::{PAGE, TestPool};
use crate::steps::fill;
use rackpool_testing::wait::TIMEOUT;

pub use batch::{Killed, Prepared};
pub use finding::Finding;
pub use report::Report;

/// Clients that are killed at the same time.
const SLOTS: usize = 8;
/// Kills in each slot between two checks of the whole pool.
const EACH: usize = 4;
/// Bytes of the objects in each slot. The sizes differ, so the size of a leftover object identifies
/// its slot. The larger objects are sent home at once when they are of another rack.
const SIZES: [u64; SLOTS] = [64, 256, 4096, 8192, 128, 1024, 2048, 16_384];
/// Bytes of runs of pages, a length that no other part of the test allocates.
const RUN: u64 = 5 * PAGE;
/// Bytes that an entry of a table takes.
const ENTRY: u64 = 512;

/// A kill misses its instruction when the operation takes another path than in the measured run,
/// and another instruction is tried. A campaign makes at most this many times the requested number
/// of rounds.
pub const MOST: usize = 4;

/// Parameters of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The least number of kills.
    pub rounds: usize,
    /// The least number of distinct instructions at which each operation is killed from each rack.
    /// Until it is reached the campaign goes on, up to [`MOST`] times the rounds. 0 where
    /// instructions can't be chosen.
    pub least: usize,
    /// Seed of the choices.
    pub seed: u64,
    /// How programs are killed.
    pub means: Means,
    /// Whether both daemons serve one rack: what is far otherwise is in the part of the other then.
    pub is_one_rack: bool,
}

/// A place where one client after the other is killed.
#[derive(Debug)]
struct Slot {
    /// The rack of its clients: 0, whose memory all use, or 1, which is full.
    rack: u16,
    bytes: u64,
    /// Words that point to an object of this size or are empty, in this rack and in the other rack.
    links: [GlobalAddr; 2],
    table: GlobalAddr,
}

/// The state that the slots' threads share.
#[derive(Debug)]
struct Ground {
    plan: Mutex<Plan>,
    /// The program of the clients, whose symbols are `symbols`.
    client: Executable,
    symbols: Symbols,
    slots: Vec<Slot>,
    means: Means,
    pool: TestPool,
    /// Has the files of objects.
    disk: tempfile::TempDir,
}

/// The pool, its workers and its expected contents.
#[derive(Debug)]
pub struct Scene {
    /// Objects that fill rack 1, and those that keep pages for heads in it.
    fillers: Vec<GlobalAddr>,
    /// What was in use before the first kill, without the tables.
    before: Census,
    workers: Vec<TestClient>,
    log: Log,
    /// The most time that any wait may take.
    pub timeout: Duration,
    slowest: Duration,
    /// Kills after which an object that `alloc` had returned stayed in use.
    in_hand: usize,
    /// Clients whose `alloc` was followed, instruction by instruction, to its end.
    followed: usize,
    ground: Ground,
}

impl Campaign {
    /// Kills clients for the requested rounds; fails at the first finding.
    #[must_use]
    pub fn run(self) -> Report {
        let began = Instant::now();
        let mut scene = Scene::new(self);
        let mut kills = 0;
        while kills < self.rounds
            || (kills < MOST * self.rounds && !scene.ground.has_been_everywhere(self.least))
        {
            let killed = scene.ground.batch();
            kills += killed.len();
            let findings = scene.look(&killed);
            let report = || killed.iter().map(|k| format!("{k:?}\n")).collect::<String>();
            let lines = || findings.iter().map(|f| format!("{f}\n")).collect::<String>();
            assert!(findings.is_empty(), "{}killed were:\n{}", lines(), report());
        }
        let (distinct, coverage) = {
            let plan = scene.ground.plan.lock().expect("a plan");
            (plan.distinct(), plan.coverage().collect())
        };
        let (slowest, in_hand, followed) = (scene.slowest, scene.in_hand, scene.followed);
        scene.drain();
        Report { kills, distinct, coverage, slowest, in_hand, followed, took: began.elapsed() }
    }
}

impl Ground {
    /// Returns true once each operation was killed at `least` distinct instructions.
    fn has_been_everywhere(&self, least: usize) -> bool {
        let plan = self.plan.lock().expect("a plan");
        plan.coverage().all(|operation| operation.hit >= least)
    }
}

impl Scene {
    /// Creates the pool, its objects and its workers.
    #[must_use]
    pub fn new(campaign: Campaign) -> Self {
        let disk = tempfile::tempdir().expect("a folder");
        let spill_dir = disk.path().display().to_string();
        let pool = TestPool::with(|options| {
            options.daemon_arguments.push(("--spill-dir", spill_dir));
            options.memory = 64 << 20;
            if campaign.is_one_rack {
                (options.racks, options.daemons, options.memory) = (1, 2, 128 << 20);
            }
            // No daemon ends here, so no operation waits for a lease to expire. With a long lease a
            // machine that stalls for some seconds does not make one rack take the other for dead.
            options.lease_ms = 60_000;
        });
        pool.wait_until_racks_meet();
        let racks = [0, 1].map(|rack| Arc::new(pool.open(rack)));
        let slots: Vec<Slot> = (0..SLOTS)
            .map(|slot| {
                let rack = slot * 2 / SLOTS;
                let links = [rack, 1 - rack].map(|home| {
                    let link = racks[home].alloc(16).expect("an empty rack");
                    racks[0].write(link, &[0; 16]).expect("a fresh object");
                    link
                });
                Slot {
                    rack: u16::from(rack > 0),
                    bytes: SIZES[slot],
                    links,
                    table: GlobalAddr::NULL,
                }
            })
            .collect();
        let kept = store::keep_pages(&pool, &racks[1]);
        let fillers = [fill(&racks[1]), kept].concat();
        drop(racks);
        assert_eq!(pool.status(1).free_frames, 0, "clients of rack 1 have to go to rack 0");
        let before = Census::of(&pool);
        let workers = (0..2)
            .map(|rack| {
                pool.client(rack, &["work", &(campaign.seed + u64::from(rack)).to_string()])
            })
            .collect();
        let keys =
            operations().flat_map(|(name, _, racks)| racks.iter().map(move |rack| (name, *rack)));
        let plan = Mutex::new(Plan::new(campaign.seed, keys));
        let client = Executable::open(&program("rackpool-test-client"));
        let symbols = Symbols::of(&client.path());
        let mut scene = Self {
            fillers,
            before,
            workers,
            log: Log::default(),
            timeout: TIMEOUT,
            slowest: Duration::ZERO,
            in_hand: 0,
            followed: 0,
            ground: Ground { plan, client, symbols, slots, means: campaign.means, pool, disk },
        };
        scene.make_tables();
        scene.make_stores();
        scene
    }

    /// Starts a client that stops at its mark in one of [`operations`]. Only the calling thread can
    /// trace it.
    #[must_use]
    pub fn prepare(&self, slot: usize, operation: &'static str) -> Prepared {
        self.ground.prepare(slot, operation)
    }

    /// The pool, for tests that damage it.
    #[must_use]
    pub const fn pool(&self) -> &TestPool {
        &self.ground.pool
    }

    /// The table of a slot.
    #[must_use]
    pub fn table(&self, slot: usize) -> GlobalAddr {
        self.ground.slots[slot].table
    }

    /// An object that is in use from beginning to end.
    #[must_use]
    pub fn filler(&self) -> GlobalAddr {
        self.fillers[0]
    }

    /// Creates a table for each slot. The tables live for one batch: destroying them frees
    /// everything that killed clients did in them.
    fn make_tables(&mut self) {
        let own = Arc::new(self.ground.pool.open(0));
        let options = TableOptions { max_depth: 0, segment_bytes: SEGMENT };
        for slot in &mut self.ground.slots {
            let table = Table::create(Arc::clone(&own), &options).expect("room for tables");
            slot.table = table.addr();
        }
    }

    /// Ends the workers, frees the objects of the scene, and checks that the pool is empty.
    fn drain(mut self) {
        for worker in &mut self.workers {
            assert!(worker.finish(), "a client that worked on has failed");
        }
        assert_eq!(self.destroy_tables(), []);
        self.destroy_stores();
        let pool = &self.ground.pool;
        let own = pool.open(0);
        for slot in &self.ground.slots {
            slot.links.iter().for_each(|link| own.free(*link).expect("an object in use"));
        }
        self.fillers.iter().for_each(|addr| own.free(*addr).expect("an object in use"));
        own.close();
        pool.wait_allocated("everything is freed", TIMEOUT, [0, 0]);
        census::wait_until_frames_are_free(pool);
    }
}
