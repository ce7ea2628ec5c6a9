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

/// Serves one rack of a rackpool.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-daemon", version)]
pub struct Options {
    /// The file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// The rack to serve: 0 to 255.
    #[arg(long, value_parser = parse_rack)]
    pub rack: RackId,
    /// Folder of the pool, on a memory file system; the rack's files go to rack-N in it.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Address of the metadata server; one on another host needs credentials.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub metadata: String,
    /// The folder of this rack's credentials, as `rackpool credentials` makes it.
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,
    /// CXL memory of the rack: bytes, or with a suffix like 512M or 8G.
    #[arg(long, default_value = "1G")]
    pub memory: ByteSize,
    /// What the memory is: tmpfs (a file in the pool's folder), memfd (ends with the daemon),
    /// huge:2M or huge:1G (reserved huge pages), numa:N (a NUMA node, as CXL memory is one), or
    /// dax:/dev/daxX.Y (a CXL device).
    #[arg(long, default_value = "tmpfs")]
    pub memory_kind: MemoryKind,
    /// Extra latency of each local access in nanoseconds, to emulate CXL memory on a machine
    /// without: the Rcmp paper's emulation adds about 50.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(delay::MAX_NS)))]
    pub cxl_latency_ns: u32,
    /// Seconds after which the memory of a free frame goes back to the file system; kinds tmpfs and
    /// memfd only [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    pub release_free_after_s: Option<u32>,
    /// NUMA node of the data plane's thread and of the clients' files: a number, auto (that of the
    /// RDMA card, else the one nearest to the memory), or none.
    #[arg(long, default_value = "auto")]
    pub numa_node: NodeChoice,
    /// Dedicated processor of the data plane's thread; the daemon's other threads do not use it.
    /// Keep other programs off it, too. It must belong to the NUMA node [default: any].
    #[arg(long, value_name = "NUMBER")]
    pub cpu: Option<u32>,
    /// Priority of the data plane's thread and of the thread that receives the metadata server's
    /// messages, from -20 (first) to 19 (last). If the process may not set it, the priority stays
    /// unchanged, and `rackpool status` shows that.
    #[arg(long, default_value_t = -15, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-20..=19))]
    pub nice: i32,
    /// Microseconds that idle processors of the host may take to wake, while the daemon runs: 0
    /// keeps them awake, which costs power [default: the host's setting].
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub wake_latency_us: Option<u32>,
    /// Busy-poll window: milliseconds for which the data plane keeps polling for requests after the
    /// last one, before it sleeps. Use it with a dedicated processor (--cpu), which it keeps busy
    /// while requests arrive now and then. With 0 it polls for some microseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600_000))]
    pub poll_ms: u32,
    /// Page size: a power of two from 4K to 1G, the same in the whole pool.
    #[arg(long, default_value = "2M")]
    pub page_size: ByteSize,
    /// How racks reach each other: emulated (racks on one host), tcp (racks anywhere) or verbs
    /// (RDMA). The same in the whole pool.
    #[arg(long, default_value_t)]
    pub fabric: FabricKind,
    /// Where a fabric other than the emulated one listens: the IP address at which the other racks
    /// reach this one, for verbs that of an RDMA port, and a TCP port (0: a free one)
    /// [default: 127.0.0.1:0].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub fabric_listen: Option<SocketAddr>,
    /// RDMA device of the verbs fabric, like mlx5_0 or rxe0, if not the one with the address that
    /// it listens on.
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// Port of the RDMA device, counted from 1, if not the one with the address that the verbs
    /// fabric listens on.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,
    /// GID of the verbs fabric, if not the RoCE v2 one of the address that it listens on.
    #[arg(long, value_name = "INDEX")]
    pub gid_index: Option<u8>,
    /// Latency of the emulated fabric in microseconds: of a one-sided operation or a message.
    #[arg(long, default_value_t = 2.0, value_parser = parse_latency)]
    pub latency_us: f64,
    /// Bandwidth of each direction of the emulated fabric in Gbit/s.
    #[arg(long, default_value_t = 100.0, value_parser = parse_bandwidth)]
    pub bandwidth_gbps: f64,
    /// Lease time in milliseconds; must equal the metadata server's.
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
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input ends: for programs that start daemons and may be killed.
    #[arg(long)]
    pub stop_with_stdin: bool,
}

impl Options {
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
        _ => Err("microseconds from 0 to 10000000".into()),
    }
}

fn parse_bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if gbps >= MIN_BANDWIDTH_GBPS => Ok(gbps),
        _ => Err(format!("Gbit/s from {MIN_BANDWIDTH_GBPS} on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_emulated_that_was_not_asked_for() {
        let options = |more: &[&str]| {
            let words = ["rackpool-daemon", "--rack", "0"].iter().chain(more);
            Options::try_parse_from(words)
        };
        assert_eq!(options(&[]).unwrap().cxl_latency_ns, 0);
        assert_eq!(options(&["--cxl-latency-ns", "50"]).unwrap().cxl_latency_ns, 50);
        let too_much = (delay::MAX_NS + 1).to_string();
        assert!(options(&["--cxl-latency-ns", &too_much]).is_err());
    }
}
