//! Allocation and free through the thread's cache, compared with mimalloc in the same process.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;

use anyhow::Context;
use mimalloc::MiMalloc;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::cpu::pin_self;
use crate::measure::{Pair, in_turn, time_each};
use crate::steps;
use crate::table::Table;

/// Bytes of each object.
const BYTES: usize = 64;
/// Allocations in a round: few enough that a round mostly ends before another program gets the
/// core.
const PAIRS: usize = 40_000;
/// Objects that are allocated before they are freed, in another order.
const BATCH: usize = 32;
/// Orders of the frees: more than a branch predictor can learn.
const ORDERS: usize = 256;
/// How often a round goes through all orders.
const ROUNDS: usize = 5;

/// An allocator of objects of one size.
trait Objects {
    type Object: Copy;
    fn alloc(&self) -> Self::Object;
    fn free(&self, object: Self::Object);
}

impl Objects for Pool {
    type Object = GlobalAddr;

    #[inline]
    fn alloc(&self) -> GlobalAddr {
        Self::alloc(self, black_box(BYTES as u64)).expect("a pool with room")
    }

    #[inline]
    fn free(&self, object: GlobalAddr) {
        Self::free(self, object).expect("an object in use");
    }
}

/// mimalloc, beside the global allocator of this program.
pub(crate) struct Peer;

impl Peer {
    const LAYOUT: Layout = Layout::new::<[u64; BYTES / 8]>();

    #[inline]
    pub(crate) fn alloc() -> *mut u8 {
        // SAFETY: the layout is not of size 0.
        unsafe { MiMalloc.alloc(black_box(Self::LAYOUT)) }
    }

    #[inline]
    pub(crate) fn free(object: *mut u8) {
        // SAFETY: the callers in this crate free what `alloc` returned, once.
        unsafe { MiMalloc.dealloc(object, Self::LAYOUT) };
    }
}

impl Objects for Peer {
    type Object = *mut u8;

    #[inline]
    fn alloc(&self) -> *mut u8 {
        Self::alloc()
    }

    #[inline]
    fn free(&self, object: *mut u8) {
        Self::free(object);
    }
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    options.memory = 64 << 20;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    pin_self(0)?;
    table.section("alloc and free of 64 B through Pool against mimalloc in the same process");
    let detail = |pair: &Pair| format!("{:.1} ns against {:.1} ns", pair.ours, pair.peer);
    let pair = in_turn(|| pairwise(&pool), || pairwise(&Peer));
    table.at_most("each freed before the next", pair.ratio, 2.0, "x", &detail(&pair));
    let orders = orders();
    let batch = in_turn(|| batches(&pool, &orders), || batches(&Peer, &orders));
    table.at_most("32, then freed in any order", batch.ratio, 2.0, "x", &detail(&batch));
    let steps = steps::count(&dir).context("counting instructions")?;
    let detail = |peer: f64| format!("stepped through one by one; mimalloc {peer:.0}");
    table.figure("alloc, from the cache: instructions", steps.alloc, "", &detail(steps.peer_alloc));
    table.figure("free, into the cache: instructions", steps.free, "", &detail(steps.peer_free));
    let detail = "of the own rack, stepped through one by one";
    table.figure("compare-and-swap: instructions", steps.swap, "", detail);
    let detail = "reserve, publish and finish; stepped through one by one";
    table.figure("a publication: instructions", steps.publication, "", detail);
    drop(pool);
    cluster.stop()
}

/// Nanoseconds of one allocation and its free.
fn pairwise(objects: &impl Objects) -> f64 {
    time_each(PAIRS, || {
        for _ in 0..PAIRS {
            objects.free(black_box(objects.alloc()));
        }
    })
}

fn orders() -> Vec<[usize; BATCH]> {
    let mut rng = SmallRng::seed_from_u64(6);
    let shuffled = |_| {
        let mut order = std::array::from_fn(|index| index);
        order.shuffle(&mut rng);
        order
    };
    (0..ORDERS).map(shuffled).collect()
}

/// Nanoseconds of one allocation and its free, in batches.
fn batches<O: Objects>(objects: &O, orders: &[[usize; BATCH]]) -> f64 {
    time_each(ROUNDS * orders.len() * BATCH, || {
        for order in orders.iter().cycle().take(ROUNDS * orders.len()) {
            let held: [O::Object; BATCH] = std::array::from_fn(|_| black_box(objects.alloc()));
            for index in order {
                objects.free(held[*index]);
            }
        }
    })
}
