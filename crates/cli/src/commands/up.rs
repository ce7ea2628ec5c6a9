//! `rackpool up`: a pool on this machine.

use std::path::PathBuf;

use anyhow::bail;
use rackpool_cluster::{Cluster, ClusterOptions, Supervisor};
use rackpool_model::{ByteSize, FabricKind};
use rackpool_output::numbers::counted;
use rackpool_output::{UsageError, banner};
use rackpool_shm::folder;
use rackpool_shm::memory::MemoryKind;

use super::hot_pages::HotPages;
use super::signals::Interrupts;
use crate::pool_arguments::DEFAULT_DIR;

/// How `rackpool up` starts a pool.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of racks: 1 to 256.
    #[arg(long, default_value_t = 2)]
    pub(crate) racks: u16,
    /// Number of daemons in each rack: 1 to 8. They share the rack's programs and its memory.
    #[arg(long, default_value_t = 1)]
    pub(crate) daemons: u16,
    /// Memory of each rack in bytes, or with a suffix like 512M or 8G. It is emulated by shared
    /// memory; a page takes memory when it is first used.
    #[arg(long, default_value = "1G")]
    pub(crate) memory: ByteSize,
    /// Kind of memory: tmpfs (a file in the pool's folder), memfd (freed when the daemon ends),
    /// huge:2M or huge:1G (reserved huge pages), numa:N (a NUMA node), or dax:/dev/daxX.Y (a CXL
    /// device; requires --racks 1 and --daemons 1).
    #[arg(long, default_value = "tmpfs")]
    pub(crate) memory_kind: MemoryKind,
    /// Folder on a disk for the objects that stores with the policy spill move out of memory
    /// [default: none].
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// Extra latency of each local access in nanoseconds, to emulate CXL memory. The Rcmp paper's
    /// emulation adds about 50.
    #[arg(long, default_value_t = 0)]
    pub(crate) cxl_latency_ns: u32,
    /// NUMA node of the data planes' threads and of the clients' files: a number, auto (the node of
    /// the RDMA card, else the node nearest to the memory) or none.
    #[arg(long, default_value = "auto")]
    pub(crate) numa_node: String,
    /// NUMA node of the frames: a number, auto (the node of the RDMA card; another one while
    /// programs compute there) or none. The kinds numa:N and dax have a node of their own.
    #[arg(long, default_value = "auto")]
    pub(crate) frames_node: String,
    /// Dedicated processors of the data planes' threads, one for each daemon in order, like 0,1.
    /// Keep other programs off them [default: any processor].
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub(crate) cpus: Vec<u32>,
    /// Page size: a power of two from 4K to 1G.
    #[arg(long, default_value = "2M")]
    pub(crate) page_size: ByteSize,
    /// Fabric between the racks: emulated (shared memory with a model of latency and bandwidth),
    /// tcp, or verbs (an RDMA device of this host).
    #[arg(long, default_value_t)]
    pub(crate) fabric: FabricKind,
    /// Latency of a one-sided operation or a message on the emulated fabric, in microseconds.
    #[arg(long, default_value_t = 2.0)]
    pub(crate) latency_us: f64,
    /// Bandwidth of each direction of the emulated fabric, in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    pub(crate) bandwidth_gbps: f64,
    /// Lease time in milliseconds: a rack without a heartbeat for this time is down. Raise it if
    /// processes of this host may be paused for longer.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(100..=3_600_000)
    )]
    pub(crate) lease_ms: u64,
    /// Nice value of the data planes' threads: -20 (highest priority) to 19 (lowest) [default: -15
    /// if the process may set it].
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub(crate) nice: Option<i32>,
    /// Maximum wake-up latency of the host's idle processors, in microseconds. 0 keeps them awake,
    /// which costs power [default: the host's setting].
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) wake_latency_us: Option<u32>,
    /// Busy-poll window in milliseconds: a data plane polls for this time after the last request
    /// before it sleeps. Use it with dedicated processors (--cpus). 0 polls for some microseconds
    /// [default: 0].
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(0..=3_600_000))]
    pub(crate) poll_ms: Option<u32>,
    /// The rules for swaps of hot pages.
    #[command(flatten)]
    pub(crate) hot_pages: HotPages,
    /// Folder of the pool, on a memory file system.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
    /// File of the metadata server's store [default: ~/.local/state/rackpool/metadata.redb].
    #[arg(long, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// Use a new folder and remove it at the end. Without this option, memory and metadata are kept
    /// and the next `rackpool up` uses them again.
    #[arg(long, conflicts_with_all = ["dir", "store"])]
    pub(crate) ephemeral: bool,
}

fn default_store() -> anyhow::Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    match state.or(home) {
        Some(folder) => Ok(folder.join("rackpool").join("metadata.redb")),
        None => bail!(UsageError::new(
            "the environment has no HOME for the metadata store: give its file with --store"
        )),
    }
}

