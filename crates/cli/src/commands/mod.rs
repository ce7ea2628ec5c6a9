//! The commands of `rackpool`.

pub mod audit;
pub mod credentials;
pub mod demo;
pub mod explain;
pub mod hot_pages;
mod json;
pub mod racks;
pub mod root;
mod roots;
pub mod server;
mod signals;
pub mod status;
pub mod table;
pub mod top;
pub mod up;
pub mod ycsb;

use std::path::PathBuf;

/// The default folder of a pool.
const DEFAULT_DIR: &str = "/dev/shm/rackpool";

/// Which pool.
#[derive(Clone, Debug, clap::Args)]
pub struct PoolFolder {
    /// Folder of the pool.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub dir: PathBuf,
}
