//! The cost of an idle pool, and of a page.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::cpu::{private_bytes, used_seconds};
use crate::table::Table;

/// How long the pool is observed.
const WATCH: Duration = Duration::from_secs(10);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table
        .section("an idle pool of two racks, one client connected to each: of one core, over 10 s");
    idle(table)?;
    table.section("metadata of a page, of 1 Mi pages against 1 page");
    metadata(table)
}

fn idle(table: &mut Table) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(ClusterOptions::ephemeral()?)?;
    let dir = cluster.options().dir.clone();
    let pools = [RackId(0), RackId(1)].map(|rack| Pool::open(ClientOptions::new(&dir, rack)));
    let pools = pools.into_iter().collect::<Result<Vec<_>, _>>()?;
    let addr = pools[0].alloc(64)?;
    pools[1].write(addr, &[1; 64])?;
    std::thread::sleep(Duration::from_secs(1));
    let server = cluster.metadata().id();
    let daemon = cluster.daemon(RackId(0))?.id();
    let before = (used_seconds(server)?, used_seconds(daemon)?);
    std::thread::sleep(WATCH);
    let watch = WATCH.as_secs_f64();
    let share = |before: f64, after: f64| (after - before) / watch * 100.0;
    table.at_most("rack daemon", share(before.1, used_seconds(daemon)?), 1.0, "%", "");
    table.at_most("metadata server", share(before.0, used_seconds(server)?), 1.0, "%", "");
    drop(pools);
    cluster.stop()
}

/// A rack with a million small pages compared with a rack of one page: the difference is everything
/// that grows with the number of pages, in the rack's metadata, the daemon and the metadata server.
fn metadata(table: &mut Table) -> anyhow::Result<()> {
    const PAGES: u64 = 1 << 20;
    let small = footprint(1)?;
    let large = footprint(PAGES)?;
    let mut total = 0.0;
    for (index, name) in ["rack metadata", "daemon's memory", "metadata server's memory", "store"]
        .into_iter()
        .enumerate()
    {
        #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^52")]
        let bytes = large[index].saturating_sub(small[index]) as f64 / (PAGES - 1) as f64;
        total += bytes;
        table.figure(name, bytes, "B", "");
    }
    table.at_most("all of it", total, 64.0, "B", "");
    Ok(())
}

fn footprint(pages: u64) -> anyhow::Result<[u64; 4]> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    options.page_size = 4096;
    options.memory = pages * 4096;
    let mut cluster = Cluster::start(options)?;
    let rack = cluster.options().dir.join("rack-0/metadata");
    let store = std::fs::metadata(&cluster.options().store)?.blocks() * 512;
    let bytes = [
        std::fs::metadata(rack)?.blocks() * 512,
        private_bytes(cluster.daemon(RackId(0))?.id())?,
        private_bytes(cluster.metadata().id())?,
        store,
    ];
    cluster.stop()?;
    Ok(bytes)
}
