use std::net::SocketAddr;
use std::path::PathBuf;

use rackpool_config::{ConfigFile, listen_address};

/// The options of the metadata server.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "rackpool-metaserver", version, about = "The metadata server of a rackpool")]
pub struct Options {
    /// The file
    #[command(flatten)]
    pub config: ConfigFile,

    /// Where to listen; a loopback address unless there are credentials. Port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400", value_parser = listen_address)]
    pub listen: SocketAddr,

    /// The file that holds everything durable; made when it is missing
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,

    /// The folder of the metadata server's credentials, as `rackpool credentials` makes it: then
    /// only parties with credentials of the same authority are served
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,

    /// Draw a new key for the pool's fabric: daemons get it when they register again, and
    /// authenticate with it from then on
    #[arg(long)]
    pub new_fabric_key: bool,

    /// How long a rack counts as alive without a heartbeat, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(100..=3_600_000)
    )]
    pub lease_ms: u64,

    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,

    /// Write the address here once the server is ready, and remove the file when it stops
    #[arg(long, value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Stop when standard input ends: for programs that start servers and may be killed
    #[arg(long)]
    pub stop_with_stdin: bool,
}
