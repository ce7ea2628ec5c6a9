//! Figure 17: YCSB on a hash table of 64 B pairs, normalised to Fastswap.

use rackpool_report::figures::{Figure, Shape};
use rackpool_ycsb::{Uniform, Zipfian};
use rand::Rng;
use rand::rngs::SmallRng;

use super::{ITEM, Sizes, load, panel, polling_daemons, series, statement};
use crate::baselines::{AccessPath, Kind, Setting, System};

/// A workload of YCSB: its name, and the percentages of operations; the rest are inserts.
struct Workload {
    name: &'static str,
    reads: u32,
    updates: u32,
    is_read_modify_write: bool,
}

const WORKLOADS: [Workload; 5] = [
    Workload { name: "A", reads: 50, updates: 50, is_read_modify_write: false },
    Workload { name: "B", reads: 95, updates: 5, is_read_modify_write: false },
    Workload { name: "C", reads: 100, updates: 0, is_read_modify_write: false },
    Workload { name: "D", reads: 95, updates: 0, is_read_modify_write: false },
    Workload { name: "F", reads: 50, updates: 50, is_read_modify_write: true },
];

/// Pairs that exist from the start, of a hundred places.
const FILLED: u64 = 90;
/// An odd number spreads ranks over a table whose size is a power of two (Knuth's multiplicative
/// hash).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which pairs are used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skew {
    Uniform,
    Zipfian,
}

/// A hash table without collisions: each number has a place of its own.
struct Table {
    places: u64,
    pairs: u64,
    uniform: Uniform,
    zipfian: Zipfian,
}

impl Table {
    fn new(bytes: u64) -> Self {
        let places = bytes / ITEM as u64;
        let pairs = places / 100 * FILLED;
        Self { places, pairs, uniform: Uniform::new(pairs), zipfian: Zipfian::new(pairs) }
    }

    const fn offset(&self, number: u64) -> u64 {
        number.wrapping_mul(SPREAD) % self.places * ITEM as u64
    }

    fn put(&self, path: &mut dyn AccessPath, number: u64) -> anyhow::Result<()> {
        let mut pair = [1; ITEM];
        pair[..8].copy_from_slice(&number.to_le_bytes());
        path.write(self.offset(number), &pair)
    }

    fn get(&self, path: &mut dyn AccessPath, number: u64) -> anyhow::Result<()> {
        let mut pair = [0; ITEM];
        path.read(self.offset(number), &mut pair)?;
        anyhow::ensure!(pair[..8] == number.to_le_bytes(), "pair {number} has another key");
        Ok(())
    }

    /// An operation of a workload.
    fn operate(
        &self,
        workload: &Workload,
        skew: Skew,
        path: &mut dyn AccessPath,
        random: &mut SmallRng,
    ) -> anyhow::Result<()> {
        let rank = match skew {
            Skew::Uniform => self.uniform.next(random),
            Skew::Zipfian => self.zipfian.next(random),
        };
        let kind = random.random_range(0..100);
        if kind < workload.reads {
            return self.get(path, rank);
        }
        if kind < workload.reads + workload.updates {
            if workload.is_read_modify_write {
                self.get(path, rank)?;
            }
            return self.put(path, rank);
        }
        // The places that are not filled take the new pairs.
        self.put(path, random.random_range(self.pairs..self.places))
    }
}

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    // A core for the client and one for its daemon, as in the paper.
    let setting = Setting { spins: true, daemons: polling_daemons()?, ..sizes.setting() };
    let table = Table::new(setting.bytes);
    let skews = [(Skew::Uniform, "uniform"), (Skew::Zipfian, "Zipfian")];
    let mut rates = Vec::new();
    for kind in Kind::ALL {
        let system = kind.start(&setting)?;
        rates.push(rates_of(sizes, &*system, &table, skews.map(|(skew, _)| skew))?);
    }
    let labels = skews.iter().flat_map(|(_, name)| {
        WORKLOADS.iter().map(move |workload| format!("{} {name}", workload.name))
    });
    let names = ("workload", "times Fastswap's throughput");
    let mut normalised = panel("ycsb", "YCSB", names, labels.collect());
    normalised.shape = Shape::Bars;
    let fastswap = rates[1].clone();
    for (kind, rates) in Kind::ALL.into_iter().zip(&rates) {
        let times = rates.iter().zip(&fastswap).map(|(rate, base)| rate / base);
        normalised.series.push(series(kind.name(), times));
    }
    let times: Vec<f64> = rates[0].iter().zip(&fastswap).map(|(rate, base)| rate / base).collect();
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let (uniform, zipfian) = times.split_at(WORKLOADS.len());
    Ok(Figure {
        number: 17,
        title: "YCSB, normalised to Fastswap".into(),
        setting: "Two racks; a client of one uses a hash table of 64 B pairs that has half of its \
                  pages in each. A read is one access, an update one, F's read-modify-write two."
            .into(),
        panels: vec![normalised],
        statements: vec![
            statement(
                "2 to 4 times Fastswap's throughput on each workload",
                format!("at least {:.1} times", least(&times)),
                least(&times) >= 2.0,
                "The emulated fabric's latency bounds both: half of rackpool's accesses go to the \
                 other rack.",
            ),
            statement(
                "up to 3.8 times with a Zipfian distribution",
                format!(
                    "{:.1} to {:.1} times; uniform {:.1} to {:.1}",
                    least(zipfian),
                    most(zipfian),
                    least(uniform),
                    most(uniform)
                ),
                most(zipfian) >= 3.8,
                "A hundredth of the memory holds the most used pairs, so that Fastswap finds many \
                 of them in its local memory.",
            ),
        ],
        notes: vec![
            "Each system has the same table over its reads and writes. rackpool's own key-value \
             table, which survives crashes, is measured by `cargo x bench kv`."
                .into(),
        ],
    })
}

/// Millions of operations a second of each workload, for each distribution.
fn rates_of(
    sizes: &Sizes,
    system: &dyn System,
    table: &Table,
    skews: [Skew; 2],
) -> anyhow::Result<Vec<f64>> {
    let mut client = [system.client(0)?];
    // In the order of their places, which is quick for all systems.
    let mut numbers: Vec<u64> = (0..table.places).collect();
    numbers.sort_by_key(|number| table.offset(*number));
    numbers.into_iter().try_for_each(|number| table.put(&mut *client[0], number))?;
    let mut rates = Vec::new();
    for skew in skews {
        for workload in &WORKLOADS {
            let operation = |path: &mut dyn AccessPath, random: &mut SmallRng| {
                table.operate(workload, skew, path, random)
            };
            // Hot pages move, and caches fill.
            load::rate(&mut client, sizes.settle / 4, &operation)?;
            rates.push(load::rate(&mut client, sizes.time, &operation)? / 1e6);
        }
    }
    Ok(rates)
}
