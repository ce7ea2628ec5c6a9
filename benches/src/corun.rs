//! The cost of background copies of large objects for a client with a small working set: the set
//! fits the last-level cache, and copies through the caches evict it.
//!
//! The client runs on one core and everything else on the other: a process that copies objects, or
//! two racks between which pages move. Turns without and with copies alternate. `cargo x bench
//! corun`; the results are in docs/benchmarking.md.

mod copier;
mod mover;

use std::io::BufRead;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::{pin_process, pin_self};
use crate::helper::Helper;
use crate::measure::{median, percentile};
use crate::swap;
use crate::table::Table;

/// The argument with which this program is the co-running process; its kind follows.
pub const ARGUMENT: &str = "--co-runner";
const COPIER: &str = "copier";
const MOVER: &str = "mover";
/// Bytes that the client uses: a quarter of a last-level cache of 32 MiB.
const WORKING_SET: u64 = 8 << 20;
const LINE: u64 = 64;
/// Accesses timed together, so that their time is well above the cost of reading the clock.
const GROUP: usize = 32;
/// The duration of a turn, the time before it, and the number of turns of each kind.
const TURN: Duration = Duration::from_millis(150);
const SETTLE: Duration = Duration::from_millis(20);
const ROUNDS: usize = 15;

/// The operations of the copier, and whether the limit applies to each. The last one shows the
/// effect of two busy cores alone.
const COPIES: [(&str, bool); 7] = [
    ("Pool::write of 2 MiB", true),
    ("Pool::read of 2 MiB", true),
    ("Pool::read of 2 MiB, elsewhere each time", true),
    ("Pool::read, then Pool::write of 2 MiB", true),
    ("a write through the caches", false),
    ("a read through the caches", false),
    ("a busy core, no memory", false),
];
const MOVES: [(&str, bool); 1] = [("pages of 2 MiB move between racks", true)];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("p99 of a client's accesses while others copy, against undisturbed");
    moves(table)?;
    copies(table)
}

/// Pages move between two racks as fast as the daemons allow.
fn moves(table: &mut Table) -> anyhow::Result<()> {
    let cluster = swap::pool(&[("--hot", "1"), ("--rest-ms", "0"), ("--swap-pause-ms", "1")])?;
    for process in cluster.processes() {
        pin_process(process.id(), 1)?;
    }
    let dir = cluster.options().dir.display().to_string();
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    let mut mover = Helper::start(ARGUMENT, &[MOVER.into(), dir])?;
    let done = measure(table, &pool, &mut mover, &MOVES);
    drop((pool, mover));
    cluster.stop()?;
    done
}

/// Another client copies objects.
fn copies(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.display().to_string();
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    let memory = cluster.options().memory.to_string();
    let mut copier = Helper::start(ARGUMENT, &[COPIER.into(), dir, memory])?;
    let done = measure(table, &pool, &mut copier, &COPIES);
    let done = done.and_then(|()| show_bandwidths(table, &mut copier));
    drop((pool, copier));
    cluster.stop()?;
    done
}

/// Runs as the co-running process.
pub fn be_co_runner(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    match arguments.next().as_deref() {
        Some(COPIER) => copier::be_copier(arguments),
        Some(MOVER) => mover::be_mover(arguments),
        other => anyhow::bail!("{other:?} is no co-runner"),
    }
}

fn measure(
    table: &mut Table,
    pool: &Pool,
    other: &mut Helper,
    ways: &[(&str, bool)],
) -> anyhow::Result<()> {
    pin_self(0)?;
    other.hear()?;
    let mut client = Client::new(pool)?;
    // For each operation and turn: p99 with the co-runner and alone, and the number of its
    // operations.
    let mut turns = vec![Vec::new(); ways.len()];
    for round in 0..=ROUNDS {
        for (way, turns) in turns.iter_mut().enumerate() {
            let alone = client.p99(pool)?;
            other.tell(way + 1)?;
            std::thread::sleep(SETTLE);
            let beside = client.p99(pool)?;
            other.tell(0)?;
            let times: f64 = other.hear()?.parse()?;
            // The first round is a warm-up.
            if round > 0 {
                turns.push((beside, alone, times));
            }
        }
    }
    for ((name, is_judged), turns) in ways.iter().zip(turns) {
        let of = |of: &dyn Fn(&(f64, f64, f64)) -> f64| median(turns.iter().map(of).collect());
        let (beside, alone) = (of(&|turn| turn.0), of(&|turn| turn.1));
        let ratio = of(&|(beside, alone, _)| beside / alone);
        let each = GROUP as f64;
        let rate = of(&|turn| turn.2) / (SETTLE + TURN).as_secs_f64();
        let detail = format!(
            "{:.1} ns against {:.1} ns each; {rate:.0} a second",
            beside / each,
            alone / each
        );
        if *is_judged {
            table.at_most(name, ratio, 1.2, "x", &detail);
        } else {
            table.figure(&format!("for comparison: {name}"), ratio, "x", &detail);
        }
    }
    Ok(())
}

