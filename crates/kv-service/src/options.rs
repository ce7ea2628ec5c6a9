use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use rackpool_client::RackId;
use rackpool_config::{ConfigFile, listen_address};
use rackpool_model::ByteSize;

/// Serves a table in the pool to programs that speak to Redis.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-kv", version)]
pub struct Options {
    /// The file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// Folder of the pool.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// The rack this program runs in.
    #[arg(long, default_value = "0", value_parser = parse_rack)]
    pub rack: RackId,
    /// Where to listen; a loopback address, port 0: a free one [default: 127.0.0.1:6379, unless
    /// --unix is given].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub listen: Option<SocketAddr>,
    /// Unix socket to listen at, too.
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// Threads that serve, each with a loop of its own [default: one for each core but one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Name of the table, which is made when there is none. All instances with the same name serve
    /// the same data, as do programs that open it with the library.
    #[arg(long, value_name = "NAME", default_value = "kv")]
    pub table: String,
    /// Connections there may be at once [default: 10000, or what the limit of open files allows].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: Option<u32>,
    /// Memory that all connections may hold together, in requests that wait and answers that are
    /// not read; beyond it those that hold most are ended.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub max_client_memory: ByteSize,
    /// Password that clients have to say; better in a file, which others can't see.
    #[arg(long, value_name = "PASSWORD", conflicts_with = "password_file")]
    pub password: Option<String>,
    /// File whose first line is the password that clients have to say.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Serve every user of the host without a password. Otherwise a service without one serves
    /// only processes of its own user and of root.
    #[arg(long, conflicts_with_all = ["password", "password_file"])]
    pub any_user: bool,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input ends: for programs that start services and may be killed.
    #[arg(long)]
    pub stop_with_stdin: bool,
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    text.parse().map(RackId).map_err(|_| "a rack is a number from 0 to 255".into())
}
