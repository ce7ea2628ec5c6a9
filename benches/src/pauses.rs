//! For how long the readers and writers of a page wait while it moves: one page goes to and fro between
//! two racks, because the rack where it is not uses it more. A client of its home uses it meanwhile,
//! every 50 us, or less often where that is more than the other rack manages: in one swap it reads, in
//! the next two it writes.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rackpool_cli::commands::status;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};

use crate::measure::{median, percentile};
use crate::swap::{RACKS, pool};
use crate::table::Table;

/// Swaps that readers, and that writers, look at.
const SWAPS: usize = 200;
/// Between two uses of the page, in microseconds, where that is less often than whoever attracts it.
const EVERY_US: u64 = 50;
/// What is found out without a swap takes about as long as with one.
const STILL: Duration = Duration::from_millis(2);

/// What the client of the page's home does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("a page moves to and fro: how long its readers and writers wait");
    let cluster = pool(&[("--hot", "1"), ("--rest-ms", "0"), ("--swap-pause-ms", "1")])?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, rack));
    let pools = [open(RACKS[0])?, open(RACKS[1])?];
    let addr = pools[0].alloc(pools[0].page_bytes())?;
    let [mut read, mut written] = [Longest::default(), Longest::default()];
    let mut from_afar = Vec::new();
    let every_us = AtomicU64::new(EVERY_US);
    for turn in 0..2 * SWAPS {
        let (home, asker) = (&pools[turn % 2], &pools[(turn + 1) % 2]);
        // Each rack is the home in turn, for readers and for writers.
        let (what, longest) = match turn / 2 % 2 {
            0 => (Use::Reads, &mut read),
            _ => (Use::Writes, &mut written),
        };
        let still = || std::thread::sleep(STILL);
        longest.still.push(longest_use(home, addr, what, &every_us, still)?);
        let mut attracted = Ok(Vec::new());
        let moves = || attracted = attract(asker, addr, &every_us);
        longest.moving.push(longest_use(home, addr, what, &every_us, moves)?);
        from_afar.append(&mut attracted?);
    }
    let copy = plain_copy();
    let limit = 2.0 * copy + 4.0 * 2.0;
    // What a reader waits for at least when the page has gone.
    let every_us = every_us.into_inner();
    let from_afar =
        format!("; any read from afar p50 {:.0} us; used every {every_us} us", median(from_afar));
    read.show(table, "readers: p99 of the longest read in a swap", 50.0, &from_afar);
    written.show(table, "writers: p99 of the longest write in a swap", limit, "");
    let buckets = [written_pauses(&dir, RACKS[0])?, written_pauses(&dir, RACKS[1])?].concat();
    let [median, most] = [500, 990].map(|permille| quantile(&buckets, permille));
    let detail = format!(
        "a bucket's bound, as are the p50 of {median:.0}; a plain copy of 2 MiB: {copy:.0} us"
    );
    table.at_most("writers: p99 of the pause as daemons see it", most, limit, "us", &detail);
    cluster.stop()
}

/// The longest use of the page in each of many swaps, in microseconds.
#[derive(Default)]
struct Longest {
    moving: Vec<f64>,
    /// For as long without a swap.
    still: Vec<f64>,
}

impl Longest {
    fn show(mut self, table: &mut Table, name: &str, limit: f64, more: &str) {
        self.moving.sort_by(f64::total_cmp);
        self.still.sort_by(f64::total_cmp);
        let detail = format!(
            "p50 {:.0} us; for as long without a swap p50 {:.1}, p99 {:.0} us; {SWAPS} swaps{more}",
            percentile(&self.moving, 500),
            percentile(&self.still, 500),
            percentile(&self.still, 990)
        );
        table.at_most(name, percentile(&self.moving, 990), limit, "us", &detail);
    }
}

/// The longest of the uses of a client while something happens, and of the first one after it, in
/// microseconds. There are fewer of them than of whoever attracts the page.
fn longest_use(
    pool: &Pool,
    addr: GlobalAddr,
    what: Use,
    every_us: &AtomicU64,
    during: impl FnOnce() + Send,
) -> anyhow::Result<f64> {
    let mut bytes = [0; 64];
    let mut use_once = || match what {
        Use::Reads => pool.read(addr, &mut bytes),
        Use::Writes => pool.write(addr, &bytes),
    };
    // Where the page is has changed since.
    use_once()?;
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let happens = scope.spawn(during);
        loop {
            let has_happened = happens.is_finished();
            let start = Instant::now();
            use_once()?;
            longest = longest.max(start.elapsed());
            if has_happened {
                return anyhow::Ok(());
            }
            let every = Duration::from_micros(every_us.load(Ordering::Relaxed));
            // Who spins here keeps one of two cores from those who move the page.
            std::thread::sleep(every.saturating_sub(start.elapsed()));
        }
    })?;
    Ok(longest.as_secs_f64() * 1e6)
}

/// Uses a page until it has come; how long the first read of many took, in microseconds. Where its
/// home uses it as much, which a slow host can bring about, the home does so half as often.
fn attract(pool: &Pool, addr: GlobalAddr, every_us: &AtomicU64) -> anyhow::Result<Vec<f64>> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let mut bytes = [0; 64];
    let mut reads = Vec::new();
    let start = Instant::now();
    let mut slower = start + PATIENCE;
    while !pool.is_local(addr)? {
        let before = Instant::now();
        for turn in 0..64 {
            pool.read(addr, &mut bytes)?;
            if turn == 0 {
                reads.push(before.elapsed().as_secs_f64() * 1e6);
            }
            pool.write(addr, &bytes)?;
        }
        if Instant::now() > slower {
            every_us.store(every_us.load(Ordering::Relaxed) * 2, Ordering::Relaxed);
            slower += PATIENCE;
        }
        anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "the page does not come");
    }
    Ok(reads)
}

/// Upper bounds of the pauses of a rack's writers in microseconds, and how many there were.
fn written_pauses(dir: &Path, rack: RackId) -> anyhow::Result<Vec<(f64, u64)>> {
    let socket = dir.join(format!("rack-{}", rack.0)).join("daemon.sock");
    let status = status::rack_status(&socket.display().to_string())?;
    let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64);
    Ok(status.swaps.pauses.into_iter().map(|(most, times)| (bound(most), times)).collect())
}

/// The bound of the bucket in which the value lies that so many thousandths do not exceed.
fn quantile(buckets: &[(f64, u64)], permille: u64) -> f64 {
    let mut buckets = buckets.to_vec();
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all: u64 = buckets.iter().map(|bucket| bucket.1).sum();
    let mut seen = 0;
    let reached = buckets.iter().find(|bucket| {
        seen += bucket.1;
        seen * 1000 >= all * permille
    });
    reached.map_or(f64::NAN, |bucket| bucket.0)
}

/// What a plain copy of 2 MiB takes, in microseconds.
fn plain_copy() -> f64 {
    let (from, mut to) = (vec![1_u8; 2 << 20], vec![0_u8; 2 << 20]);
    let mut times = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}
