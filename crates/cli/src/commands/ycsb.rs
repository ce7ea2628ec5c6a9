//! `rackpool ycsb`: YCSB on the key-value table of a running pool, or on a server.

use std::path::PathBuf;
use std::sync::Arc;

use rackpool_admin::MetadataServer;
use rackpool_cluster::{metadata_address, racks_in};
use rackpool_model::RackId;
use rackpool_output::numbers::grouped;
use rackpool_output::{UsageError, outln};
use rackpool_ycsb::{Place, PoolStores, RespStores, Target, TraceRecorder};

use crate::pool_arguments::PoolFolder;

/// What is run, on what, from where.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Options {
    /// The pool.
    #[command(flatten)]
    pub(crate) pool: PoolFolder,
    /// Store to measure: `direct` (a table in the pool), or a server that speaks the Redis
    /// protocol: `resp://HOST:PORT`, `resp://:PASSWORD@HOST:PORT` or `unix:PATH`. Records in a
    /// server have the layout of YCSB's own Redis binding.
    #[arg(long, value_name = "TARGET", default_value = "direct")]
    pub(crate) target: Target,
    /// Racks of the worker threads, assigned in turn, like 0,1 [default: all racks of the pool].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) racks: Vec<u16>,
    /// Name of the table. It is created if it does not exist.
    #[arg(long, default_value = "ycsb")]
    pub(crate) table: String,
    /// Record the page accesses of each rack in this file, for `rackpool heat replay`. Recording
    /// slows down the run.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The benchmark.
    #[command(flatten)]
    pub(crate) ycsb: rackpool_ycsb::YcsbOptions,
}

/// Runs the workloads. Fails if a value was wrong or missing.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    // Checked before anything is opened, so that a wrong option does not wait for a pool.
    let plan = options.ycsb.plan().map_err(UsageError::new)?;
    if let Target::Resp(server) = &options.target {
        if options.record.is_some() || !options.racks.is_empty() {
            anyhow::bail!(UsageError::new(
                "--racks and --record need --target direct: remove them, or measure a table in the pool"
            ));
        }
        rackpool_ycsb::command(&options.ycsb, &RespStores::new(vec![server.clone()], &plan))?;
        return Ok(());
    }
    let racks = if options.racks.is_empty() {
        racks_in(&options.pool.dir)?
    } else {
        options.racks.iter().copied().map(RackId).collect()
    };
    if racks.is_empty() {
        anyhow::bail!(
            "{} has no racks: start a pool with `rackpool up`, or give the folder of another one with --dir",
            options.pool.dir.display()
        );
    }
    let (dir, table) = (&options.pool.dir, &options.table);
    let threads = plan.threads.div_ceil(racks.len());
    let place = Place { dir, racks: &racks, threads, table, ordered: plan.scans_keys() };
    let Some(file) = &options.record else {
        let stores = PoolStores::at(&place)?;
        rackpool_ycsb::command(&options.ycsb, &stores)?;
        return Ok(());
    };
    let server = MetadataServer::at(metadata_address(dir)?);
    let recorder = Arc::new(TraceRecorder::start(file, server)?);
    let stores = PoolStores::recorded(&place, &recorder)?;
    let outcome = rackpool_ycsb::command(&options.ycsb, &stores);
    // The trace is complete even if printing fails.
    let count = recorder.finish()?;
    outcome?;
    outln!("trace  {} accesses in {}", grouped(count), file.display())?;
    outln!("try    rackpool heat replay {}", file.display())?;
    Ok(())
}
