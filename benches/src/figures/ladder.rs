//! Figure 18: what each technique adds, one after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_report::figures::{Figure, Scale, Shape};
use rackpool_testing::StopAtEnd;
use rackpool_ycsb::Zipfian;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::{ITEM, LATENCY, Sizes, panel, series, statement};
use crate::measure::percentile;
use crate::swap::{RACKS, SWAP_OFF};

/// Bytes that a writer locks, and the writes under a lock.
const BLOCK: u64 = 1024;
const WRITES: u64 = 16;

/// What is switched on, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rung {
    Base,
    TwoRings,
    Swap,
    LineCache,
    OnlyCxl,
}

const RUNGS: [(Rung, &str); 5] = [
    (Rung::Base, "base"),
    (Rung::TwoRings, "+RB"),
    (Rung::Swap, "+Swap"),
    (Rung::LineCache, "+WB"),
    (Rung::OnlyCxl, "only CXL"),
];

/// What was measured of a rung: reads and writes per second, and percentiles of a read in us.
struct Measured {
    reads: f64,
    writes: f64,
    p50: f64,
    p99: f64,
}

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut all = Vec::new();
    for (rung, _) in RUNGS {
        all.push(measure_rung(sizes, rung)?);
    }
    let labels: Vec<String> = RUNGS.iter().map(|(_, name)| (*name).to_owned()).collect();
    let mut rates = panel("throughput", "Throughput", ("techniques", "million/s"), labels.clone());
    rates.series = vec![
        series("reads", all.iter().map(|one| one.reads / 1e6)),
        series("writes", all.iter().map(|one| one.writes / 1e6)),
    ];
    let mut times = panel("latency", "Time of a read", ("techniques", "us"), labels);
    times.series = vec![
        series("p50", all.iter().map(|one| one.p50)),
        series("p99", all.iter().map(|one| one.p99)),
    ];
    (rates.shape, times.shape) = (Shape::Bars, Shape::Bars);
    (rates.scale, times.scale) = (Scale::Log, Scale::Log);
    let [base, rings, swap, cache, only] = &all[..] else { unreachable!("a value for each rung") };
    Ok(Figure {
        number: 18,
        title: "What each technique adds".into(),
        setting: format!(
            "{} clients in each of two racks; each rack has favourites of its own (Zipfian). They \
             read items of 64 B, then write {WRITES} of them under a lock of 1 KiB.",
            sizes.rack_clients
        ),
        statements: vec![
            statement(
                "two rings lower the latency, the tail most",
                format!("p99 of a read {:.1} us after {:.1} us", rings.p99, base.p99),
                rings.p99 < base.p99,
                "The waits of a request for another one's end are hidden by waits for a core.",
            ),
            statement(
                "swaps lower the latency and raise the throughput, of reads most",
                format!("reads {:.1} times, writes {:.1} times", swap.reads / rings.reads,
                    swap.writes / rings.writes),
                swap.reads > rings.reads && swap.reads / rings.reads > swap.writes / rings.writes,
                "A write under a lock of another rack takes more messages than a read: it gains \
                 more when the page is near.",
            ),
            statement(
                "the write buffer raises the throughput of writes",
                format!("{:.2} times", cache.writes / swap.writes),
                cache.writes > swap.writes,
                "Most locks are of the own rack by then: only the others gain.",
            ),
            statement(
                "a gap to CXL only remains, in the tail and the throughput of reads",
                format!("p99 {:.1} against {:.2} us", cache.p99, only.p99),
                cache.p99 > only.p99,
                "All pages that are used have moved.",
            ),
        ],
        panels: vec![rates, times],
        notes: vec![
            "rackpool has no single ring: in the base a rack's accesses to other racks wait for each \
             other, as behind the front of one ring, while accesses to the own rack need no ring."
                .into(),
            "+RRPC is no rung of its own: rackpool has no other transport that could be measured \
             without it. Figure 22 compares it."
                .into(),
        ],
    })
}

/// The racks of a rung.
struct Racks {
    pools: Vec<Pool>,
    pages: Vec<GlobalAddr>,
    rung: Rung,
    /// The single ring of each rack.
    rings: Vec<Mutex<()>>,
}

