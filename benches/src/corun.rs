//! What copying large objects in the background costs a client that uses a little memory: its
//! working set fits the last-level cache, and copies that go through the caches push it out.
//!
//! The client runs on one core, another process copies on the other; its turns of rest and of work
//! follow one another. `cargo x bench corun`; docs/benchmarking.md has what came of it.

use std::hint::black_box;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_shm::{Mapping, Stores};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::pin_self;
use crate::helper::Helper;
use crate::measure::{median, percentile};
use crate::table::Table;

/// The argument with which this program is the one that copies.
pub const ARGUMENT: &str = "--copier";
/// Bytes the client uses: a quarter of a last-level cache of 32 MiB.
const WORKING_SET: u64 = 8 << 20;
const LINE: u64 = 64;
/// Accesses timed at once, to be well above what the clock costs.
const GROUP: usize = 32;
/// How long a turn is, and how many there are of each kind.
const TURN: Duration = Duration::from_millis(150);
const SETTLE: Duration = Duration::from_millis(20);
const ROUNDS: usize = 15;
/// What is copied at once, and over how many bytes the copies go.
const OBJECT: usize = 2 << 20;
const REGION: u64 = 256 << 20;
/// The emulated fabric's buffer.
const FABRIC_BUFFER: usize = 4096;

/// What the copier does, and whether that is what the limit is for. The last one shows what the
/// machine itself makes of two busy cores.
const WAYS: [(&str, bool); 7] = [
    ("Pool::write of 2 MiB", true),
    ("Pool::read of 2 MiB", true),
    ("Pool::read, then Pool::write of 2 MiB", true),
    ("a page moves, as between emulated racks", true),
    ("a write through the caches", false),
    ("a read through the caches", false),
    ("a busy core, no memory", false),
];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    let memory = cluster.options().memory.to_string();
    let copier = Helper::start(ARGUMENT, &[dir.display().to_string(), memory]);
    let done = copier.and_then(|mut copier| measure(table, &pool, &mut copier));
    drop(pool);
    cluster.stop()?;
    done
}