fn show_bandwidths(table: &mut Table, copier: &mut Helper) -> anyhow::Result<()> {
    table.section("a copy into the pool, past the caches against through them, by length");
    for (length, [cached, past, cached_used, past_used]) in bandwidths(copier)? {
        let detail = format!("{past:.1} GB/s past the caches, {cached:.1} GB/s through them");
        let name = format!("{} KiB", length >> 10);
        table.figure(&name, past / cached, "x", &detail);
        let detail = format!("{past_used:.1} GB/s and {cached_used:.1} GB/s");
        table.figure(&format!("{name}, read right after"), past_used / cached_used, "x", &detail);
    }
    Ok(())
}

/// The client whose accesses are measured.
struct Client {
    objects: Vec<GlobalAddr>,
    rng: SmallRng,
}

impl Client {
    fn new(pool: &Pool) -> anyhow::Result<Self> {
        let count = WORKING_SET / pool.page_bytes();
        let objects: Vec<GlobalAddr> =
            (0..count).map(|_| pool.alloc(pool.page_bytes())).collect::<Result<_, _>>()?;
        for object in &objects {
            pool.write(*object, &vec![1; usize::try_from(pool.page_bytes())?])?;
        }
        Ok(Self { objects, rng: SmallRng::seed_from_u64(4) })
    }

    /// Nanoseconds of the p99 of a group of accesses.
    fn p99(&mut self, pool: &Pool) -> anyhow::Result<f64> {
        let lines = pool.page_bytes() / LINE;
        let mut times = Vec::with_capacity(1 << 18);
        let mut bytes = [0; 64];
        let end = Instant::now() + TURN;
        loop {
            let wanted: [GlobalAddr; GROUP] = std::array::from_fn(|_| {
                let object = self.objects[self.rng.random_range(0..self.objects.len())];
                GlobalAddr::from_raw(object.raw() + self.rng.random_range(0..lines) * LINE)
            });
            let start = Instant::now();
            for addr in wanted {
                pool.read(addr, &mut bytes)?;
            }
            let now = Instant::now();
            times.push((now - start).as_secs_f64() * 1e9);
            if now >= end {
                times.sort_by(f64::total_cmp);
                return Ok(percentile(&times, 990));
            }
        }
    }
}

/// GB/s of stores through the caches and past them, and of both followed by reads of the written
/// bytes.
type Bandwidths = [f64; 4];

/// The copier's bandwidths for each length of a copy.
fn bandwidths(copier: &mut Helper) -> anyhow::Result<Vec<(usize, Bandwidths)>> {
    copier.tell(copier::BANDWIDTHS)?;
    copier.tell(0)?;
    let mut all = Vec::new();
    loop {
        let line = copier.hear()?;
        let fields: Vec<&str> = line.split(' ').collect();
        let [length, figures @ ..] = &fields[..] else { return Ok(all) };
        let figures: Vec<f64> =
            figures.iter().map(|figure| figure.parse()).collect::<Result<_, _>>()?;
        let Ok(figures) = Bandwidths::try_from(figures) else { return Ok(all) };
        all.push((length.parse()?, figures));
    }
}

/// Repeats the operation that the standard input names until it names another; 0 means none, after
/// which the number of operations done is printed. `work` executes an operation and returns how
/// many that were.
fn obey(mut work: impl FnMut(u8) -> anyhow::Result<u64>) -> anyhow::Result<()> {
    let (say, wanted) = mpsc::channel::<u8>();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Some(way) = line.ok().and_then(|line| line.parse().ok()) else { return };
            if say.send(way).is_err() {
                return;
            }
        }
    });
    println!("ready");
    let (mut way, mut times) = (0, 0);
    loop {
        let heard = if way == 0 { wanted.recv().ok() } else { next_way(&wanted, way) };
        way = match heard {
            None => return Ok(()),
            Some(way) => way,
        };
        if way == 0 {
            println!("{}", std::mem::take(&mut times));
        } else {
            times += work(way)?;
        }
    }
}

/// The next operation: `way` again if no other was named; `None` once the input has ended.
fn next_way(wanted: &Receiver<u8>, way: u8) -> Option<u8> {
    match wanted.try_recv() {
        Ok(next) => Some(next),
        Err(TryRecvError::Empty) => Some(way),
        Err(TryRecvError::Disconnected) => None,
    }
}
