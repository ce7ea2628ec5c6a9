//! `rackpool demo`: two racks, YCSB from both, a report.

mod ablation;
mod detach;
mod heat;
mod leftovers;
mod mount;
mod objects;
mod redis;
mod redis_server;
mod service;
mod size;

use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use anyhow::bail;
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::{ByteSize, RackId};
use rackpool_output::clock::utc;
use rackpool_output::numbers::{counted, grouped, latency, rounded};
use rackpool_output::{Style, UsageError, outln};
use rackpool_report::{Ablation, Companions, DemoRun, HeatMap, Objects, Redis};
use rackpool_ycsb::{Place, PoolStores, Progress, WorkloadResult, render};

use leftovers::Leftovers;
use size::Size;

/// How large the demo is and where its report goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder for the report.
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) report: PathBuf,
    /// Number of records in the table, each with one value of 64 B.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) records: u64,
    /// Number of operations of each workload.
    #[arg(long, default_value_t = 400_000)]
    pub(crate) ops: u64,
    /// Number of worker threads, spread over the racks.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Number of racks: 1 to 256.
    #[arg(long, default_value_t = 2)]
    pub(crate) racks: u16,
    /// Number of operations of each of the four runs that compare moving pages with pages that
    /// stay. 0 skips these runs.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) swap_ops: u64,
    /// Show no progress.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Options {
    const fn size(&self) -> Size {
        Size {
            records: self.records,
            operations: self.ops,
            threads: self.threads,
            quiet: self.quiet,
        }
    }
}

/// Runs the demo.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (began, started) = (Instant::now(), utc(SystemTime::now()));
    let mut cluster_options = ClusterOptions::ephemeral()?;
    cluster_options.racks = options.racks;
    let (points, scans) = options.size().plans().map_err(UsageError::new)?;
    let racks = options.racks.into();
    let daemons = counted(racks, "rack daemon", "rack daemons");
    outln!("starting a metadata server and {daemons} on this machine ...")?;
    let cluster = Cluster::start(cluster_options)?;
    let leftovers = Leftovers::default();
    leftovers.add(cluster.options());
    leftovers.remove_when_interrupted()?;
    let pool = facts(&cluster);
    let ids: Vec<RackId> = (0..options.racks).map(RackId).collect();
    let threads = options.threads.div_ceil(ids.len().max(1));
    let dir = &cluster.options().dir;
    let place = Place { dir, racks: &ids, threads, table: "demo", ordered: true };
    let stores = PoolStores::at(&place)?;
    outln!("running YCSB with clients in every rack; every value read is checked ...\n")?;
    let progress = Progress::new(options.quiet);
    let mut session = rackpool_ycsb::run(&points, &stores, progress)?;
    session.workloads.extend(rackpool_ycsb::run(&scans, &stores, progress)?.workloads);
    drop(stores);
    outln!("{}", render(&session, Style::of_stdout()))?;
    let mut problems = session.problems();
    let mut companions = companions(options, &cluster, &leftovers)?;
    let objects = objects(options, &cluster, &mut companions.left_out)?;
    problems.extend(companions.service.iter().flat_map(WorkloadResult::problems));
    cluster.stop()?;
    let redis = through_redis(options, &leftovers)?;
    problems.extend(redis.results().iter().flat_map(WorkloadResult::problems));
    let (ablation, heat) = swaps(options, &leftovers)?;
    let run = DemoRun {
        title: format!("rackpool demo: YCSB on {}", counted(racks, "rack", "racks")),
        started,
        machine: rackpool_report::machine_facts(),
        pool,
        results: session.phases().cloned().collect(),
        ablation,
        heat,
        objects,
        companions: Some(companions),
        redis: Some(redis),
        notes: notes(),
        commands: vec![
            "make demo".into(),
            format!(
                "./target/release/rackpool demo --records {} --ops {} --threads {} --racks {}",
                options.records, options.ops, options.threads, options.racks
            ),
        ],
    };
    let paths = rackpool_report::write(&options.report, &run)?;
    outln!("report  {}", paths.html.display())?;
    outln!("plots   {} files beside it", paths.plots.len())?;
    outln!("data    {}", paths.json.display())?;
    outln!("time    {:.0} s", began.elapsed().as_secs_f64())?;
    if !problems.is_empty() {
        bail!("the run found wrong data:\n{}", problems.join("\n"));
    }
    Ok(())
}

