//! How long readers and writers of a page wait while it moves. One page moves back and forth
//! between two racks, because the rack that does not hold it uses it more. A client of its home
//! uses it meanwhile, every 50 us, or less often if the other rack can't use it that often. It
//! reads in one swap and writes in the next two. The attracting thread regularly yields its core:
//! on two cores a program that computes without a pause would keep a daemon from its core for a
//! scheduler slice.
//!
//! The limits hold for data planes that poll, on one processor that both racks share. Otherwise
//! each of a swap's few messages waits until a thread has been woken; those waits are also shown.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_wire::control::RackStatus;

use crate::measure::{median, percentile};
use crate::swap::{Polling, RACKS, pool};
use crate::table::Table;

/// Swaps that are observed by readers, and by writers.
const SWAPS: usize = 200;
/// Microseconds between two uses of the page at its home, if the attracting client uses it more
/// often.
const EVERY_US: u64 = 50;
/// Uses by the attracting thread between two of its pauses.
const TURNS: u32 = 8;
/// Observation without a swap; about as long as a swap takes.
const STILL: Duration = Duration::from_millis(2);
/// How long a new pool is used before the measurement: processes that have just started fill the
/// cores.
const SETTLE: Duration = Duration::from_millis(500);

/// What the client of the page's home does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("a page moves to and fro: how long its readers and writers wait");
    let every_us = AtomicU64::new(EVERY_US);
    let polling = Polling::new()?;
    let Moved { reads, writes, attracting, buckets, uses } =
        to_and_fro(&polling.arguments(), &every_us)?;
    let copy = plain_copy(1);
    let limit = (2.0 * copy + 4.0 * 2.0).round();
    reads.show(table, "readers", 50.0);
    writes.show(table, "writers", limit);
    let [middle, most] = [500, 990].map(|permille| quantile(&buckets, permille));
    let detail = format!(
        "a bucket's bound, as are the p50 of {middle:.0}; a plain copy of 2 MiB: {copy:.0} us"
    );
    table.at_most("writers: p99 of the pause as daemons see it", most, limit, "us", &detail);
    let detail = format!("the same page again and again: {copy:.0} us");
    table.figure("a plain copy of 2 MiB that no cache holds", plain_copy(64), "us", &detail);
    let detail = format!("used every {} us by its home", every_us.into_inner());
    table.figure("from afar, by whoever attracts it, p50", median(attracting), "us", &detail);
    for (what, took) in ["read", "write"].into_iter().zip(from_afar()?) {
        let detail = format!("p50 {:.1} us", percentile(&took, 500));
        let name = format!("each {what} from afar where nothing moves, p99");
        table.figure(&name, percentile(&took, 990), "us", &detail);
    }
    show_woken(table, uses)?;
    beside(table, "data planes that sleep", &[])?;
    awake(table)
}

/// Shows how long a requester waits for a thread that only answers, as often as the page is used in
/// a swap and in as many rounds as there are swaps. No waiting that includes waking a thread is
/// shorter on this machine.
fn show_woken(table: &mut Table, uses: Vec<f64>) -> anyhow::Result<()> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let uses = median(uses) as usize;
    let mut woken = woken(uses * SWAPS)?;
    let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let mut longest: Vec<f64> = woken.chunks(uses).map(most).collect();
    for (times, name) in [
        (&mut woken, format!("a thread that sleeps is asked each {EVERY_US} us, p99")),
        (&mut longest, "  p99 of the longest in a swap's time".to_owned()),
    ] {
        times.sort_by(f64::total_cmp);
        let detail =
            format!("p50 {:.0} us; {uses} times in {SWAPS} rounds", percentile(times, 500));
        table.figure(&name, percentile(times, 990), "us", &detail);
    }
    Ok(())
}

/// Data planes that sleep, while the host's processors are kept out of sleep states.
fn awake(table: &mut Table) -> anyhow::Result<()> {
    const DEVICE: &str = "/dev/cpu_dma_latency";
    if let Err(error) = std::fs::File::options().write(true).open(DEVICE) {
        table.not_measured(&format!("daemons with --wake-latency-us 0 ({DEVICE}: {error})"));
        return Ok(());
    }
    beside(table, "these where no processor sleeps", &[("--wake-latency-us", "0")])
}