fn cluster_options(options: &Options) -> anyhow::Result<ClusterOptions> {
    let mut cluster = ClusterOptions::ephemeral()?;
    if !options.ephemeral {
        cluster.dir = options.dir.clone();
        cluster.store = options.store.clone().map_or_else(default_store, Ok)?;
        cluster.ephemeral = false;
    }
    // Beside the store and not in the pool's memory, which may be full.
    cluster.logs = cluster.store.with_extension("logs");
    (cluster.racks, cluster.daemons) = (options.racks, options.daemons);
    cluster.memory = options.memory.0;
    cluster.page_size = options.page_size.0;
    cluster.memory_kind = options.memory_kind.clone();
    cluster.cxl_latency_ns = options.cxl_latency_ns;
    cluster.numa_node.clone_from(&options.numa_node);
    cluster.frames_node.clone_from(&options.frames_node);
    cluster.cpus.clone_from(&options.cpus);
    if let (MemoryKind::Dax(device), 2..) = (&options.memory_kind, cluster.all_daemons()) {
        bail!(UsageError::new(format!(
            "--memory-kind dax:{} is one device, which holds the memory of one daemon only: give --racks 1 and --daemons 1, or start a rackpool-daemon with a device of its own for each (daxctl divides a region into devices)",
            device.display()
        )));
    }
    cluster.fabric = options.fabric;
    cluster.latency_us = options.latency_us;
    cluster.bandwidth_gbps = options.bandwidth_gbps;
    cluster.lease_ms = options.lease_ms;
    cluster.daemon_arguments = options.hot_pages.arguments().map_err(UsageError::new)?;
    if let Some(dir) = &options.spill_dir {
        let dir = std::path::absolute(dir)?;
        folder::require_text(&dir).map_err(UsageError::new)?;
        cluster.daemon_arguments.push(("--spill-dir", dir.display().to_string()));
    }
    cluster.daemon_arguments.extend(options.nice.map(|nice| ("--nice", nice.to_string())));
    let bound = options.wake_latency_us.map(|bound| ("--wake-latency-us", bound.to_string()));
    cluster.daemon_arguments.extend(bound);
    cluster.daemon_arguments.extend(options.poll_ms.map(|time| ("--poll-ms", time.to_string())));
    Ok(cluster)
}

/// Starts the pool, describes it, restarts processes that die, and stops the pool on a signal.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cluster = Cluster::start(cluster_options(options)?)?;
    // Caught only now: otherwise the processes would start with these signals blocked. If this
    // command is ended during the start the processes end as well, because their standard input
    // ends.
    let interrupts = Interrupts::catch()?;
    describe(&cluster);
    let mut supervisor = Supervisor::new(&cluster);
    let given_up_on = interrupts.wait(|| supervisor.look(&mut cluster, banner).err())?;
    banner(format_args!("\nstopping ..."));
    let (dir, ephemeral) = (cluster.options().dir.clone(), cluster.options().ephemeral);
    let (store, logs) = (cluster.options().store.clone(), cluster.options().logs.clone());
    let outlives = cluster.options().memory_kind.outlives_daemon();
    let mut given_up = vec![dir, store, logs];
    given_up.extend(cluster.options().files_outside());
    cluster.stop()?;
    if ephemeral {
        banner(format_args!("stopped; its memory is gone, as asked"));
    } else {
        if outlives {
            banner(format_args!("stopped; the next `rackpool up` goes on with its memory"));
        } else {
            banner(format_args!(
                "stopped; its memory was of kind memfd and is gone, its metadata stays"
            ));
        }
        let files: Vec<String> = given_up.iter().map(|path| path.display().to_string()).collect();
        banner(format_args!("to delete the pool and its contents: rm -r {}", files.join(" ")));
    }
    given_up_on.map_or(Ok(()), Err)
}

fn describe(cluster: &Cluster) {
    let options = cluster.options();
    banner(format_args!(
        "rackpool is up: {} of {}{}, pages of {}, memory of kind {}, {}\n",
        counted(options.racks.into(), "rack", "racks"),
        ByteSize(options.memory),
        if options.daemons > 1 {
            format!(" with {} daemons each", options.daemons)
        } else {
            String::new()
        },
        ByteSize(options.page_size),
        options.memory_kind,
        cluster.fabric()
    ));
    for (index, process) in cluster.processes().enumerate() {
        let (role, place) = match index.checked_sub(1) {
            None => ("metadata server".to_owned(), cluster.metadata_address().to_owned()),
            Some(rack) => {
                let folder = options.dir.join(format!("rack-{rack}"));
                (format!("rack {rack}"), folder.display().to_string())
            }
        };
        banner(format_args!("  {role:<16} pid {:<8} {place}", process.id()));
        banner(format_args!("  {:<16} log {}", "", process.log().display()));
    }
    let dir = options.dir.display();
    banner(format_args!("\ntry, in another terminal:"));
    banner(format_args!("  rackpool status --dir {dir}"));
    banner(format_args!("  rackpool ycsb --dir {dir} --workload a,b,c"));
    banner(format_args!("stop with Ctrl-C"));
}
