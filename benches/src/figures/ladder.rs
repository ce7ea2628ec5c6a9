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
use crate::measure::{median, percentile};
use crate::swap::{RACKS, SWAP_OFF};

/// Bytes that a writer locks, and the writes under a lock.
const BLOCK: u64 = 1024;
const WRITES: u64 = 16;

/// What is switched on, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Base,
    TwoRings,
    Swap,
    LineCache,
    OnlyCxl,
}

const STEPS: [(Step, &str); 5] = [
    (Step::Base, "base"),
    (Step::TwoRings, "+RB"),
    (Step::Swap, "+Swap"),
    (Step::LineCache, "+WB"),
    (Step::OnlyCxl, "only CXL"),
];

/// What was measured of a step: reads and writes per second, and percentiles of a read in us.
struct Measured {
    reads: f64,
    writes: f64,
    p50: f64,
    p99: f64,
}

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let mut all = Vec::new();
    for (step, _) in STEPS {
        all.push(measure_step(sizes, step)?);
    }
    let labels: Vec<String> = STEPS.iter().map(|(_, name)| (*name).to_owned()).collect();
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
    let [base, rings, swap, cache, only] = &all[..] else { unreachable!("a value for each step") };
    Ok(Figure {
        id: "18".into(),
        title: "What each technique adds".into(),
        setting: format!(
            "{} clients in each of two racks; each rack has hot pages of its own (Zipfian). They \
             read items of 64 B, then write {WRITES} of them under a lock of 1 KiB.",
            sizes.rack_clients
        ),
        statements: vec![
            statement(
                "two rings lower the latency, the tail most",
                format!("p50 of a read {:.2} us after {:.2}, p99 {:.1} us after {:.1}",
                    rings.p50, base.p50, rings.p99, base.p99),
                rings.p99 < base.p99 && rings.p99 / base.p99 <= rings.p50 / base.p50,
                "The wait of a request for another one's end is short beside the waits for a core.",
            ),
            statement(
                "swaps lower the latency and raise the throughput, of reads most",
                format!("reads {:.1} times, writes {:.1} times; p99 {:.1} us after {:.1}",
                    swap.reads / rings.reads, swap.writes / rings.writes, swap.p99, rings.p99),
                swap.p99 < rings.p99
                    && swap.writes > rings.writes
                    && swap.reads / rings.reads > swap.writes / rings.writes,
                "Writers of a rack wait for each other's locks, wherever the page is.",
            ),
            statement(
                "the write buffer raises the throughput of writes",
                format!("{:.2} times", cache.writes / swap.writes),
                cache.writes > swap.writes * 1.05,
                "Most locks are of the own rack by then: only the others gain.",
            ),
            statement(
                "a gap to CXL only remains, in the tail and the throughput of reads",
                format!("p99 {:.2} against {:.2} us, {:.1} against {:.1} million reads/s",
                    cache.p99, only.p99, cache.reads / 1e6, only.reads / 1e6),
                cache.p99 > only.p99 && cache.reads < only.reads,
                "All pages that are used have moved.",
            ),
        ],
        panels: vec![rates, times],
        notes: vec![
            "rackpool has no single ring: in the base a rack's accesses to other racks wait for each \
             other, as behind the front of one ring (all writes under a lock as one), while accesses \
             to the own rack need no ring."
                .into(),
            "+RB: two rings. +Swap: hot pages move. +WB: writes under a lock are gathered."
                .into(),
            "+RRPC is no step of its own: rackpool has no other transport that could be measured \
             without it. Figure 22 compares it."
                .into(),
        ],
    })
}

/// The racks of a step.
struct Racks {
    pools: Vec<Pool>,
    pages: Vec<GlobalAddr>,
    step: Step,
    /// The single ring of each rack.
    rings: Vec<Mutex<()>>,
}

fn measure_step(sizes: &Sizes, step: Step) -> anyhow::Result<Measured> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = (sizes.bytes * 2).max(256 << 20);
    options.latency_us = LATENCY.as_secs_f64() * 1e6;
    if step == Step::Base || step == Step::TwoRings {
        options.daemon_arguments.push((SWAP_OFF.0, SWAP_OFF.1.into()));
    }
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let racks = Racks::new(&dir, sizes.bytes, step)?;
    racks.run(sizes, sizes.settle, false)?;
    let rounds = |is_write| -> anyhow::Result<Vec<Vec<f64>>> {
        (0..sizes.rounds).map(|_| racks.run(sizes, sizes.time, is_write)).collect()
    };
    let reads = rounds(false)?;
    racks.run(sizes, sizes.settle / 2, true)?;
    let writes = rounds(true)?;
    drop(racks);
    cluster.stop()?;
    let middle = |rounds: &[Vec<f64>], of: &dyn Fn(&Vec<f64>) -> f64| {
        median(rounds.iter().map(of).collect())
    };
    let rate = |times: &Vec<f64>| times.len() as f64 / sizes.time.as_secs_f64();
    Ok(Measured {
        reads: middle(&reads, &rate),
        writes: middle(&writes, &rate) * WRITES as f64,
        p50: middle(&reads, &|times| percentile(times, 500)),
        p99: middle(&reads, &|times| percentile(times, 990)),
    })
}

impl Racks {
    fn new(dir: &std::path::Path, bytes: u64, step: Step) -> anyhow::Result<Self> {
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
        Ok(Self { pools, pages, step, rings })
    }

    /// The pages by rank for a rack's clients.
    fn hot_pages(&self, rack: usize) -> Vec<GlobalAddr> {
        let own = |index: &usize| self.step != Step::OnlyCxl || index % RACKS.len() == rack;
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
        let pages = self.hot_pages(rack);
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
        let ring = if self.step == Step::Base && !pool.is_local(block)? {
            Some(self.rings[rack].lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            None
        };
        let mut bytes = [1; ITEM];
        if is_write {
            let guard = pool.write_lock(block, usize::try_from(BLOCK)?)?;
            for write in 0..WRITES {
                let at = block.add((item + write * ITEM as u64) % BLOCK)?;
                if self.step == Step::LineCache || self.step == Step::OnlyCxl {
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
