//! `rackpool ycsb`: YCSB on the key-value table of a running pool.

use rackpool_client::RackId;

use super::PoolFolder;
use crate::PoolStores;
use crate::cluster::racks_in;

/// What is run, on which pool, from where.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolFolder,
    /// Racks the threads run in, in turn [default: all].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub racks: Vec<u16>,
    /// Name of the table in the pool.
    #[arg(long, default_value = "ycsb")]
    pub table: String,
    /// The benchmark.
    #[command(flatten)]
    pub ycsb: crate::ycsb::Options,
}

/// Runs the workloads; fails when a value was wrong or missing.
pub fn run(options: &Options) -> anyhow::Result<()> {
    // Said before anything is opened: a wrong option should not wait for a pool.
    options.ycsb.plan()?;
    let racks = if options.racks.is_empty() {
        racks_in(&options.pool.dir)?
    } else {
        options.racks.iter().copied().map(RackId).collect()
    };
    if racks.is_empty() {
        anyhow::bail!(
            "no racks in {}: start a pool with `rackpool up`",
            options.pool.dir.display()
        );
    }
    let threads = options.ycsb.threads.div_ceil(racks.len());
    let stores = PoolStores::open(&options.pool.dir, &racks, threads, &options.table)?;
    crate::ycsb::command(&options.ycsb, &stores)?;
    Ok(())
}