/// The longest waits with daemons that get these arguments.
fn beside(table: &mut Table, what: &str, arguments: &[(&'static str, &str)]) -> anyhow::Result<()> {
    let moved = to_and_fro(arguments, &AtomicU64::new(EVERY_US))?;
    for (who, mut waits) in [("readers", moved.reads), ("writers", moved.writes)] {
        waits.moving.sort_by(f64::total_cmp);
        let [middle, most] = [500, 990].map(|permille| percentile(&waits.moving, permille));
        table.figure(&format!("{what}: {who}, p99"), most, "us", &format!("p50 {middle:.0} us"));
    }
    Ok(())
}

/// Observations of a page that moved.
#[derive(Default)]
struct Moved {
    reads: Waits,
    writes: Waits,
    /// Microseconds of the first of every few uses by the attracting client.
    attracting: Vec<f64>,
    /// Histogram of the writers' waits in daemons: upper bounds, and counts.
    buckets: Vec<(f64, u64)>,
    /// Uses of the page in each swap.
    uses: Vec<f64>,
}

/// Moves a page between two racks whose daemons get these arguments.
fn to_and_fro(arguments: &[(&'static str, &str)], every_us: &AtomicU64) -> anyhow::Result<Moved> {
    let restless = [("--hot", "1"), ("--rest-ms", "0"), ("--swap-pause-ms", "1")];
    let cluster = pool(&[&restless, arguments].concat())?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, rack));
    let pools = [open(RACKS[0])?, open(RACKS[1])?];
    let addr = pools[0].alloc(pools[0].page_bytes())?;
    let mut moved = std::thread::scope(|scope| {
        let attracter = Attracter::start(scope, &pools, addr, every_us);
        meet(&dir, &attracter)?;
        measure(&pools, addr, every_us, &attracter)
    })?;
    moved.buckets = [written_pauses(&dir, RACKS[0])?, written_pauses(&dir, RACKS[1])?].concat();
    cluster.stop()?;
    Ok(moved)
}

/// Moves the page until both racks have measured the modes of their requests to each other, and a
/// little longer. The measurement occupies cores for a quarter of a second or more, once for each
/// connection.
fn meet(dir: &Path, attracter: &Attracter) -> anyhow::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    let knows = |rack| anyhow::Ok(!rack_status(dir, rack)?.thresholds.is_empty());
    let mut known = None;
    for rack in (0..RACKS.len()).cycle() {
        if knows(RACKS[0])? && knows(RACKS[1])? {
            let since = *known.get_or_insert_with(Instant::now);
            if since.elapsed() > SETTLE {
                break;
            }
        }
        anyhow::ensure!(start.elapsed() < TIMEOUT, "requests between the racks are not measured");
        attracter.begin(rack)?;
        while attracter.end()?.is_none() {
            std::thread::sleep(STILL);
        }
    }
    Ok(())
}

/// Uses the page at its home while the other rack attracts it, repeatedly.
fn measure(
    pools: &[Pool; 2],
    addr: GlobalAddr,
    every_us: &AtomicU64,
    attracter: &Attracter,
) -> anyhow::Result<Moved> {
    let mut moved = Moved::default();
    for turn in 0..2 * SWAPS {
        // Each rack is the home in turn, for readers and for writers.
        let (what, waits) = match turn / 2 % 2 {
            0 => (Use::Reads, &mut moved.reads),
            _ => (Use::Writes, &mut moved.writes),
        };
        // The page may have moved back to the rack that had it last.
        let home = home_of(pools, addr)?;
        let user = User { pool: &pools[home], addr, what, every_us };
        let still = user.for_a_while()?;
        if still.iter().all(|one| one.is_local) {
            waits.still.push(longest(&still));
        }
        // The client's translation is stale after the move; this use renews it.
        user.once()?;
        attracter.begin(1 - home)?;
        let mut attracted = None;
        let moving = user.until(|| {
            attracted = attracter.end()?;
            Ok(attracted.is_some())
        })?;
        moved.attracting.extend(attracted.unwrap_or_default());
        moved.uses.push(moving.len() as f64);
        let stays = moving.iter().take_while(|one| one.is_local).count();
        waits.before.push(longest(&moving[..stays]));
        // Includes the use that found the page moved, and the next one. All later uses are remote.
        let some = moving.len().min(stays + 2);
        waits.moving.push(longest(&moving[..some]));
        if stays < some {
            waits.gone.push(longest(&moving[stays..some]));
        }
    }
    Ok(moved)
}

/// The rack that holds the page.
fn home_of(pools: &[Pool; 2], addr: GlobalAddr) -> anyhow::Result<usize> {
    let is_home = |pool: &Pool| -> anyhow::Result<bool> {
        // A client's translation is current after an access.
        pool.read(addr, &mut [0; 64])?;
        Ok(pool.is_local(addr)?)
    };
    Ok(if is_home(&pools[0])? { 0 } else { 1 })
}

/// Microseconds of remote reads and of remote writes at the same pace in a pool without swaps.
fn from_afar() -> anyhow::Result<[Vec<f64>; 2]> {
    let cluster = pool(&[("--swap", "off")])?;
    let dir = cluster.options().dir.clone();
    let addr = Pool::open(ClientOptions::new(&dir, RACKS[0]))?.alloc(64)?;
    let pool = Pool::open(ClientOptions::new(&dir, RACKS[1]))?;
    let every_us = AtomicU64::new(EVERY_US);
    let user = |what| User { pool: &pool, addr, what, every_us: &every_us };
    let start = Instant::now();
    user(Use::Reads).until(|| Ok(start.elapsed() > SETTLE))?;
    let mut both = [Vec::new(), Vec::new()];
    for (times, what) in both.iter_mut().zip([Use::Reads, Use::Writes]) {
        let mut left = 50 * SWAPS;
        let uses = user(what).until(|| {
            left -= 1;
            Ok(left == 0)
        })?;
        times.extend(uses.iter().map(|one| one.took));
        times.sort_by(f64::total_cmp);
    }
    cluster.stop()?;
    Ok(both)
}

/// Microseconds that uses of the page took.
#[derive(Default)]
struct Waits {
    /// The longest in each swap.
    moving: Vec<f64>,
    /// The longest in each swap before the page had moved.
    before: Vec<f64>,
    /// The longest in each swap among the use that found the page moved and the next one.
    gone: Vec<f64>,
    /// The longest in an equally long time without a swap.
    still: Vec<f64>,
}

impl Waits {
    fn show(mut self, table: &mut Table, who: &str, limit: f64) {
        let all = [&mut self.moving, &mut self.gone, &mut self.before, &mut self.still];
        let [moving, gone, before, still] = all.map(|figures| {
            figures.sort_by(f64::total_cmp);
            [500, 990].map(|permille| percentile(figures, permille))
        });
        let detail = format!("p50 {:.0} us; {SWAPS} swaps", moving[0]);
        let name = format!("{who}: p99 of the longest wait in a swap");
        table.at_most(&name, moving[1], limit, "us", &detail);
        for (what, [middle, most]) in [
            ("when it goes", gone),
            ("while the page has not gone", before),
            ("in as long a time without a swap", still),
        ] {
            table.figure(&format!("  p99 {what}"), most, "us", &format!("p50 {middle:.1} us"));
        }
    }
}

/// A use of the page.
struct Used {
    /// Its duration in microseconds.
    took: f64,
    /// Whether the page was in the user's rack.
    is_local: bool,
}

/// The longest use, in microseconds.
fn longest(uses: &[Used]) -> f64 {
    uses.iter().map(|one| one.took).fold(0.0, f64::max)
}

/// The client of the page's home.
struct User<'a> {
    pool: &'a Pool,
    addr: GlobalAddr,
    what: Use,
    every_us: &'a AtomicU64,
}

