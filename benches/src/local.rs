//! Local access: the pool compared with a plain copy from the same mapping.

use std::hint::black_box;

use nix::sys::signal::Signal;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId, ReadRequest, WriteRequest};
use rackpool_cluster::{Child, Cluster, ClusterOptions};
use rackpool_shm::Mapping;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::pin_self;
use crate::measure::{Pair, in_turn, time_each};
use crate::steps;
use crate::table::Table;

/// The range of random accesses in bytes.
const RANGE: u64 = 1 << 30;
const LINE: u64 = 64;
const ACCESSES: usize = 400_000;
const BATCH: usize = 64;
/// Accesses of a turn in which the daemon collects access samples several times, as it does every
/// 10 ms.
const LONG: usize = 25 * ACCESSES;

struct Bench {
    pool: Pool,
    base: GlobalAddr,
    frames: Mapping,
    frame_base: u64,
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    options.memory = RANGE + (64 << 20);
    let mut cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    pin_self(0)?;
    let base = pool.alloc(RANGE)?;
    let chunk = vec![1; 1 << 20];
    for offset in (0..RANGE).step_by(chunk.len()) {
        pool.write(base.add(offset)?, &chunk)?;
    }
    let file = std::fs::File::options().read(true).write(true).open(dir.join("rack-0/frames"))?;
    let frames = Mapping::new(&file, cluster.options().memory)?;
    frames.advise_huge();
    // The object of 1 GiB is the only one, so its pages lie in consecutive frames.
    let mut bench = Bench { pool, base, frames, frame_base: 0 };
    bench.find_object()?;
    table.section("local 64 B through Pool against a plain copy from the same mapping");
    bench.random(table);
    bench.hot(table);
    bench.long(table);
    bench.hotness(table, cluster.daemon(RackId(0))?)?;
    let steps = steps::count(&dir)?;
    let detail = "stepped through one by one, the copy and the loop of the benchmark included";
    // 37 to 65 instructions, and some more for a window in which more accesses are sampled; too few
    // for an allocation.
    table.at_most("read, a hit: instructions", steps.read, 100.0, "", detail);
    table.at_most("write, a hit: instructions", steps.write, 100.0, "", detail);
    for (what, costly) in ["read", "write"].into_iter().zip(steps.costly) {
        let name = format!("{what}, a hit: locked, fences, system calls");
        table.at_most(&name, costly, 0.0, "", "of its instructions");
    }
    let detail = "the client's, for an answer that is there when it looks";
    table.figure("a request to the daemon: instructions", steps.ping, "", detail);
    drop(bench);
    cluster.stop()
}

/// Times dependent accesses: each can begin only after the one before has returned its byte.
fn chain(offsets: &[u64], mut access: impl FnMut(u64) -> u8) -> f64 {
    // The byte does not change the address, but neither the compiler nor the core can know that.
    let none = black_box(0);
    let mut byte = 0;
    time_each(offsets.len(), || {
        for offset in offsets {
            byte = access(offset + u64::from(byte & none));
        }
    })
}

impl Bench {
    fn find_object(&mut self) -> anyhow::Result<()> {
        let mark = 0x6b72_6d61_6863_6e65_u64;
        self.pool.write(self.base, &mark.to_le_bytes())?;
        for at in (0..self.frames.len()).step_by(2 << 20) {
            let mut found = [0; 8];
            self.frames.read(at, &mut found)?;
            if u64::from_le_bytes(found) == mark {
                self.frame_base = at;
                return Ok(());
            }
        }
        anyhow::bail!("the object is not in the frames")
    }

