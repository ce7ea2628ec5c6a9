//! `rackpool up`: a pool on this machine.

use std::path::PathBuf;

use anyhow::bail;
use rackpool_model::ByteSize;

use super::DEFAULT_DIR;
use super::signals::Interrupts;
use crate::cluster::{Cluster, ClusterOptions};

/// How `rackpool up` starts a pool.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How many racks: 1 to 256.
    #[arg(long, default_value_t = 2)]
    pub racks: u16,
    /// CXL memory of each rack, emulated by shared memory: like 512M or 8G. Only what is used
    /// takes room.
    #[arg(long, default_value = "1G")]
    pub memory: ByteSize,
    /// Page size: a power of two from 4K to 1G.
    #[arg(long, default_value = "2M")]
    pub page_size: ByteSize,
    /// One-way latency of the emulated fabric in microseconds.
    #[arg(long, default_value_t = 2.0)]
    pub latency_us: f64,
    /// Bandwidth of the emulated fabric in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    pub bandwidth_gbps: f64,
    /// Folder of the pool's memory.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
    /// File of the metadata server's store [default: ~/.local/state/rackpool/metadata.redb].
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Use a fresh folder and remove it at the end. Without this, memory and metadata stay, and
    /// the next `rackpool up` goes on with them.
    #[arg(long, conflicts_with_all = ["dir", "store"])]
    pub ephemeral: bool,
}

fn default_store() -> anyhow::Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    match state.or(home) {
        Some(folder) => Ok(folder.join("rackpool").join("metadata.redb")),
        None => bail!("no HOME to keep the metadata in: name a --store"),
    }
}

fn cluster_options(options: &Options) -> anyhow::Result<ClusterOptions> {
    let mut cluster = ClusterOptions::ephemeral()?;
    if !options.ephemeral {
        cluster.dir = options.dir.clone();
        cluster.store = options.store.clone().map_or_else(default_store, Ok)?;
        cluster.ephemeral = false;
    }
    cluster.racks = options.racks;
    cluster.memory = options.memory.0;
    cluster.page_size = options.page_size.0;
    cluster.latency_us = options.latency_us;
    cluster.bandwidth_gbps = options.bandwidth_gbps;
    Ok(cluster)
}

/// Starts the pool, says what it started, and stops it when asked to.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(cluster_options(options)?)?;
    // Not before: the processes would start with these signals blocked. Ended while it starts, it
    // takes them along, because their standard input ends.
    let interrupts = Interrupts::catch()?;
    describe(&cluster);
    let ended = interrupts.wait(|| cluster.ended())?;
    println!("\nstopping ...");
    let (dir, ephemeral) = (cluster.options().dir.clone(), cluster.options().ephemeral);
    let store = cluster.options().store.clone();
    cluster.stop()?;
    if ephemeral {
        println!("stopped; its memory is gone, as asked");
    } else {
        println!("stopped; the next `rackpool up` goes on with its memory");
        println!("to give it up: rm -r {} {}", dir.display(), store.display());
    }
    match ended {
        Some(reason) => bail!(reason),
        None => Ok(()),
    }
}

fn describe(cluster: &Cluster) {
    let options = cluster.options();
    println!(
        "rackpool is up: {} racks of {}, pages of {}, emulated fabric {} us {} Gbit/s\n",
        options.racks,
        ByteSize(options.memory),
        ByteSize(options.page_size),
        options.latency_us,
        options.bandwidth_gbps
    );
    for (index, process) in cluster.processes().enumerate() {
        let (role, place) = match index.checked_sub(1) {
            None => ("metadata server".to_owned(), cluster.metadata_address().to_owned()),
            Some(rack) => {
                let folder = options.dir.join(format!("rack-{rack}"));
                (format!("rack {rack}"), folder.display().to_string())
            }
        };
        println!("  {role:<16} pid {:<8} {place}", process.id());
        println!("  {:<16} log {}", "", process.log().display());
    }
    let dir = options.dir.display();
    println!("\ntry, in another terminal:");
    println!("  rackpool status --dir {dir}");
    println!("  rackpool ycsb --dir {dir} --workload a,b,c");
    println!("stop with Ctrl-C");
}
