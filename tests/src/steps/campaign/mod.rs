//! Eight clients at a time that are killed inside operations, others that work on meanwhile, and
//! what must hold after each batch.

mod account;
mod batch;
mod finding;
mod oracle;
mod report;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::program::step::SEGMENT;
use rackpool_client::GlobalAddr;
use rackpool_kv::{Options, Table};

use super::log::Log;
use super::plan::{OPERATIONS, Plan};
use super::symbols::Symbols;
use super::tracer::Means;
use crate::census::{self, Census};
use crate::client::{TestClient, program};
use crate::pool::{PAGE, TestPool};
use crate::steps::fill;
use crate::wait::TIMEOUT;

pub use batch::{Killed, Prepared};
pub use finding::Finding;
pub use report::Report;

/// Clients that are killed at the same time.
const SLOTS: usize = 8;
/// Rounds of each slot between two looks at everything.
const EACH: usize = 4;
/// Objects of the slots' clients: each has a size of its own, so that what is left tells whose it
/// was. The larger ones go home at once when they are of another rack.
const SIZES: [u64; SLOTS] = [64, 256, 4096, 8192, 128, 1024, 2048, 16_384];
/// Runs of pages, of a length that nobody else allocates.
const RUN: u64 = 5 * PAGE;
/// What an entry of a table takes.
const ENTRY: u64 = 512;

/// A kill misses its instruction when the operation takes another way than when it was measured:
/// then another one is tried, so many times as often at most.
pub const MOST: usize = 4;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// Kills, at least.
    pub rounds: usize,
    /// Distinct instructions at which each operation is killed, at least, from each rack: until it
    /// has been, the campaign goes on, for [`MOST`] times the rounds. 0 where none is chosen.
    pub least: usize,
    /// Chooses them.
    pub seed: u64,
    /// How they are done.
    pub means: Means,
}

/// Where one client after the other is killed.
#[derive(Debug)]
struct Slot {
    /// From where its clients work: rack 0, whose memory all use, or rack 1, which is full.
    rack: u16,
    bytes: u64,
    /// Words that point to an object of this size, or to none: in the own and in the other rack.
    links: [GlobalAddr; 2],
    table: GlobalAddr,
}

/// Where clients are killed.
#[derive(Debug)]
struct Ground {
    plan: Mutex<Plan>,
    symbols: Symbols,
    slots: Vec<Slot>,
    means: Means,
    pool: TestPool,
}

/// The pool with everything in it.
#[derive(Debug)]
pub struct Scene {
    /// Objects that fill rack 1.
    fillers: Vec<GlobalAddr>,
    /// What was in use before anybody was killed, without the tables.
    before: Census,
    workers: Vec<TestClient>,
    log: Log,
    /// How long anything may take.
    pub timeout: Duration,
    slowest: Duration,
    /// Kills that left an object which `alloc` had returned.
    in_hand: usize,
    /// Clients whose `alloc` was looked at from instant to instant, to its end.
    followed: usize,
    ground: Ground,
}

impl Campaign {
    /// Kills clients until there have been so many rounds; fails at the first thing that is wrong.
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
            let story = || killed.iter().map(|k| format!("{k:?}\n")).collect::<String>();
            let lines = || findings.iter().map(|f| format!("{f}\n")).collect::<String>();
            assert!(findings.is_empty(), "{}killed were:\n{}", lines(), story());
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
    /// Whether each operation was killed at so many instructions.
    fn has_been_everywhere(&self, least: usize) -> bool {
        let plan = self.plan.lock().expect("a plan");
        plan.coverage().all(|operation| operation.hit >= least)
    }
}

impl Scene {
    /// Everything that a campaign needs.
    #[must_use]
    pub fn new(campaign: Campaign) -> Self {
        let pool = TestPool::with(|options| {
            options.memory = 64 << 20;
            // No daemon ends here, so nothing waits for a lease; and a host that stands still for
            // some seconds makes no rack take the other one for dead.
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
        let fillers = fill(&racks[1]);
        drop(racks);
        assert_eq!(pool.status(1).free_frames, 0, "clients of rack 1 have to go to rack 0");
        let before = Census::of(&pool);
        let workers = (0..2)
            .map(|rack| {
                pool.client(rack, &["work", &(campaign.seed + u64::from(rack)).to_string()])
            })
            .collect();
        let keys = [0, 1].into_iter().flat_map(|rack| OPERATIONS.map(|(name, _)| (name, rack)));
        let plan = Mutex::new(Plan::new(campaign.seed, keys));
        let symbols = Symbols::of(&program("rackpool-test-client"));
        let mut scene = Self {
            fillers,
            before,
            workers,
            log: Log::default(),
            timeout: TIMEOUT,
            slowest: Duration::ZERO,
            in_hand: 0,
            followed: 0,
            ground: Ground { plan, symbols, slots, means: campaign.means, pool },
        };
        scene.make_tables();
        scene
    }

    /// Starts a client that comes to its mark in an operation: one of
    /// [`OPERATIONS`]. It belongs to this thread.
    #[must_use]
    pub fn prepare(&self, slot: usize, operation: &'static str) -> Prepared {
        self.ground.prepare(slot, operation)
    }

    /// The pool, for who wants to damage it.
    #[must_use]
    pub const fn pool(&self) -> &TestPool {
        &self.ground.pool
    }

    /// The table of a slot.
    #[must_use]
    pub fn table(&self, slot: usize) -> GlobalAddr {
        self.ground.slots[slot].table
    }

    /// An object that is there from beginning to end.
    #[must_use]
    pub fn filler(&self) -> GlobalAddr {
        self.fillers[0]
    }

    /// Makes a table for each slot. They live for a batch: when they are gone, nothing is left of
    /// what killed clients did in them.
    fn make_tables(&mut self) {
        let own = Arc::new(self.ground.pool.open(0));
        let options = Options { max_depth: 0, segment_bytes: SEGMENT };
        for slot in &mut self.ground.slots {
            let table = Table::create(Arc::clone(&own), &options).expect("room for tables");
            slot.table = table.addr();
        }
    }

    /// Ends those who worked on, frees what was there from the beginning, and looks whether
    /// everything is empty.
    fn drain(mut self) {
        for worker in &mut self.workers {
            assert!(worker.finish(), "a client that worked on has failed");
        }
        assert_eq!(self.destroy_tables(), []);
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
