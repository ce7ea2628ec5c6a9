//! `rackpool demo`: two racks, YCSB from both, a report.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::bail;
use rackpool_client::RackId;
use rackpool_model::ByteSize;

use super::signals::Interrupts;
use crate::PoolStores;
use crate::cluster::{Cluster, ClusterOptions};
use crate::report::{self, DemoRun};
use crate::ycsb::{Progress, Style, WorkloadName, render};

/// How large the demo is and where its report goes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder of the report.
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub report: PathBuf,
    /// Records in the table, each with one value of 64 B.
    #[arg(long, default_value_t = 100_000)]
    pub records: u64,
    /// Operations of each workload.
    #[arg(long, default_value_t = 400_000)]
    pub ops: u64,
    /// Threads, spread over the racks.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Racks.
    #[arg(long, default_value_t = 2)]
    pub racks: u16,
    /// Show no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Runs the demo.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let started = report::utc(SystemTime::now());
    let mut cluster_options = ClusterOptions::ephemeral()?;
    cluster_options.racks = options.racks;
    let plan = crate::ycsb::Options {
        workloads: vec![
            WorkloadName::A,
            WorkloadName::B,
            WorkloadName::C,
            WorkloadName::D,
            WorkloadName::F,
        ],
        records: options.records,
        operations: options.ops,
        threads: options.threads,
        verify: true,
        ..Default::default()
    }
    .plan()?;
    println!("starting a metadata server and {} rack daemons on this machine ...", options.racks);
    let cluster = Cluster::start(cluster_options)?;
    remove_when_interrupted(cluster.options().clone())?;
    let pool = facts(&cluster);
    let racks: Vec<RackId> = (0..options.racks).map(RackId).collect();
    let threads = options.threads.div_ceil(racks.len().max(1));
    let stores = PoolStores::open(&cluster.options().dir, &racks, threads, "demo")?;
    println!("running YCSB with clients in every rack; every value read is checked ...\n");
    let session = crate::ycsb::run(&plan, &stores, Progress::new(options.quiet))?;
    drop(stores);
    cluster.stop()?;
    println!("{}", render(&session, Style::of_stdout()));
    let problems = session.problems();
    let run = DemoRun {
        title: format!("rackpool demo: YCSB on {} racks", options.racks),
        started,
        machine: report::machine_facts(),
        pool,
        results: session.phases().cloned().collect(),
        notes: notes(),
        commands: vec![
            "make demo".into(),
            format!(
                "./target/release/rackpool demo --records {} --ops {} --threads {} --racks {}",
                options.records, options.ops, options.threads, options.racks
            ),
        ],
    };
    let paths = report::write(&options.report, &run)?;
    println!("report  {}", paths.html.display());
    println!("plots   {} files beside it", paths.plots.len());
    println!("data    {}", paths.json.display());
    if !problems.is_empty() {
        bail!("the run found wrong data:\n{}", problems.join("\n"));
    }
    Ok(())
}

/// Ctrl-C ends the demo without a trace: its processes end with this one.
fn remove_when_interrupted(options: ClusterOptions) -> anyhow::Result<()> {
    let interrupts = Interrupts::catch()?;
    std::thread::spawn(move || {
        if matches!(interrupts.wait(|| None::<()>), Ok(None)) {
            options.remove_files();
            eprintln!("\ninterrupted");
            std::process::exit(130);
        }
    });
    Ok(())
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
                "emulated, {} us one way, {} Gbit/s",
                options.latency_us, options.bandwidth_gbps
            ),
        ),
        fact("store", "hash table in the pool, used by all clients at once, no server".into()),
    ]
}

fn notes() -> Vec<String> {
    vec![
        "Each worker thread is a client in one rack. A record lies in the rack whose client wrote \
         it last; the other rack reaches it through the fabric, so about half of all accesses are \
         remote."
            .into(),
        "Every value read is checked against its key; a wrong or missing one fails the run.".into(),
    ]
}
