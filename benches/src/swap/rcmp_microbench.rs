//! The micro-benchmark of the Rcmp paper: random reads and writes of small items in pages of all
//! racks, from clients in some racks. It shows the gain of swapping hot pages.
//!
//! The pages come from all racks in turn. A client draws a rank, and each rack orders the pages by
//! rank differently. With a Zipfian distribution this models services that share a pool but not
//! their hot data.
//!
//! Every item holds words derived from its number, so each read is checked.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_ycsb::{Uniform, Zipfian};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Bytes of an item.
pub(crate) const ITEM: usize = 64;
/// Number of draws, made before the clock starts and reused cyclically.
const DRAWS: usize = 1 << 20;
/// Accesses between two checks of the stop flag.
const BURST: usize = 256;
/// The time between two samples of the counters.
const INTERVAL: Duration = Duration::from_millis(100);

/// The distribution of accesses over the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skew {
    /// All items equally often.
    Uniform,
    /// By rank, with Zipf's law and the constant 0.99.
    Zipfian,
}

/// The load of a run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The distribution.
    pub(crate) skew: Skew,
    /// Racks with a client; one thread each.
    pub(crate) racks: Vec<RackId>,
    /// Reads in percent of accesses; the rest are writes.
    pub(crate) reads: u32,
    /// Time before the measurement starts, in which hot pages move.
    pub(crate) settle: Duration,
    /// Duration of the measurement.
    pub(crate) measure: Duration,
    /// Seed of all random choices.
    pub(crate) seed: u64,
}

/// Items in pages of all racks.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    pages: Vec<GlobalAddr>,
    in_a_page: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Accesses per second during the measurement.
    pub(crate) throughput: f64,
    /// Accesses to the client's own rack at the end, in percent.
    pub(crate) local: f64,
}

impl Items {
    /// Fills `pages` pages, taken from the `racks` in turn, with items.
    ///
    /// # Errors
    /// If a rack has too little memory.
    pub(crate) fn spread(dir: &Path, racks: &[RackId], pages: usize) -> anyhow::Result<Self> {
        let pools = open(dir, racks)?;
        let first = pools.first().context("a pool without racks")?;
        let in_a_page = first.page_bytes() / ITEM as u64;
        let mut items = Self { pages: Vec::new(), in_a_page };
        for (page, pool) in pools.iter().cycle().take(pages).enumerate() {
            let addr = pool.alloc(pool.page_bytes()).context("no room for the items")?;
            if !pool.is_local(addr)? {
                bail!("{} has no room for its share of {pages} pages", pool.rack());
            }
            let first = page as u64 * in_a_page;
            let bytes: Vec<u8> = (first..first + in_a_page).flat_map(item).collect();
            pool.write(addr, &bytes)?;
            items.pages.push(addr);
        }
        Ok(items)
    }

