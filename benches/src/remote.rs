//! Access to another rack against the fabric's own latency.

use std::time::Instant;

use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_client::{ClientOptions, Pool, RackId};

use crate::cpu::{pin_process, pin_self};
use crate::measure::median;
use crate::table::Table;

const ACCESSES: usize = 100_000;
const LATENCY_US: f64 = 2.0;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    // What is remote stays remote.
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.latency_us = LATENCY_US;
    let mut cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let home = Pool::open(ClientOptions::new(&dir, RackId(1)))?;
    let addr = home.alloc(4096)?;
    home.write(addr, &[9; 4096])?;
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    // The client and its daemon on one core each; the home's daemon has no part in it.
    pin_self(0)?;
    let daemon = cluster.daemon(RackId(0))?.id();
    pin_process(daemon, 1)?;
    table.section("64 B of another rack, client and daemon on one core each");
    let mut bytes = [0; 64];
    let read = microseconds(|| pool.read(addr, &mut bytes).map_err(Into::into))?;
    // 64 B at 100 Gbit/s are 5 ns on the wire.
    let wire = LATENCY_US + 64.0 * 8.0 / 100_000.0;
    let detail = format!("p50 {read:.2} us, fabric {wire:.3} us");
    table.at_most("read: p50 above the fabric's own latency", read - wire, 1.5, "us", &detail);
    let write = microseconds(|| pool.write(addr, &[1; 64]).map_err(Into::into))?;
    let detail = format!("p50 {write:.2} us, fabric {wire:.3} us");
    table.at_most("write: p50 above the fabric's own latency", write - wire, 1.5, "us", &detail);
    let add = microseconds(|| pool.fetch_and_add(addr, 1).map(drop).map_err(Into::into))?;
    table.figure("fetch-and-add: p50", add, "us", "two messages and the home's processor");
    drop(pool);
    drop(home);
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
