//! The gain and cost of moving hot pages: figures 18 and 20 of the paper, on an emulated fabric of
//! 2 us, with items of 64 B.
//!
//! Clients run in both racks and share all pages, half of which start in each rack. With a Zipfian
//! distribution each rack has its own favourites. With a uniform one both racks use all pages
//! alike, and moving pages gains nothing. Daemons and clients share the two cores.

mod rcmp_microbench;

use std::time::Duration;

use anyhow::Context;
use rackpool_client::RackId;
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_ycsb::{PoolStores, Progress, WorkloadName, YcsbOptions};

use crate::cpu;
use crate::measure::median;
use crate::table::Table;
pub(crate) use rcmp_microbench::Skew;
use rcmp_microbench::{Course, Items, Load};

/// Pages that hold items: 2 MiB each, 32,768 items.
const PAGES: usize = 64;
/// Memory of each rack: twice what its pages need.
const MEMORY: u64 = 128 << 20;
/// Memory of each rack for a table of YCSB.
const TABLE_MEMORY: u64 = 512 << 20;
pub(crate) const SWAP_OFF: (&str, &str) = ("--swap", "off");
const ROUNDS: usize = 5;
const SETTLE: Duration = Duration::from_millis(2500);
const MEASURE: Duration = Duration::from_millis(1500);
/// Runs of YCSB until the pages have moved.
const SETTLING: usize = 8;
pub(crate) const RACKS: [RackId; 2] = [RackId(0), RackId(1)];

/// Arguments of daemons.
type Arguments<'a> = &'a [(&'static str, &'a str)];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("hot pages move: 64 B items of two racks, clients in both (figures 18 and 20)");
    all(table, &[])
}

/// The same measurements with data planes that poll.
pub fn run_polling(table: &mut Table) -> anyhow::Result<()> {
    table.section("the same, with data planes that poll on a processor that both racks' share");
    all(table, &Polling::new()?.arguments())
}

fn all(table: &mut Table, daemons: Arguments<'_>) -> anyhow::Result<()> {
    gain(table, daemons, Skew::Zipfian, 35.0)?;
    gain(table, daemons, Skew::Uniform, -1.0)?;
    thresholds(table, daemons)?;
    local_bound(table, daemons)
}

/// Arguments that make the data planes of all racks poll, on the last processor that this process
/// may use.
pub(crate) struct Polling {
    cpu: String,
}

impl Polling {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let cpu = cpu::usable()?.last().context("no processor to use")?.to_string();
        Ok(Self { cpu })
    }

    pub(crate) fn arguments(&self) -> [(&'static str, &str); 2] {
        [("--cpu", &self.cpu), ("--poll-ms", "100")]
    }
}

pub(crate) fn load(skew: Skew, seed: u64) -> Load {
    Load { skew, racks: RACKS.to_vec(), reads: 50, settle: SETTLE, measure: MEASURE, seed }
}

/// A pool whose daemons get these additional arguments.
pub(crate) fn pool(arguments: Arguments<'_>) -> anyhow::Result<Cluster> {
    pool_of(MEMORY, arguments)
}

/// The same with `memory` bytes in each rack.
fn pool_of(memory: u64, arguments: Arguments<'_>) -> anyhow::Result<Cluster> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = memory;
    let arguments = arguments.iter().map(|(name, value)| (*name, (*value).to_owned()));
    options.daemon_arguments.extend(arguments);
    Cluster::start(options)
}

pub(crate) fn course(
    daemons: Arguments<'_>,
    more: Option<(&'static str, &str)>,
    load: &Load,
) -> anyhow::Result<Course> {
    let cluster = pool(&[daemons, more.as_slice()].concat())?;
    let dir = cluster.options().dir.clone();
    let course = Items::spread(&dir, &RACKS, PAGES)?.run(&dir, load)?;
    cluster.stop()?;
    Ok(course)
}

/// Gain in throughput with swaps over that without, in percent.
fn gain(table: &mut Table, daemons: Arguments<'_>, skew: Skew, limit: f64) -> anyhow::Result<()> {
    let mut gains = Vec::new();
    let (mut with, mut without, mut local) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let load = load(skew, round);
        let off = course(daemons, Some(SWAP_OFF), &load)?.throughput;
        let on = course(daemons, None, &load)?;
        gains.push((on.throughput / off - 1.0) * 100.0);
        with.push(on.throughput / 1e3);
        without.push(off / 1e3);
        local.push(on.local);
    }
    let detail = format!(
        "{:.0} k/s, {:.0} % local; without {:.0} k/s",
        median(with),
        median(local),
        median(without)
    );
    let name = match skew {
        Skew::Uniform => "uniform: gain",
        Skew::Zipfian => "Zipfian 0.99: gain",
    };
    table.at_least(name, median(gains), limit, "%", &detail);
    Ok(())
}

