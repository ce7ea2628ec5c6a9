use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rackpool_config::{ConfigFile, listen_address};
use rackpool_fabric::emulated::MIN_BANDWIDTH_GBPS;
use rackpool_model::{ByteSize, FabricKind, RackId};
use rackpool_shm::delay;
use rackpool_shm::memory::MemoryKind;

use crate::placement::NodeChoice;
use crate::swap_options::SwapOptions;

/// Serves one rack of a pool.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-daemon", version)]
pub struct DaemonOptions {
    /// The configuration file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// Rack to serve: 0 to 255.
    #[arg(long, value_parser = parse_rack)]
    pub rack: RackId,
    /// Numbers of all daemons of this rack, this one's (--rack) among them, if it has several on
    /// one CXL memory. Each daemon has memory of its own; the programs of the rack use all of it
    /// with loads and stores [default: this daemon only].
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = parse_rack)]
    pub rack_daemons: Vec<RackId>,
    /// Folder of the pool, on a memory file system. The rack's files are in its subfolder rack-N.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Address of the metadata server. A server on another host requires --credentials.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub metadata: String,
    /// Folder of this rack's credentials, created by `rackpool credentials`.
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,
    /// Memory of the rack in bytes, or with a suffix like 512M or 8G.
    #[arg(long, default_value = "1G")]
    pub memory: ByteSize,
    /// Kind of memory: tmpfs (a file in the pool's folder), memfd (freed when the daemon ends),
    /// huge:2M or huge:1G (reserved huge pages), numa:N (a NUMA node, such as a CXL expander), or
    /// dax:/dev/daxX.Y (a CXL device).
    #[arg(long, default_value = "tmpfs")]
    pub memory_kind: MemoryKind,
    /// Extra latency of each local access in nanoseconds, to emulate CXL memory. The Rcmp paper's
    /// emulation adds about 50.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(delay::MAX_NS)))]
    pub cxl_latency_ns: u32,
    /// Time after which the memory of a free frame is returned to the file system, in seconds. Only
    /// for the memory kinds tmpfs and memfd [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    pub release_free_after_s: Option<u32>,
    /// Folder on a disk for the objects that stores with the policy spill move out of memory. The
    /// rack's files are in its subfolder rack-N. Each pool needs a folder of its own [default:
    /// none].
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,
    /// NUMA node of the data plane's thread and of the clients' files: a number, auto (the node of
    /// the RDMA card, else the node nearest to the memory) or none.
    #[arg(long, default_value = "auto")]
    pub numa_node: NodeChoice,
    /// NUMA node of the frames: a number, auto (the node of the RDMA card; another one while
    /// programs compute there) or none. The kinds numa:N and dax have a node of their own.
    #[arg(long, default_value = "auto")]
    pub frames_node: NodeChoice,
    /// Dedicated processor of the data plane's thread; the daemon's other threads do not use it.
    /// Keep other programs off it, too. It must belong to --numa-node [default: any processor].
    #[arg(long, value_name = "NUMBER")]
    pub cpu: Option<u32>,
    /// Nice value of the data plane's thread and of the thread that receives the metadata server's
    /// messages: -20 (highest priority) to 19 (lowest). If the process may not set it, it stays
    /// unchanged, and `rackpool status` shows that.
    #[arg(long, default_value_t = -15, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub nice: i32,
    /// Maximum wake-up latency of the host's idle processors while the daemon runs, in
    /// microseconds. 0 keeps them awake, which costs power [default: the host's setting].
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub wake_latency_us: Option<u32>,
    /// Busy-poll window in milliseconds: the data plane polls for this time after the last request
    /// before it sleeps. Use it with a dedicated processor (--cpu). 0 polls for some microseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600_000))]
    pub poll_ms: u32,
    /// Page size: a power of two from 4K to 1G. All racks of a pool must use the same.
    #[arg(long, default_value = "2M")]
    pub page_size: ByteSize,
    /// Fabric between the racks: emulated (racks on one host), tcp (racks on any host) or verbs
    /// (RDMA). All racks of a pool must use the same.
    #[arg(long, default_value_t)]
    pub fabric: FabricKind,
    /// Address on which the tcp or verbs fabric listens: an IP address that the other racks reach
    /// (for verbs, the address of an RDMA port), and a TCP port. Port 0 selects a free port
    /// [default: 127.0.0.1:0].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub fabric_listen: Option<SocketAddr>,
    /// RDMA device of the verbs fabric, like mlx5_0 or rxe0 [default: the device with the address
    /// of --fabric-listen].
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// Port of the RDMA device, counted from 1 [default: the port with the address of
    /// --fabric-listen].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,
    /// Index of the GID of the verbs fabric [default: the RoCE v2 GID of the address of
    /// --fabric-listen].
    #[arg(long, value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Latency of a one-sided operation or a message on the emulated fabric, in microseconds.
    #[arg(long, default_value_t = 2.0, value_parser = parse_latency)]
    pub latency_us: f64,
    /// Bandwidth of each direction of the emulated fabric, in Gbit/s.
    #[arg(long, default_value_t = 100.0, value_parser = parse_bandwidth)]
    pub bandwidth_gbps: f64,
    /// Lease time in milliseconds. It must equal --lease-ms of the metadata server.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(100..=3_600_000)
    )]
    pub lease_ms: u64,
    /// Moving and copying of hot pages.
    #[command(flatten)]
    pub swaps: SwapOptions,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; must be a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input closes, so that the daemon ends with the program that started it.
    #[arg(long)]
    pub stop_with_stdin: bool,
}

impl DaemonOptions {
    /// Returns the lease time.
    pub(crate) const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    text.parse().map(RackId).map_err(|_| "a rack is a number from 0 to 255".into())
}

fn parse_latency(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(latency) if (0.0..=1e7).contains(&latency) => Ok(latency),
        _ => Err("give a number of microseconds from 0 to 10000000".into()),
    }
}

fn parse_bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if gbps >= MIN_BANDWIDTH_GBPS => Ok(gbps),
        _ => Err(format!("give a number of Gbit/s, at least {MIN_BANDWIDTH_GBPS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_emulated_that_was_not_asked_for() {
        let options = |more: &[&str]| {
            let words = ["rackpool-daemon", "--rack", "0"].iter().chain(more);
            DaemonOptions::try_parse_from(words)
        };
        assert_eq!(options(&[]).unwrap().cxl_latency_ns, 0);
        assert_eq!(options(&["--cxl-latency-ns", "50"]).unwrap().cxl_latency_ns, 50);
        let too_much = (delay::MAX_NS + 1).to_string();
        assert!(options(&["--cxl-latency-ns", &too_much]).is_err());
    }
}