impl User<'_> {
    fn once(&self) -> anyhow::Result<Used> {
        let mut bytes = [0; 64];
        let start = Instant::now();
        match self.what {
            Use::Reads => self.pool.read(self.addr, &mut bytes)?,
            Use::Writes => self.pool.write(self.addr, &bytes)?,
        }
        let took = start.elapsed().as_secs_f64() * 1e6;
        Ok(Used { took, is_local: self.pool.is_local(self.addr)? })
    }

    /// Uses the page for about as long as a swap takes.
    fn for_a_while(&self) -> anyhow::Result<Vec<Used>> {
        self.once()?;
        let start = Instant::now();
        self.until(|| Ok(start.elapsed() >= STILL))
    }

    /// Uses the page until an event, and once more after it. These uses are fewer than those of the
    /// attracting client.
    fn until(
        &self,
        mut has_happened: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<Vec<Used>> {
        let mut uses = Vec::new();
        loop {
            let is_last = has_happened()?;
            let start = Instant::now();
            uses.push(self.once()?);
            if is_last {
                return Ok(uses);
            }
            let every = Duration::from_micros(self.every_us.load(Ordering::Relaxed));
            // Spinning here would keep one of two cores from the daemons that move the page.
            std::thread::sleep(every.saturating_sub(start.elapsed()));
        }
    }
}