/// Runs the workloads through a Redis server of this machine, if there is one.
fn through_redis(options: &Options, leftovers: &Leftovers) -> anyhow::Result<Redis> {
    outln!("the same through Redis on this machine ...\n")?;
    let redis = redis::run(&options.size().through_a_socket(), leftovers)?;
    if let Redis::NotCompared { why } = &redis {
        outln!("  left out  {why}")?;
    }
    for result in redis.results() {
        let rate = grouped(rounded(result.throughput));
        let [p50, p99] =
            [result.overall.p50_ns, result.overall.p99_ns].map(|ns| latency(ns as f64));
        let what = result.description();
        outln!("  {:<4}  {what:<32} {rate:>10} operations/s, p50 {p50}, p99 {p99}", result.name)?;
    }
    outln!()?;
    Ok(redis)
}

/// Runs the key-value service and the mount on the same pool.
fn companions(
    options: &Options,
    cluster: &Cluster,
    leftovers: &Leftovers,
) -> anyhow::Result<Companions> {
    outln!("the same through Redis' protocol, and a file system, in every rack ...\n")?;
    let session = service::run(&options.size().through_a_socket(), cluster)?;
    outln!("{}", render(&session, Style::of_stdout()))?;
    let mut shown =
        Companions { service: session.phases().cloned().collect(), ..Companions::default() };
    match mount::hindrance() {
        Some(why) => {
            outln!("  left out  {why}\n")?;
            shown.left_out.push(why);
        }
        None => {
            shown.mount = mount::run(cluster, leftovers)?;
            for step in &shown.mount {
                outln!("  {:<18} {:<46} {:>15}", step.amount(), step.what, step.rate())?;
            }
            outln!()?;
        }
    }
    Ok(shown)
}

/// Puts and gets objects in two racks of the same pool.
fn objects(
    options: &Options,
    cluster: &Cluster,
    left_out: &mut Vec<String>,
) -> anyhow::Result<Option<Objects>> {
    if options.racks < 2 {
        return Ok(None);
    }
    outln!("objects, read in place in two racks; every byte is checked (medians) ...\n")?;
    let before = left_out.len();
    let objects = objects::run(cluster, left_out)?;
    for times in &objects.sizes {
        outln!("  {:>7}  {}", times.size(), times.times())?;
    }
    for why in &left_out[before..] {
        outln!("  left out  {why}")?;
    }
    outln!()?;
    Ok((!objects.sizes.is_empty()).then_some(objects))
}

/// Runs the workload with and without swaps.
fn swaps(
    options: &Options,
    leftovers: &Leftovers,
) -> anyhow::Result<(Option<Ablation>, Option<HeatMap>)> {
    if options.swap_ops == 0 || options.racks < 2 {
        return Ok((None, None));
    }
    outln!("the same with pages that stay and with pages that move ...\n")?;
    let size = Size { operations: options.swap_ops, ..options.size() };
    let (ablation, heat) = ablation::run(&size, leftovers)?;
    for run in &ablation.runs {
        let how = if run.swap { "hot pages move" } else { "pages stay" };
        let rate = grouped(rounded(run.result.throughput));
        outln!("  {:<14} {how:<15} {rate:>10} operations/s", run.result.distribution)?;
    }
    outln!()?;
    Ok((Some(ablation), heat))
}

fn facts(cluster: &Cluster) -> Vec<(String, String)> {
    let options = cluster.options();
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact("racks", format!("{}, one daemon process each", options.racks)),
        fact(
            "memory",
            format!("{} a rack, emulated CXL in shared memory", ByteSize(options.memory)),
        ),
        fact("pages", ByteSize(options.page_size).to_string()),
        fact(
            "fabric",
            format!(
                "emulated, {} us an operation, {} Gbit/s",
                options.latency_us, options.bandwidth_gbps
            ),
        ),
        fact("store", "hash table in the pool, used by all clients at once, no server".into()),
    ]
}

fn notes() -> Vec<String> {
    vec![
        "Each worker thread is a client in one rack. A record lies in the rack whose client wrote \
         it last, until its page moves; the other rack reaches it through the fabric. So after the \
         load half of the records are remote for each rack; later most lie in the rack that does \
         more of the operations."
            .into(),
        "Equal racks may differ several times, most of all in the load, which changes the table's \
         index with every record: the index's few pages live in one rack at a time, whose clients reach \
         them without a message while the others cross the fabric. Hot pages move between workloads, and \
         so does the advantage."
            .into(),
        "Every value read is checked against its key; a wrong or missing one fails the run.".into(),
    ]
}
