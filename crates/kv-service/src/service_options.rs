use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use rackpool_client::RackId;
use rackpool_config::{ConfigFile, listen_address};
use rackpool_model::ByteSize;

use crate::memory_limit::EvictionPolicy;

/// Serves a table in a pool over the Redis protocol.
#[derive(Clone, Debug, Parser)]
#[command(name = "rackpool-kv", version)]
pub struct ServiceOptions {
    /// The configuration file.
    #[command(flatten)]
    pub config: ConfigFile,
    /// Folder of the pool.
    #[arg(long, default_value = "/dev/shm/rackpool")]
    pub dir: PathBuf,
    /// Rack of this host: 0 to 255.
    #[arg(long, default_value = "0", value_parser = parse_rack)]
    pub rack: RackId,
    /// TCP address to listen on; must be a loopback address. Port 0 selects a free port [default:
    /// 127.0.0.1:6379; none if --unix is given].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub listen: Option<SocketAddr>,
    /// Path of a Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// Number of event-loop threads: 1 to 256 [default: the number of cores minus one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Name of the table. It is created if it does not exist. All instances with the same name
    /// serve the same data, and so do programs that open the table with the library.
    #[arg(long, value_name = "NAME", default_value = "kv")]
    pub table: String,
    /// Maximum number of connections [default: 10000, or less if the limit of open files requires
    /// it].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_clients: Option<u32>,
    /// Memory limit for the pending requests and unread answers of all connections together, in
    /// bytes or like 512M. Above it the connections that hold the most are closed.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub max_client_memory: ByteSize,
    /// Memory limit for the entries of the table in the pool, in bytes or like 512M; 0: no limit.
    /// Each instance enforces its own limit against what all instances have stored.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub max_memory: ByteSize,
    /// What happens above --max-memory: commands that need memory fail, keys that were not used for
    /// long through this instance are deleted, or keys that expire soon are.
    #[arg(long, value_name = "POLICY", value_enum, default_value = "noeviction")]
    pub max_memory_policy: EvictionPolicy,
    /// Password of the clients. Other users of the host can see it in the process list: prefer
    /// --password-file.
    #[arg(long, value_name = "PASSWORD", conflicts_with = "password_file")]
    pub password: Option<String>,
    /// File whose first line is the password of the clients.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Serve all users of the host without a password. Without this option and without a password,
    /// only processes of the same user and of root are served.
    #[arg(long, conflicts_with_all = ["password", "password_file"])]
    pub any_user: bool,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics; must be a loopback address.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
    /// Stop when standard input closes, so that the service ends with the program that started it.
    #[arg(long)]
    pub stop_with_stdin: bool,
}

fn parse_rack(text: &str) -> Result<RackId, String> {
    text.parse().map(RackId).map_err(|_| "a rack is a number from 0 to 255".into())
}
