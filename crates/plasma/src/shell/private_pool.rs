use std::path::Path;

use anyhow::Context;
use rackpool_client::{ClientOptions, RackId};
use rackpool_cluster::{Cluster, ClusterOptions, remove_abandoned, unique_name};

use super::options::PlasmaOptions;

/// What the names of the folders of private pools begin with.
const PREFIX: &str = "rackpool-plasma-";
/// The pages of a private pool.
const PAGE_BYTES: u64 = 2 << 20;
/// Memory for the tables of the store and for pages that are partly used.
const LEAST_BYTES: u64 = 64 << 20;

/// The pool of a service that is given none: one rack, which ends with the service.
#[derive(Debug)]
pub(super) struct PrivatePool(Cluster);

impl PrivatePool {
    /// Starts the pool. Removes what private pools of killed services have left.
    pub(super) fn start(options: &PlasmaOptions) -> anyhow::Result<Self> {
        let mut pool = ClusterOptions::ephemeral()?;
        let default = pool.dir.parent().unwrap_or(Path::new("/tmp")).to_path_buf();
        let folder = options.directory.clone().unwrap_or(default);
        remove_abandoned(&folder, PREFIX);
        let name = unique_name()?;
        pool.dir = folder.join(format!("{PREFIX}{}", name.trim_start_matches("rackpool-")));
        pool.logs.clone_from(&pool.dir);
        pool.store = pool.dir.join("metadata.redb");
        pool.racks = 1;
        pool.page_size = PAGE_BYTES;
        // Memory is taken page by page as it is used. Objects take whole pages or slots of a size
        // class, and a large one needs consecutive pages.
        let bytes = options.memory.saturating_mul(3).saturating_add(LEAST_BYTES);
        pool.memory = bytes.checked_next_multiple_of(PAGE_BYTES).context("-m is too large")?;
        // Without a folder for it the memory has no name, so that nothing is left of a pool that is
        // killed but some small files.
        pool.memory_kind = match (options.hugepages, &options.directory) {
            (true, _) => "huge:2M",
            (false, Some(_)) => "tmpfs",
            (false, None) => "memfd",
        }
        .parse()?;
        Ok(Self(Cluster::start(pool)?))
    }

    /// How a client opens the pool.
    pub(super) fn client_options(&self) -> ClientOptions {
        ClientOptions::new(&self.0.options().dir, RackId(0))
    }

    /// Stops the pool and removes its files.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.0.stop()
    }
}