/// The client that attracts the page to one rack or the other: one thread for all swaps. The end of
/// a thread occupies a core for 50 us and more, which would coincide with the arrival of the page.
struct Attracter {
    racks: Sender<usize>,
    attracted: Receiver<anyhow::Result<Vec<f64>>>,
}

impl Attracter {
    /// The thread ends when this value is dropped.
    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        pools: &'scope [Pool; 2],
        addr: GlobalAddr,
        every_us: &'scope AtomicU64,
    ) -> Self {
        let (racks, asked) = mpsc::channel::<usize>();
        let (attracts, attracted) = mpsc::channel();
        scope.spawn(move || {
            for rack in asked {
                if attracts.send(attract(&pools[rack], addr, every_us)).is_err() {
                    return;
                }
            }
        });
        Self { racks, attracted }
    }

    fn begin(&self, rack: usize) -> anyhow::Result<()> {
        Ok(self.racks.send(rack)?)
    }

    /// The durations of its reads, once the page has arrived.
    fn end(&self) -> anyhow::Result<Option<Vec<f64>>> {
        match self.attracted.try_recv() {
            Ok(reads) => reads.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => anyhow::bail!("the thread that attracts has ended"),
        }
    }
}

/// The machine's own cost of waking, in microseconds, measured `times` times: a sleeping thread is
/// woken and wakes the requester.
fn woken(times: usize) -> anyhow::Result<Vec<f64>> {
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let answers = std::thread::spawn(move || {
        for question in asked {
            if answer.send(question).is_err() {
                return;
            }
        }
    });
    let mut took = Vec::new();
    for _ in 0..times {
        std::thread::sleep(Duration::from_micros(EVERY_US));
        let start = Instant::now();
        ask.send(())?;
        answered.recv()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(ask);
    answers.join().map_err(|_| anyhow::anyhow!("the thread that answers has ended"))?;
    Ok(took)
}

/// Uses a page until it has arrived; returns the durations in microseconds of the first of every
/// few reads. If the home uses the page as often, which happens on a slow host, the home's uses are
/// halved.
fn attract(pool: &Pool, addr: GlobalAddr, every_us: &AtomicU64) -> anyhow::Result<Vec<f64>> {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let mut bytes = [0; 64];
    let mut reads = Vec::new();
    let start = Instant::now();
    let mut slower = start + TIMEOUT;
    // The client's translation is from the page's last stay here; this read renews it.
    pool.read(addr, &mut bytes)?;
    while !pool.is_local(addr)? {
        std::thread::sleep(Duration::from_micros(EVERY_US));
        let before = Instant::now();
        for turn in 0..TURNS {
            pool.read(addr, &mut bytes)?;
            if turn == 0 {
                reads.push(before.elapsed().as_secs_f64() * 1e6);
            }
            pool.write(addr, &bytes)?;
        }
        if Instant::now() > slower {
            every_us.store(every_us.load(Ordering::Relaxed) * 2, Ordering::Relaxed);
            slower += TIMEOUT;
        }
        anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "the page does not come");
    }
    Ok(reads)
}

fn rack_status(dir: &Path, rack: RackId) -> anyhow::Result<RackStatus> {
    let socket = dir.join(format!("rack-{}", rack.0)).join("daemon.sock");
    rackpool_admin::rack_status(&socket.display().to_string())
}

/// Histogram of the waits of a rack's writers: upper bounds in microseconds, and counts.
fn written_pauses(dir: &Path, rack: RackId) -> anyhow::Result<Vec<(f64, u64)>> {
    let status = rack_status(dir, rack)?;
    let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, |bound| bound as f64);
    Ok(status.swaps.pauses.into_iter().map(|(most, times)| (bound(most), times)).collect())
}

/// The upper bound of the bucket that contains the `permille` quantile.
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

/// Microseconds of a plain copy of 2 MiB when `pages` pages are copied in turn.
fn plain_copy(pages: usize) -> f64 {
    const PAGE: usize = 2 << 20;
    let (from, mut to) = (vec![1_u8; pages * PAGE], vec![2_u8; pages * PAGE]);
    let mut times = Vec::new();
    while times.len() < 64 {
        for (from, to) in from.chunks(PAGE).zip(to.chunks_mut(PAGE)) {
            let start = Instant::now();
            to.copy_from_slice(std::hint::black_box(from));
            std::hint::black_box(to);
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    median(times)
}
