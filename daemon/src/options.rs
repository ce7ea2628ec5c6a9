use std::path::PathBuf;

use clap::Parser;
use rackpool_model::{ByteSize, RackId};

/// Serves one rack of a rackpool.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-daemon", version)]
pub struct Options {
    /// The rack to serve: 0 to 255.
    #[arg(long, value_parser = parse_rack)]
    pub rack: RackId,
    /// Folder of the pool, on a file system that is memory; the rack's files go to rack-N in it.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Address of the metadata server.
    #[arg(long, default_value = "127.0.0.1:7400")]
    pub metadata: String,
    /// CXL memory of the rack: bytes, or with a suffix like 512M or 8G.
    #[arg(long, default_value = "1G")]
    pub memory: ByteSize,
    /// Page size: a power of two from 4K to 1G, the same in the whole pool.
    #[arg(long, default_value = "2M")]
    pub page_size: ByteSize,
    /// One-way latency of the emulated fabric in microseconds.
    #[arg(long, default_value_t = 2.0, value_parser = parse_latency)]
    pub latency_us: f64,
    /// Bandwidth of each direction of the emulated fabric in Gbit/s.
    #[arg(long, default_value_t = 100.0)]
    pub bandwidth_gbps: f64,
    /// Stop when standard input ends: for programs that start daemons and may be killed.
    #[arg(long)]
    pub stop_with_stdin: bool,
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
