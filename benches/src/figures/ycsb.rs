//! Figure 17: YCSB on a hash table of 64 B pairs, normalised to Fastswap.

use rackpool_report::figures::{Figure, Shape, Statement};
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
/// An odd factor permutes the places of a table whose size is a power of two.
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
    // A core for the client and one for its daemon, or for what answers it.
    let setting = Setting { homes: 1, spins: true, daemons: polling_daemons()?, ..sizes.setting() };
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
    Ok(Figure {
        id: "17".into(),
        title: "YCSB, normalised to Fastswap".into(),
        setting: "Two racks; a client of one uses a hash table of 64 B pairs that has half of its \
                  pages in each at first; hot ones move. A read is one access, an update one, F's \
                  read-modify-write two."
            .into(),
        statements: statements(&rates),
        panels: vec![normalised],
        notes: vec![
            "Each system has the same table over its reads and writes. rackpool's own key-value \
             table, which survives crashes, is measured by `cargo x bench kv`."
                .into(),
        ],
    })
}

/// The least and the largest of some ratios.
fn range(ratios: impl Iterator<Item = f64>) -> (f64, f64) {
    ratios.fold((f64::INFINITY, 0.0), |(least, most), one| (least.min(one), most.max(one)))
}

/// Places of B, C and D.
const READING: [usize; 6] = [1, 2, 3, 6, 7, 8];

/// `rates` are those of [`Kind::ALL`]: uniform A, B, C, D, F, then Zipfian.
fn statements(rates: &[Vec<f64>]) -> Vec<Statement> {
    let [ours, fastswap, farm, gam, cxl] = rates else { return Vec::new() };
    let chosen = |places: &'static [usize]| {
        range(places.iter().map(|place| ours[*place] / fastswap[*place]))
    };
    let (reading, writing) = (chosen(&READING), chosen(&[0, 4, 5, 9]));
    let zipfian = chosen(&[5, 6, 7, 8, 9]);
    let rdma = [fastswap, farm, gam];
    let rdma = range(rdma.iter().flat_map(|other| ours.iter().zip(*other).map(|(a, b)| a / b)));
    let others = [farm, gam, cxl];
    let others =
        range(others.iter().flat_map(|other| READING.iter().map(|at| other[*at] / fastswap[*at])));
    let times = |(least, most): (f64, f64)| format!("{least:.1} to {most:.1} times");
    vec![
        statement(
            "2 to 4 times the throughput of the systems over RDMA on all workloads",
            times(rdma),
            rdma.0 >= 2.0,
            "Access paths alone are leaner than whole systems: FaRM's reads with one one-sided read, GAM's \
             posts its writes.",
        ),
        statement(
            "about 3 times Fastswap with B, C and D",
            times(reading),
            reading.0 >= 2.5,
            "Fastswap finds the most used pairs in its local memory.",
        ),
        statement(
            "1.5 times Fastswap with A and F",
            times(writing),
            writing.0 >= 1.5,
            "An update of the other rack waits until it is done, Fastswap's store does not.",
        ),
        statement(
            "up to 3.8 times with a Zipfian distribution",
            times(zipfian),
            zipfian.1 >= 3.8,
            "Fastswap finds the most used pairs in its local memory.",
        ),
        statement(
            "FaRM, GAM and CXL over Ethernet have about 1.5 times Fastswap's throughput with B, C, D",
            times(others),
            others.0 >= 1.2 && others.1 <= 2.0,
            "Access paths alone are leaner than whole systems, FaRM's most of all.",
        ),
    ]
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
            load::run(&mut client, sizes.settle / 4, &operation)?;
            rates.push(load::rate(&mut client, sizes, &operation)? / 1e6);
        }
    }
    Ok(rates)
}