    /// Runs the clients.
    ///
    /// # Errors
    /// If an access fails, or a read returns bytes that were never written.
    pub(crate) fn run(&self, dir: &Path, load: &Load) -> anyhow::Result<Course> {
        let pools = open(dir, &load.racks)?;
        let draws: Vec<Vec<Draw>> =
            load.racks.iter().map(|rack| self.draw(load, u64::from(rack.0))).collect();
        let counters: Vec<AtomicU64> = pools.iter().map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let throughput = std::thread::scope(|scope| {
            let clients: Vec<_> = pools
                .iter()
                .zip(&draws)
                .zip(&counters)
                .map(|((pool, draws), counter)| {
                    scope.spawn(|| {
                        let result = self.client(pool, draws, counter, &stop);
                        // The other clients need not go on.
                        if result.is_err() {
                            stop.store(true, Ordering::Relaxed);
                        }
                        result
                    })
                })
                .collect();
            let throughput = watch(load, &counters, &stop);
            stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
            }
            anyhow::Ok(throughput)
        })?;
        Ok(Course { throughput, local: self.local_share(&pools, &draws)? })
    }

    /// The sequence of accesses of a rack's client.
    fn draw(&self, load: &Load, rack: u64) -> Vec<Draw> {
        let mut order: Vec<u64> = (0..self.pages.len() as u64).collect();
        order.shuffle(&mut SmallRng::seed_from_u64(load.seed.wrapping_add(rack)));
        let mut rng = SmallRng::seed_from_u64(load.seed ^ rack.rotate_right(8));
        let items = self.pages.len() as u64 * self.in_a_page;
        let (zipfian, uniform) = (Zipfian::new(items), Uniform::new(items));
        let mut draw = || {
            let rank = match load.skew {
                Skew::Uniform => uniform.next(&mut rng),
                Skew::Zipfian => zipfian.next(&mut rng),
            };
            let page = order[usize::try_from(rank / self.in_a_page).unwrap_or(0)];
            let is_read = rng.random_range(0..100) < load.reads;
            Draw { item: page * self.in_a_page + rank % self.in_a_page, is_read }
        };
        (0..DRAWS).map(|_| draw()).collect()
    }

    fn address(&self, item: u64) -> anyhow::Result<GlobalAddr> {
        let page = usize::try_from(item / self.in_a_page)?;
        let offset = item % self.in_a_page * ITEM as u64;
        Ok(GlobalAddr::from_raw(self.pages[page].raw() + offset))
    }

    fn client(
        &self,
        pool: &Pool,
        draws: &[Draw],
        counter: &AtomicU64,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let mut bytes = [0; ITEM];
        for burst in draws.chunks(BURST).cycle() {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            for Draw { item: number, is_read } in burst {
                let addr = self.address(*number)?;
                if *is_read {
                    pool.read(addr, &mut bytes)?;
                    if bytes != item(*number) {
                        bail!("item {number} at {addr} has bytes that were never written");
                    }
                } else {
                    pool.write(addr, &item(*number))?;
                }
            }
            counter.fetch_add(burst.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the share of accesses that are to the client's own rack now, in percent.
    fn local_share(&self, pools: &[Pool], draws: &[Vec<Draw>]) -> anyhow::Result<f64> {
        const SAMPLE: usize = 10_000;
        let mut local = 0_u32;
        for (pool, draws) in pools.iter().zip(draws) {
            for draw in draws.iter().take(SAMPLE) {
                local += u32::from(pool.is_local(self.address(draw.item)?)?);
            }
        }
        Ok(f64::from(local) * 100.0 / (SAMPLE * pools.len()) as f64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Draw {
    item: u64,
    is_read: bool,
}

fn open(dir: &Path, racks: &[RackId]) -> anyhow::Result<Vec<Pool>> {
    racks.iter().map(|rack| Ok(Pool::open(ClientOptions::new(dir, *rack))?)).collect()
}

/// The contents of item `number`.
fn item(number: u64) -> [u8; ITEM] {
    let mut bytes = [0; ITEM];
    for (word, to) in (1_u64..).zip(bytes.chunks_exact_mut(8)) {
        let value =
            number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) ^ word;
        to.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Samples the counters. Returns the accesses per second during the measurement.
fn watch(load: &Load, counters: &[AtomicU64], stop: &AtomicBool) -> f64 {
    let total = || counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>();
    let start = Instant::now();
    let mut last = (start, total());
    let mut counts_from = None;
    while last.0 - start < load.settle + load.measure && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(INTERVAL);
        let now = (Instant::now(), total());
        last = now;
        if counts_from.is_none() && now.0 - start >= load.settle {
            counts_from = Some(now);
        }
    }
    counts_from.map_or(0.0, |from| rate(from, last))
}

fn rate(from: (Instant, u64), to: (Instant, u64)) -> f64 {
    let seconds = (to.0 - from.0).as_secs_f64();
    if seconds > 0.0 { (to.1 - from.1) as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(pages: u64) -> Items {
        let pages = (0..pages).map(|page| GlobalAddr::from_raw(page << 21)).collect();
        Items { pages, in_a_page: 32_768 }
    }

    fn load(skew: Skew) -> Load {
        let (settle, measure) = (Duration::ZERO, Duration::ZERO);
        Load { skew, racks: vec![RackId(0), RackId(1)], reads: 50, settle, measure, seed: 7 }
    }

    fn most_used(draws: &[Draw]) -> (u64, f64) {
        let mut pages = std::collections::BTreeMap::<u64, u32>::new();
        for draw in draws {
            *pages.entry(draw.item / 32_768).or_default() += 1;
        }
        let (page, times) = pages.into_iter().max_by_key(|(_, times)| *times).unwrap();
        (page, f64::from(times) / draws.len() as f64)
    }

    #[test]
    fn racks_have_other_favourites_unless_all_items_are_used_equally() {
        let items = items(16);
        let [one, other] = [0, 1].map(|rack| most_used(&items.draw(&load(Skew::Zipfian), rack)));
        assert_ne!(one.0, other.0);
        assert!(one.1 > 0.5 && other.1 > 0.5, "{one:?} {other:?}");
        let (_, share) = most_used(&items.draw(&load(Skew::Uniform), 0));
        assert!(share < 0.07, "{share}");
    }

    #[test]
    fn half_of_the_draws_are_reads_and_all_are_items() {
        let items = items(3);
        let draws = items.draw(&load(Skew::Zipfian), 0);
        let reads = draws.iter().filter(|draw| draw.is_read).count() as f64 / draws.len() as f64;
        assert!((0.49..0.51).contains(&reads), "{reads}");
        assert!(draws.iter().all(|draw| draw.item < 3 * 32_768));
        assert_eq!(items.address(32_768 + 2).unwrap().raw(), (1 << 21) + 128);
    }
}