    /// Dependent accesses, where each address depends on the bytes read before, as in a program
    /// that uses what it reads, give the cost of an access. Accesses of a batch, or of a loop that
    /// does nothing else, overlap, and give the most that the memory system can do. The batch
    /// functions prefetch for that; single calls overlap only as far as the core speculates, and a
    /// checked access leaves it less room for that than a plain copy.
    fn random(&self, table: &mut Table) {
        let mut rng = SmallRng::seed_from_u64(2);
        let offsets: Vec<u64> =
            (0..ACCESSES).map(|_| rng.random_range(0..RANGE / LINE) * LINE).collect();
        let detail = |pair: &Pair| format!("{:.1} ns against {:.1} ns", pair.ours, pair.peer);
        let few = &offsets[..ACCESSES / 4];
        for (name, writes) in [("read", false), ("read and write back", true)] {
            let pair = in_turn(|| self.pool_chain(few, writes), || self.plain_chain(few, writes));
            let name = format!("{name}, random, one after the other");
            table.at_most(&name, pair.ratio, 1.15, "x", &detail(&pair));
        }
        let reads = || self.plain_reads(&offsets);
        let writes = || self.plain_writes(&offsets);
        let batch = in_turn(|| self.batched_reads(&offsets), reads);
        table.at_most("read_batch of 64, overlapping", batch.ratio, 1.3, "x", &detail(&batch));
        let batch = in_turn(|| self.batched_writes(&offsets), writes);
        table.at_most("write_batch of 64, overlapping", batch.ratio, 1.3, "x", &detail(&batch));
        let read = in_turn(|| self.pool_reads(&offsets), reads);
        table.figure("single reads in a bare loop, overlapping", read.ratio, "x", &detail(&read));
        let write = in_turn(|| self.pool_writes(&offsets), writes);
        table.figure(
            "single writes in a bare loop, overlapping",
            write.ratio,
            "x",
            &detail(&write),
        );
    }

    fn pool_chain(&self, offsets: &[u64], writes: bool) -> f64 {
        let mut bytes = [0; 64];
        chain(offsets, |offset| {
            let addr = GlobalAddr::from_raw(self.base.raw() + offset);
            self.pool.read(addr, &mut bytes).expect("a good address");
            if writes {
                self.pool.write(addr, &bytes).expect("a good address");
            }
            bytes[0]
        })
    }

    fn plain_chain(&self, offsets: &[u64], writes: bool) -> f64 {
        let mut bytes = [0; 64];
        chain(offsets, |offset| {
            let at = self.frame_base + offset;
            self.frames.read(at, &mut bytes).expect("a good offset");
            if writes {
                self.frames.write(at, &bytes).expect("a good offset");
            }
            bytes[0]
        })
    }

