//! The same workload with and without swaps of hot pages.

use std::time::Instant;

use rackpool_admin::rack_status;
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::RackId;
use rackpool_output::numbers::counted;
use rackpool_report::{Ablation, AblationRun, HeatMap};
use rackpool_ycsb::{Distribution, PoolStores, Progress, WorkloadName, WorkloadResult};

use super::heat::Watch;
use super::leftovers::Leftovers;
use super::size::Size;

/// The smallest page size that the table can use: more pages make the swaps visible.
const PAGE_BYTES: u64 = 512 << 10;
/// The rack that stores the records, and the rack that uses them.
const OWNER: RackId = RackId(0);
const USER: RackId = RackId(1);

/// Runs all variants. The heat map shows the Zipfian run with swaps.
pub(super) fn run(
    size: &Size,
    leftovers: &Leftovers,
) -> anyhow::Result<(Ablation, Option<HeatMap>)> {
    let setting = format!(
        "YCSB B: {OWNER} stored {}, {USER} uses them (threads: {}); pages of 512 KiB",
        counted(size.records, "record", "records"),
        size.threads
    );
    let (mut runs, mut map) = (Vec::new(), None);
    for distribution in [Distribution::Uniform, Distribution::Zipfian] {
        for swap in [false, true] {
            let (run, seen) = once(size, distribution, swap, leftovers)?;
            runs.push(run);
            if swap && distribution == Distribution::Zipfian {
                map = seen;
            }
        }
    }
    Ok((Ablation { setting, runs }, map))
}

fn once(
    size: &Size,
    distribution: Distribution,
    swap: bool,
    leftovers: &Leftovers,
) -> anyhow::Result<(AblationRun, Option<HeatMap>)> {
    let mut options = ClusterOptions::ephemeral()?;
    options.page_size = PAGE_BYTES;
    let switch = if swap { "on" } else { "off" };
    options.daemon_arguments = vec![("--swap", switch.to_owned())];
    leftovers.add(&options);
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let progress = Progress::new(size.quiet);
    // Before the load: the map begins with cold pages.
    let (watch, began) = (Watch::start(&dir, &[OWNER, USER]), Instant::now());
    work(size, distribution, &PoolStores::open(&dir, &[OWNER], 1, "swap")?, true, progress)?;
    let stores = PoolStores::open(&dir, &[USER], size.threads, "swap")?;
    let loaded = began.elapsed().as_secs_f64();
    let result = work(size, distribution, &stores, false, progress);
    let map = watch.end(format!(
        "YCSB B, {distribution}: {OWNER} stores the records until {loaded:.1} s, then {USER} uses them"
    ));
    let result = result?;
    drop(stores);
    let socket = |rack| dir.join(format!("rack-{rack}")).join("daemon.sock");
    let (moved, copied_bytes, copies) = (0, 0, 0);
    let mut run = AblationRun { swap, result, moved, copied_bytes, copies, pause_p99_us: None };
    for rack in [OWNER.0, USER.0] {
        let status = rack_status(&socket(rack).display().to_string())?;
        let swaps = status.swaps;
        run.copies += status.sharing.made;
        run.moved += swaps.arrived;
        run.copied_bytes += swaps.copied_bytes;
        run.pause_p99_us = run.pause_p99_us.max(p99(&swaps.pauses));
    }
    cluster.stop()?;
    Ok((run, map))
}

/// Runs the load, or the workload itself.
fn work(
    size: &Size,
    distribution: Distribution,
    stores: &PoolStores,
    load: bool,
    progress: Progress,
) -> anyhow::Result<WorkloadResult> {
    let plan = rackpool_ycsb::YcsbOptions {
        workloads: vec![WorkloadName::B],
        records: size.records,
        // The load phase is followed by as few operations as possible.
        operations: if load { 1 } else { size.operations },
        threads: if load { 1 } else { size.threads },
        distribution: Some(distribution),
        no_load: !load,
        verify: true,
        ..Default::default()
    }
    .plan()?;
    let session = rackpool_ycsb::run(&plan, stores, progress)?;
    let problems = session.problems();
    anyhow::ensure!(problems.is_empty(), "the run found wrong data:\n{}", problems.join("\n"));
    session.workloads.into_iter().next().ok_or_else(|| anyhow::anyhow!("nothing was run"))
}

fn p99(pauses: &[(Option<u64>, u64)]) -> Option<u64> {
    let total: u64 = pauses.iter().map(|(_, count)| count).sum();
    let mut left = total - total / 100;
    let bucket = pauses.iter().find(|(_, count)| {
        left = left.saturating_sub(*count);
        left == 0 && total > 0
    });
    bucket.and_then(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_is_the_bound_of_its_bucket() {
        assert_eq!(p99(&[]), None);
        assert_eq!(p99(&[(Some(10), 99), (Some(20), 1), (None, 0)]), Some(10));
        assert_eq!(p99(&[(Some(10), 98), (Some(20), 2), (None, 0)]), Some(20));
        assert_eq!(p99(&[(Some(10), 0), (None, 1)]), None);
    }
}
