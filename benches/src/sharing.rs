//! The gain and cost of copies of read-hot pages: YCSB B and C by clients of two racks on a table
//! in one of them, and the time of one read of a shared page, at home and from a copy.

use std::time::{Duration, Instant};

use rackpool_client::{ClientOptions, GlobalAddr, Pool};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_wire::control::ShareStatus;
use rackpool_ycsb::PoolStores;
use rackpool_ycsb::{WorkloadName, YcsbOptions};

use crate::measure::median;
use crate::swap::{RACKS, pool, rate_of};
use crate::table::Table;

const ROUNDS: usize = 9;
/// Runs until the pages that both racks read have been copied.
const SETTLING: usize = 2;
/// Reads timed together; they take much less time than a scheduler slice.
const READS: u32 = 1000;
const BATCHES: usize = 400;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("read-hot pages are copied: clients in two racks, a table in one of them");
    for workload in [WorkloadName::B, WorkloadName::C] {
        throughput(table, workload)?;
    }
    one_read(table)
}

/// A pool with a table that a client of rack 0 has filled.
fn filled(share: &str) -> anyhow::Result<Cluster> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = 512 << 20;
    options.daemon_arguments = vec![("--share", share.to_owned())];
    let cluster = Cluster::start(options)?;
    let stores = PoolStores::open(&cluster.options().dir, &RACKS[..1], 1, "shared")?;
    rate_of(&YcsbOptions { load: true, ..ycsb(WorkloadName::C, 1) }, &stores)?;
    Ok(cluster)
}

fn throughput(table: &mut Table, workload: WorkloadName) -> anyhow::Result<()> {
    // Pools of one kind differ by the placement of pages and threads; the third pool shows by how
    // much.
    let pools = [filled("on")?, filled("off")?, filled("off")?];
    let rate = |pool: &Cluster| -> anyhow::Result<f64> {
        let stores = PoolStores::open(&pool.options().dir, &RACKS, RACKS.len(), "shared")?;
        rate_of(&YcsbOptions { no_load: true, ..ycsb(workload, RACKS.len()) }, &stores)
    };
    let mut rates = Vec::new();
    for round in 0..SETTLING + ROUNDS {
        let mut of_round = [0.0; 3];
        let mut order: Vec<_> = pools.iter().zip(&mut of_round).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (pool, of_pool) in order {
            *of_pool = rate(pool)?;
        }
        if round >= SETTLING {
            rates.push(of_round);
        }
    }
    let of = |of: &dyn Fn(&[f64; 3]) -> f64| median(rates.iter().map(of).collect());
    let sharing = sharing(&open(&pools[0], 1)?)?;
    let detail = format!(
        "{:.0} k/s, without {:.0} k/s; {} copies were made in rack 1",
        of(&|rates| rates[0] / 1e3),
        of(&|rates| rates[1] / 1e3),
        sharing.made,
    );
    // A write-heavy workload gains nothing and may lose little.
    let (name, limit) = match workload {
        WorkloadName::B => ("YCSB B: gain of copies", -3.0),
        _ => ("YCSB C: gain of copies", 35.0),
    };
    let gain = of(&|[on, off, _]| (on / off - 1.0) * 100.0);
    table.at_least(name, gain, limit, "%", &detail);
    let nothing = of(&|[_, off, other]| (other / off - 1.0) * 100.0);
    let detail = format!("{:.0} k/s", of(&|rates| rates[2] / 1e3));
    table.figure("  \"gain\" of another pool without copies", nothing, "%", &detail);
    pools.into_iter().try_for_each(Cluster::stop)
}

fn ycsb(workload: WorkloadName, threads: usize) -> YcsbOptions {
    YcsbOptions {
        workloads: vec![workload],
        records: 50_000,
        operations: 300_000,
        threads,
        ..YcsbOptions::default()
    }
}

fn open(cluster: &Cluster, rack: usize) -> anyhow::Result<Pool> {
    Ok(Pool::open(ClientOptions::new(&cluster.options().dir, RACKS[rack]))?)
}

fn sharing(pool: &Pool) -> anyhow::Result<ShareStatus> {
    Ok(pool.rack_status()?.sharing)
}

/// One read of 64 B in a shared page, compared with one in a page that is not shared.
fn one_read(table: &mut Table) -> anyhow::Result<()> {
    let cluster = pool(&[])?;
    let racks = [open(&cluster, 0)?, open(&cluster, 1)?];
    let page = racks[0].page_bytes();
    let shared = racks[0].alloc(page)?;
    let own = [racks[0].alloc(page)?, racks[1].alloc(page)?];
    let start = Instant::now();
    // The page may move before it is shared.
    let (home, reader) = loop {
        for pool in &racks {
            batch(pool, shared)?;
        }
        match [sharing(&racks[0])?.copies, sharing(&racks[1])?.copies] {
            [0, 0] => {}
            [0, _] => break (0, 1),
            _ => break (1, 0),
        }
        anyhow::ensure!(start.elapsed() < Duration::from_secs(20), "the page is not copied");
    };
    let (own, theirs) = (own[home], own[reader]);
    let (home, reader) = (&racks[home], &racks[reader]);
    let before = sharing(home)?;
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..BATCHES {
        let each = [(home, shared), (home, own), (reader, shared), (reader, theirs)];
        for ((pool, addr), times) in each.into_iter().zip(&mut times) {
            times.push(batch(pool, addr)?);
        }
    }
    let after = sharing(home)?;
    anyhow::ensure!(after.ended == before.ended, "the page has been written");
    anyhow::ensure!(sharing(reader)?.copies > 0, "the copy has run out");
    let [at_home, unshared, copy, local] = times.map(median);
    let detail = format!("{at_home:.1} ns, of a page that is not shared {unshared:.1} ns");
    table.at_most("a read at home of a shared page", at_home / unshared, 1.1, "x", &detail);
    let detail = format!("of a page of its own {local:.1} ns");
    table.at_most("a read of a copy", copy, 100.0, "ns", &detail);
    drop(racks);
    cluster.stop()
}

/// Nanoseconds of one of many reads.
fn batch(pool: &Pool, addr: GlobalAddr) -> anyhow::Result<f64> {
    let mut bytes = [0; 64];
    let start = Instant::now();
    for number in 0..READS {
        pool.read(addr.add(u64::from(number % 512) * 64)?, &mut bytes)?;
    }
    std::hint::black_box(&bytes);
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(READS))
}