fn measure_rung(sizes: &Sizes, rung: Rung) -> anyhow::Result<Measured> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = (sizes.bytes * 2).max(256 << 20);
    options.latency_us = LATENCY.as_secs_f64() * 1e6;
    if rung == Rung::Base || rung == Rung::TwoRings {
        options.daemon_arguments.push((SWAP_OFF.0, SWAP_OFF.1.into()));
    }
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let racks = Racks::new(&dir, sizes.bytes, rung)?;
    racks.run(sizes, sizes.settle, false)?;
    let read = racks.run(sizes, sizes.time * 2, false)?;
    racks.run(sizes, sizes.settle / 2, true)?;
    let write = racks.run(sizes, sizes.time * 2, true)?;
    drop(racks);
    cluster.stop()?;
    let time = (sizes.time * 2).as_secs_f64();
    let rate = |times: &[f64]| times.len() as f64 / time;
    Ok(Measured {
        reads: rate(&read),
        writes: rate(&write) * WRITES as f64,
        p50: percentile(&read, 500),
        p99: percentile(&read, 990),
    })
}

impl Racks {
    fn new(dir: &std::path::Path, bytes: u64, rung: Rung) -> anyhow::Result<Self> {
        let open = |rack: RackId| Ok(Pool::open(ClientOptions::new(dir, rack))?);
        let pools: Vec<Pool> = RACKS.into_iter().map(open).collect::<anyhow::Result<_>>()?;
        let page = pools[0].page_bytes();
        let mut pages = Vec::new();
        for pool in pools.iter().cycle().take(usize::try_from(bytes / page)?) {
            let addr = pool.alloc(page)?;
            pool.write(addr, &vec![0; usize::try_from(page)?])?;
            pages.push(addr);
        }
        let rings = RACKS.map(|_| Mutex::new(())).into();
        Ok(Self { pools, pages, rung, rings })
    }

    /// The pages by rank for a rack's clients.
    fn favourites(&self, rack: usize) -> Vec<GlobalAddr> {
        let own = |index: &usize| self.rung != Rung::OnlyCxl || index % RACKS.len() == rack;
        let indices = (0..self.pages.len()).filter(own);
        let mut pages: Vec<GlobalAddr> = indices.map(|index| self.pages[index]).collect();
        pages.shuffle(&mut SmallRng::seed_from_u64(rack as u64));
        pages
    }

    /// Runs the clients for a time; returns the sorted times of all operations in microseconds.
    fn run(
        &self,
        sizes: &Sizes,
        time: std::time::Duration,
        is_write: bool,
    ) -> anyhow::Result<Vec<f64>> {
        let stop = AtomicBool::new(false);
        let mut times = std::thread::scope(|scope| -> anyhow::Result<Vec<f64>> {
            let stopper = StopAtEnd(&stop);
            let clients: Vec<_> = (0..RACKS.len() * sizes.rack_clients)
                .map(|client| {
                    let stop = &stop;
                    scope.spawn(move || self.client(client, is_write, stop))
                })
                .collect();
            std::thread::sleep(time);
            drop(stopper);
            let mut all = Vec::new();
            for client in clients {
                all.extend(client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
            }
            Ok(all)
        })?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    }

    fn client(&self, client: usize, is_write: bool, stop: &AtomicBool) -> anyhow::Result<Vec<f64>> {
        let rack = client % RACKS.len();
        let pages = self.favourites(rack);
        let in_a_page = self.pools[rack].page_bytes() / BLOCK;
        let blocks = Zipfian::new(pages.len() as u64 * in_a_page);
        let mut random = SmallRng::seed_from_u64(client as u64);
        let mut times = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let rank = blocks.next(&mut random);
            let page = pages[usize::try_from(rank / in_a_page)?];
            let block = page.add(rank % in_a_page * BLOCK)?;
            let item = random.random_range(0..BLOCK / ITEM as u64) * ITEM as u64;
            let began = Instant::now();
            self.operate(rack, block, item, is_write)?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }

    fn operate(
        &self,
        rack: usize,
        block: GlobalAddr,
        item: u64,
        is_write: bool,
    ) -> anyhow::Result<()> {
        let pool = &self.pools[rack];
        let ring = if self.rung == Rung::Base && !pool.is_local(block)? {
            Some(self.rings[rack].lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            None
        };
        let mut bytes = [1; ITEM];
        if is_write {
            let guard = pool.write_lock(block, usize::try_from(BLOCK)?)?;
            for write in 0..WRITES {
                let at = block.add((item + write * ITEM as u64) % BLOCK)?;
                if self.rung == Rung::LineCache || self.rung == Rung::OnlyCxl {
                    guard.write(at, &bytes)?;
                } else {
                    pool.write(at, &bytes)?;
                }
            }
            guard.unlock()?;
        } else {
            pool.read(block.add(item)?, &mut bytes)?;
        }
        drop(ring);
        Ok(())
    }
}