fn measure(table: &mut Table, pool: &Pool, copier: &mut Helper) -> anyhow::Result<()> {
    pin_self(0)?;
    copier.hear()?;
    let mut client = Client::new(pool)?;
    table.section("p99 of a client's accesses while another copies, against undisturbed");
    let mut turns: Vec<[(f64, f64); WAYS.len()]> = Vec::new();
    for round in 0..=ROUNDS {
        let mut turn = [(0.0, 0.0); WAYS.len()];
        for (way, figures) in turn.iter_mut().enumerate() {
            let alone = client.p99(pool)?;
            copier.tell(way + 1)?;
            std::thread::sleep(SETTLE);
            let beside = client.p99(pool)?;
            copier.tell(0)?;
            copier.hear()?;
            *figures = (beside, alone);
        }
        // The first round warms up.
        if round > 0 {
            turns.push(turn);
        }
    }
    for (way, (name, is_judged)) in WAYS.into_iter().enumerate() {
        let of =
            |of: &dyn Fn((f64, f64)) -> f64| median(turns.iter().map(|t| of(t[way])).collect());
        let (beside, alone) = (of(&|pair| pair.0), of(&|pair| pair.1));
        let ratio = of(&|(beside, alone)| beside / alone);
        let each = GROUP as f64;
        let detail = format!("{:.1} ns against {:.1} ns each", beside / each, alone / each);
        if is_judged {
            table.at_most(name, ratio, 1.2, "x", &detail);
        } else {
            table.figure(&format!("for comparison: {name}"), ratio, "x", &detail);
        }
    }
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

/// The client that is disturbed.
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

    /// Nanoseconds of the slowest of a hundred groups of accesses.
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

/// GB a second of stores through the caches and past them, and the same with what was written
/// read right after.
type Bandwidths = [f64; 4];

/// What the copier measures for each length of a copy.
fn bandwidths(copier: &mut Helper) -> anyhow::Result<Vec<(usize, Bandwidths)>> {
    copier.tell(BANDWIDTHS)?;
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

/// Tells the copier to measure bandwidths.
const BANDWIDTHS: u8 = 100;

/// The process that copies.
struct Copier {
    pool: Pool,
    objects: Vec<GlobalAddr>,
    frames: Mapping,
    bytes: Vec<u8>,
    copies: usize,
}

/// Is the process that copies: the pool's folder and the bytes of the rack's memory. It reads what
/// to do from its standard input, a number of `WAYS` or 0 for rest.
pub fn be_copier(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("an argument");
    let (dir, memory) = (PathBuf::from(next()?), next()?.parse()?);
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    pin_self(1)?;
    let count = REGION / OBJECT as u64;
    let objects = (0..count).map(|_| pool.alloc(OBJECT as u64)).collect::<Result<_, _>>()?;
    // Its upper half belongs to nobody: the comparisons that bypass the pool go there.
    let file = std::fs::File::options().read(true).write(true).open(dir.join("rack-0/frames"))?;
    let frames = Mapping::new(&file, memory)?;
    frames.advise_huge();
    let mut copier = Copier { pool, objects, frames, bytes: vec![3; OBJECT], copies: 0 };
    for way in 1..=WAYS.len() {
        for _ in 0..count {
            copier.copy(way)?;
        }
    }
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
    let mut way = 0;
    loop {
        let heard = if way == 0 { wanted.recv().ok() } else { next_way(&wanted, way) };
        match heard {
            None => return Ok(()),
            Some(BANDWIDTHS) => copier.bandwidths()?,
            Some(0) => {
                way = 0;
                println!("rests");
            }
            Some(wanted) => {
                way = wanted;
                copier.copy(way.into())?;
            }
        }
    }
}

/// What to do next: the same if nothing else was said, nothing if nobody is there any more.
fn next_way(wanted: &Receiver<u8>, way: u8) -> Option<u8> {
    match wanted.try_recv() {
        Ok(next) => Some(next),
        Err(TryRecvError::Empty) => Some(way),
        Err(TryRecvError::Disconnected) => None,
    }
}

impl Copier {
    fn copy(&mut self, way: usize) -> anyhow::Result<()> {
        let at = self.copies % self.objects.len();
        let object = self.objects[at];
        let spare = self.frames.len() / 2 + (at * OBJECT) as u64;
        self.copies += 1;
        match way {
            1 => self.pool.write(object, &self.bytes)?,
            2 => self.pool.read(object, &mut self.bytes)?,
            3 => {
                self.pool.read(object, &mut self.bytes)?;
                let other = self.objects[(at + self.objects.len() / 2) % self.objects.len()];
                self.pool.write(other, &self.bytes)?;
            }
            4 => self.move_page(at)?,
            5 => self.frames.write_by(spare, &self.bytes, Stores::Cached)?,
            6 => self.frames.read_by(spare, &mut self.bytes, Stores::Cached)?,
            _ => (0..OBJECT).for_each(|step| _ = black_box(step)),
        }
        Ok(())
    }

    /// Copies a page of the spare half to another one, as a swap does where the fabric is emulated: what
    /// is read passes through a small buffer, and is stored past the caches.
    fn move_page(&mut self, at: usize) -> anyhow::Result<()> {
        let place = |page: usize| self.frames.len() / 2 + (page * OBJECT) as u64;
        let (from, to) = (place(at), place((at + self.objects.len() / 2) % self.objects.len()));
        let (buffer, _) = self.bytes.split_at_mut(FABRIC_BUFFER);
        for offset in (0..OBJECT as u64).step_by(FABRIC_BUFFER) {
            self.frames.read_by(from + offset, buffer, Stores::Cached)?;
            self.frames.write_by(to + offset, buffer, Stores::Past)?;
        }
        Ok(())
    }

    /// Says what both ways of storing manage for each length.
    fn bandwidths(&self) -> anyhow::Result<()> {
        const COPIED: usize = 256 << 20;
        let from = vec![5; 16 << 20];
        let mut back = vec![0; from.len()];
        for shift in 14..=24 {
            let length = 1_usize << shift;
            let mut pass = |stores, is_used| -> anyhow::Result<f64> {
                let start = Instant::now();
                for at in (0..COPIED).step_by(length) {
                    let to = self.frames.len() / 2 + at as u64;
                    self.frames.write_by(to, &from[..length], stores)?;
                    if is_used {
                        self.frames.read_by(to, &mut back[..length], Stores::Cached)?;
                        // Or nobody would need what was read, and it would not be.
                        black_box(&mut back);
                    }
                }
                Ok(COPIED as f64 / start.elapsed().as_secs_f64() / 1e9)
            };
            let mut all: [Vec<f64>; 4] = Default::default();
            for _ in 0..5 {
                for (i, figures) in all.iter_mut().enumerate() {
                    let stores = if i % 2 == 0 { Stores::Cached } else { Stores::Past };
                    figures.push(pass(stores, i >= 2)?);
                }
            }
            let [a, b, c, d] = all.map(median);
            println!("{length} {a} {b} {c} {d}");
        }
        println!("done");
        Ok(())
    }
}