    fn batched_reads(&self, offsets: &[u64]) -> f64 {
        let mut lines = [[0; 64]; BATCH];
        time_each(offsets.len(), || {
            for offsets in offsets.chunks_exact(BATCH) {
                let mut targets = lines.iter_mut();
                let mut batch: [ReadRequest<'_>; BATCH] = std::array::from_fn(|i| ReadRequest {
                    addr: GlobalAddr::from_raw(self.base.raw() + offsets[i]),
                    into: targets.next().expect("as many lines as requests").as_mut_slice(),
                });
                self.pool.read_batch(&mut batch).expect("good addresses");
                black_box(&lines);
            }
        })
    }

    fn batched_writes(&self, offsets: &[u64]) -> f64 {
        let bytes = [7; 64];
        time_each(offsets.len(), || {
            for offsets in offsets.chunks_exact(BATCH) {
                let batch: [WriteRequest<'_>; BATCH] = std::array::from_fn(|i| WriteRequest {
                    addr: GlobalAddr::from_raw(self.base.raw() + offsets[i]),
                    from: black_box(&bytes),
                });
                self.pool.write_batch(&batch).expect("good addresses");
            }
        })
    }

    fn pool_writes(&self, offsets: &[u64]) -> f64 {
        let bytes = [7; 64];
        time_each(offsets.len(), || {
            for offset in offsets {
                let addr = GlobalAddr::from_raw(self.base.raw() + offset);
                self.pool.write(addr, black_box(&bytes)).expect("a good address");
            }
        })
    }

    fn plain_writes(&self, offsets: &[u64]) -> f64 {
        let bytes = [7; 64];
        time_each(offsets.len(), || {
            for offset in offsets {
                self.frames
                    .write(self.frame_base + offset, black_box(&bytes))
                    .expect("a good offset");
            }
        })
    }

    fn pool_reads(&self, offsets: &[u64]) -> f64 {
        let mut bytes = [0; 64];
        time_each(offsets.len(), || {
            for offset in offsets {
                let addr = GlobalAddr::from_raw(self.base.raw() + offset);
                self.pool.read(addr, &mut bytes).expect("a good address");
                black_box(&bytes);
            }
        })
    }

    fn plain_reads(&self, offsets: &[u64]) -> f64 {
        let mut bytes = [0; 64];
        time_each(offsets.len(), || {
            for offset in offsets {
                self.frames.read(self.frame_base + offset, &mut bytes).expect("a good offset");
                black_box(&bytes);
            }
        })
    }

    /// All accesses hit the first-level cache, so the cost of the path itself remains.
    fn hot(&self, table: &mut Table) {
        let offsets: Vec<u64> = (0..ACCESSES as u64).map(|i| (i % 64) * LINE).collect();
        let mut line = |name, pair: Pair| {
            let detail = format!("{:.1} ns against {:.1} ns", pair.ours, pair.peer);
            table.at_most(name, pair.difference, 12.0, "ns", &detail);
        };
        let ours = || self.pool_reads(&offsets);
        let read = in_turn(ours, || self.plain_reads(&offsets));
        line("read, cache-hot: above the plain copy", read);
        let ours = || self.pool_writes(&offsets);
        let write = in_turn(ours, || self.plain_writes(&offsets));
        line("write, cache-hot: above the plain copy", write);
    }

    /// Long reads into a destination for which a processor's string instructions copy byte by byte.
    fn long(&self, table: &mut Table) {
        const PAGE: usize = 4096;
        const LEN: usize = 64 << 10;
        const ABOVE: usize = 8;
        let mut memory = vec![0; LEN + PAGE];
        let first = memory.as_ptr().align_offset(PAGE);
        let into = std::cell::RefCell::new(&mut memory[first..first + LEN]);
        let read = |from: usize| {
            let from = self.base.add(from as u64).expect("within the object");
            time_each(1000, || {
                for _ in 0..1000 {
                    self.pool.read(from, &mut into.borrow_mut()).expect("a local page");
                }
            })
        };
        let pair = in_turn(|| read(PAGE - ABOVE), || read(0));
        let name = "64 KiB to 8 B above its place in a page, against to its place";
        let detail = format!("{:.0} ns against {:.0} ns", pair.ours, pair.peer);
        table.at_most(name, pair.ratio, 2.0, "x", &detail);
    }

    /// The cost of telling the daemon which pages are hot. While the daemon is stopped no samples
    /// are collected, and after some ten thousand accesses a thread samples one of 4,096; otherwise
    /// it returns to one of 16 every 10 ms.
    fn hotness(&self, table: &mut Table, daemon: &Child) -> anyhow::Result<()> {
        let offsets: Vec<u64> = (0..LONG as u64).map(|i| (i % 64) * LINE).collect();
        let (settle, measured) = offsets.split_at(ACCESSES);
        let mut failed = None;
        let mut turn = |signal, access: &dyn Fn(&[u64]) -> f64| {
            failed = failed.take().or(daemon.signal(signal).err());
            access(settle);
            access(measured)
        };
        for (what, access) in [
            ("read", &(|offsets: &[u64]| self.pool_reads(offsets)) as &dyn Fn(&[u64]) -> f64),
            ("write", &|offsets: &[u64]| self.pool_writes(offsets)),
        ] {
            let turn = std::cell::RefCell::new(&mut turn);
            let pair = in_turn(
                || turn.borrow_mut()(Signal::SIGCONT, access),
                || turn.borrow_mut()(Signal::SIGSTOP, access),
            );
            let detail = format!("{:.2} ns against {:.2} ns", pair.ours, pair.peer);
            let name = format!("{what}, cache-hot: hotness collected against not");
            table.at_most(&name, pair.ratio, 1.03, "x", &detail);
        }
        daemon.signal(Signal::SIGCONT)?;
        failed.map_or(Ok(()), Err)
    }
}