/// A threshold that costs throughput in the paper must not do so here.
fn thresholds(table: &mut Table, daemons: Arguments<'_>) -> anyhow::Result<()> {
    let load = load(Skew::Zipfian, 9);
    let off = course(daemons, Some(SWAP_OFF), &load)?.throughput;
    for hot in ["1", "2", "3", "4", "6", "8", "10"] {
        let on = course(daemons, Some(("--hot", hot)), &load)?;
        let gain = (on.throughput / off - 1.0) * 100.0;
        let detail = format!("{:.0} k/s, {:.0} % local", on.throughput / 1e3, on.local);
        if hot == "1" {
            table.at_least("Zipfian, Hp 1: gain", gain, 35.0, "%", &detail);
        } else {
            table.figure(&format!("Zipfian, Hp {hot}: gain"), gain, "%", &detail);
        }
    }
    Ok(())
}

/// YCSB by a client in rack 0 on a table that was filled from rack 1, compared with one that was
/// filled from rack 0. Filling has made the pages hot in rack 1, so they move only after rack 0 has
/// used them more; the first runs do that.
fn local_bound(table: &mut Table, daemons: Arguments<'_>) -> anyhow::Result<()> {
    let loader = |rack| -> anyhow::Result<Cluster> {
        let cluster = pool_of(TABLE_MEMORY, daemons)?;
        let stores = PoolStores::open(&cluster.options().dir, &[rack], 1, "bound")?;
        let load = YcsbOptions { load: true, ..ycsb(WorkloadName::C) };
        rate_of(&load, &stores)?;
        Ok(cluster)
    };
    let (local, moved) = (loader(RackId(0))?, loader(RackId(1))?);
    for _ in 0..SETTLING {
        let stores = PoolStores::open(&moved.options().dir, &[RackId(0)], 1, "bound")?;
        rate_of(&YcsbOptions { no_load: true, ..ycsb(WorkloadName::B) }, &stores)?;
    }
    for name in [WorkloadName::B, WorkloadName::C, WorkloadName::D] {
        let options = YcsbOptions { no_load: true, ..ycsb(name) };
        let rate = |cluster: &Cluster| -> anyhow::Result<f64> {
            let stores = PoolStores::open(&cluster.options().dir, &[RackId(0)], 1, "bound")?;
            rate_of(&options, &stores)
        };
        let ratios: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| Ok((rate(&moved)?, rate(&local)?)))
            .collect::<anyhow::Result<_>>()?;
        let ratio = median(ratios.iter().map(|(moved, local)| moved / local * 100.0).collect());
        let detail = format!(
            "{:.0} k/s, all local {:.0} k/s",
            median(ratios.iter().map(|pair| pair.0 / 1e3).collect()),
            median(ratios.iter().map(|pair| pair.1 / 1e3).collect())
        );
        let name = format!("YCSB {name:?} against everything local");
        table.at_least(&name, ratio, 85.0, "%", &detail);
    }
    local.stop()?;
    moved.stop()
}

fn ycsb(workload: WorkloadName) -> YcsbOptions {
    YcsbOptions {
        workloads: vec![workload],
        records: 200_000,
        operations: 300_000,
        threads: 1,
        ..YcsbOptions::default()
    }
}

/// Operations per second of the last phase.
pub(crate) fn rate_of(options: &YcsbOptions, stores: &PoolStores) -> anyhow::Result<f64> {
    let session = rackpool_ycsb::run(&options.plan()?, stores, Progress::new(true))?;
    let last = session.phases().last();
    Ok(last.map_or(0.0, |phase| phase.throughput))
}
