use std::net::SocketAddr;
use std::path::PathBuf;

use rackpool_config::{ConfigFile, listen_address};

/// The options of the metadata server.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "rackpool-metaserver", version, about = "Serves the metadata of a pool")]
pub struct MetadataServerOptions {
    /// The configuration file
    #[command(flatten)]
    pub config: ConfigFile,

    /// Address to listen on. Without --credentials it must be a loopback address. Port 0 selects a
    /// free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400", value_parser = listen_address)]
    pub listen: SocketAddr,

    /// File of the durable metadata. It is created if it does not exist
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,

    /// Folder of the metadata server's credentials, created by `rackpool credentials`. With
    /// credentials, only parties of the same authority are served
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,

    /// Generate a new key for the pool's fabric. Each daemon gets it when it registers again, and
    /// then uses it to authenticate itself
    #[arg(long)]
    pub new_fabric_key: bool,

    /// Lease time in milliseconds: a rack without a heartbeat for this time is down
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(100..=3_600_000)
    )]
    pub lease_ms: u64,

    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; must be a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,

    /// File to which the server writes its address when it is ready. It is removed at the end
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Stop when standard input closes, so that the server ends with the program that started it
    #[arg(long)]
    pub stop_with_stdin: bool,
}
