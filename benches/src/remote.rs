//! Access to another rack compared with the fabric's latency: for a client that accesses without a
//! pause, and for one that accesses now and then, so that client and daemon sleep in between.

use std::time::{Duration, Instant};

use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::cpu::{pin_process, pin_self};
use crate::measure::{median, percentile};
use crate::swap::Polling;
use crate::table::Table;

const ACCESSES: usize = 100_000;
const LATENCY_US: f64 = 2.0;
/// The pause between two occasional accesses, and the number of accesses measured.
const NOW_AND_THEN: (Duration, usize) = (Duration::from_micros(50), 5000);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    // Swaps would make remote objects local.
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.latency_us = LATENCY_US;
    let mut cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let home = Pool::open(ClientOptions::new(&dir, RackId(1)))?;
    let addr = home.alloc(4096)?;
    home.write(addr, &[9; 4096])?;
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    let mut bytes = [0; 64];
    let seldom = now_and_then(|| pool.read(addr, &mut bytes).map_err(Into::into))?;
    // The client and its daemon have a core each; the home's daemon takes no part.
    pin_self(0)?;
    let daemon = cluster.daemon(RackId(0))?.id();
    pin_process(daemon, 1)?;
    table.section("64 B of another rack, client and daemon on one core each");
    let read = microseconds(|| pool.read(addr, &mut bytes).map_err(Into::into))?;
    // 64 B at 100 Gbit/s are 5 ns on the wire.
    let wire = LATENCY_US + 64.0 * 8.0 / 100_000.0;
    let detail = format!("{read:.2} us against {wire:.3} us");
    table.at_most("read: p50 above the fabric's own latency", read - wire, 1.5, "us", &detail);
    let write = microseconds(|| pool.write(addr, &[1; 64]).map_err(Into::into))?;
    let detail = format!("{write:.2} us against {wire:.3} us");
    table.at_most("write: p50 above the fabric's own latency", write - wire, 1.5, "us", &detail);
    let add = microseconds(|| pool.fetch_and_add(addr, 1).map(drop).map_err(Into::into))?;
    table.figure("fetch-and-add: p50", add, "us", "two messages and the home's processor");
    let detail = format!("p90 {:.1} us, p99 {:.1} us", seldom[1], seldom[2]);
    let name =
        format!("read after a pause of {} us, nobody pinned: p50", NOW_AND_THEN.0.as_micros());
    table.figure(&name, seldom[0], "us", &detail);
    drop(pool);
    drop(home);
    cluster.stop()?;
    polling(table)
}

/// Operations that the home's data plane executes, with data planes that poll.
fn polling(table: &mut Table) -> anyhow::Result<()> {
    let polling = Polling::new()?;
    let arguments = [&polling.arguments()[..], &[("--swap", "off")]].concat();
    let arguments = arguments.into_iter().map(|(name, value)| (name, value.to_owned()));
    let mut options = ClusterOptions::ephemeral()?;
    options.latency_us = LATENCY_US;
    options.daemon_arguments = arguments.collect();
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let (home, pool) = (
        Pool::open(ClientOptions::new(&dir, RackId(1)))?,
        Pool::open(ClientOptions::new(&dir, RackId(0)))?,
    );
    let addr = home.alloc(64)?;
    home.write(addr, &[0; 64])?;
    table.section("the same, with data planes that poll on a processor that both racks' share");
    let add = microseconds(|| pool.fetch_and_add(addr, 1).map(drop).map_err(Into::into))?;
    let limit = 4.0 * LATENCY_US + 2.0;
    table.at_most("fetch-and-add: p50", add, limit, "us", "4 latencies and 2 us");
    let mut locks = Vec::with_capacity(ACCESSES / 10);
    for _ in 0..ACCESSES / 10 {
        let start = Instant::now();
        let guard = pool.write_lock(addr, 64)?;
        locks.push(start.elapsed().as_secs_f64() * 1e6);
        guard.unlock()?;
    }
    table.figure("write lock: p50", median(locks), "us", "");
    drop((pool, home));
    cluster.stop()
}

fn microseconds(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut times = Vec::with_capacity(ACCESSES);
    for _ in 0..ACCESSES / 10 {
        work()?;
    }
    for _ in 0..ACCESSES {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// The p50, p90 and p99 of an occasional operation, in microseconds.
fn now_and_then(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<[f64; 3]> {
    let (pause, times) = NOW_AND_THEN;
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        std::thread::sleep(pause);
        let start = Instant::now();
        work()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    took.sort_by(f64::total_cmp);
    Ok([500, 900, 990].map(|permille| percentile(&took, permille)))
}
