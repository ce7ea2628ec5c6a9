//! The arguments that say which pool a command is about.

use std::path::PathBuf;

use rackpool_admin::MetadataServer;
use rackpool_cluster::metadata_address;

/// The default folder of a pool.
pub(crate) const DEFAULT_DIR: &str = "/dev/shm/rackpool";

/// Which pool.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PoolFolder {
    /// Folder of the pool.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    pub(crate) dir: PathBuf,
}

/// Which pool, and how its metadata server is reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WhichPool {
    /// The pool.
    #[command(flatten)]
    pub(crate) pool: PoolFolder,
    /// Address of the metadata server [default: the address in the pool's folder].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metadata: Option<String>,
    /// Folder of an operator's credentials, created by `rackpool credentials`. Needed for a
    /// metadata server on another host.
    #[arg(long, value_name = "DIR")]
    pub(crate) credentials: Option<PathBuf>,
}

impl WhichPool {
    /// Returns a connection to the pool's metadata server.
    ///
    /// # Errors
    /// If no pool runs there, or the credentials can't be used.
    pub(crate) fn server(&self) -> anyhow::Result<MetadataServer> {
        let address = match &self.metadata {
            Some(address) => address.clone(),
            None => metadata_address(&self.pool.dir)?,
        };
        MetadataServer::new(address, self.credentials.as_deref())
    }
}
