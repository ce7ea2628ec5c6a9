//! Local access: the pool against a plain copy from the same mapping.

use std::hint::black_box;

use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId, ReadRequest, WriteRequest};
use rackpool_shm::Mapping;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::pin_self;
use crate::measure::{Pair, in_turn, time_each};
use crate::table::Table;

/// The range of random accesses.
const RANGE: u64 = 1 << 30;
const LINE: u64 = 64;
const ACCESSES: usize = 400_000;
const BATCH: usize = 64;

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
    let cluster = Cluster::start(options)?;
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
    // The object of 1 GiB is the only one: its pages lie in the frames in their order.
    let mut bench = Bench { pool, base, frames, frame_base: 0 };
    bench.find_object()?;
    table.section("local 64 B through Pool against a plain copy from the same mapping");
    bench.random_dependent(table)?;
    bench.random_independent(table);
    bench.hot(table);
    drop(bench);
    cluster.stop()
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

    /// Each read says where the next one goes, as following pointers does: the latency.
    fn random_dependent(&self, table: &mut Table) -> anyhow::Result<()> {
        // A random cycle over all lines, walked in steps: each line holds the number of the next.
        let lines = RANGE / LINE;
        let mut rng = SmallRng::seed_from_u64(1);
        let mut order: Vec<u32> = (0..u32::try_from(lines)?).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.random_range(0..i));
        }
        for (line, next) in (0..).zip(&order) {
            self.pool.write(self.base.add(line * LINE)?, &u64::from(*next).to_le_bytes())?;
        }
        let mut at_pool = 0_u64;
        let mut at_plain = 0_u64;
        let next_of = |bytes: &[u8; 64]| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[..8]);
            u64::from_le_bytes(word)
        };
        let count = ACCESSES / 4;
        let read = in_turn(
            || {
                time_each(count, || {
                    let mut bytes = [0; 64];
                    for _ in 0..count {
                        let addr = GlobalAddr::from_raw(self.base.raw() + at_pool * LINE);
                        self.pool.read(addr, &mut bytes).expect("a good address");
                        at_pool = next_of(&bytes);
                    }
                })
            },
            || {
                time_each(count, || {
                    let mut bytes = [0; 64];
                    for _ in 0..count {
                        self.frames
                            .read(self.frame_base + at_plain * LINE, &mut bytes)
                            .expect("a good offset");
                        at_plain = next_of(&bytes);
                    }
                })
            },
        );
        let detail = format!("{:.1} ns against {:.1} ns", read.ours, read.peer);
        table.at_most("read, random over 1 GiB, dependent", read.ratio, 1.3, "x", &detail);
        Ok(())
    }

    /// Addresses known in advance: what the memory system lets overlap shows. The batch forms
    /// fetch ahead; single calls overlap only as far as the core looks ahead by itself.
    fn random_independent(&self, table: &mut Table) {
        let mut rng = SmallRng::seed_from_u64(2);
        let offsets: Vec<u64> =
            (0..ACCESSES).map(|_| rng.random_range(0..RANGE / LINE) * LINE).collect();
        let mut line = |name, pair: Pair| {
            let detail = format!("{:.1} ns against {:.1} ns", pair.ours, pair.peer);
            table.at_most(name, pair.ratio, 1.3, "x", &detail);
        };
        let reads = || self.plain_reads(&offsets);
        let writes = || self.plain_writes(&offsets);
        line("read_batch of 64, independent", in_turn(|| self.batched_reads(&offsets), reads));
        line("write_batch of 64, independent", in_turn(|| self.batched_writes(&offsets), writes));
        line("single reads, independent", in_turn(|| self.pool_reads(&offsets), reads));
        line("single writes, independent", in_turn(|| self.pool_writes(&offsets), writes));
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

    /// All in the first-level cache: what is left is the path itself.
    fn hot(&self, table: &mut Table) {
        let offsets: Vec<u64> = (0..ACCESSES as u64).map(|i| (i % 64) * LINE).collect();
        let mut line = |name, pair: Pair| {
            let detail = format!("{:.1} ns against {:.1} ns", pair.ours, pair.peer);
            table.at_most(name, pair.difference, 25.0, "ns", &detail);
        };
        let read = in_turn(|| self.pool_reads(&offsets), || self.plain_reads(&offsets));
        line("read, cache-hot: above the plain copy", read);
        let write = in_turn(|| self.pool_writes(&offsets), || self.plain_writes(&offsets));
        line("write, cache-hot: above the plain copy", write);
    }
}
