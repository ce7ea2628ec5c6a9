//! rackpool: racks with the same number of pages each, and clients in all of them.

use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use super::{AccessPath, Setting, System};

/// Memory of a rack for which no item is allocated.
const SPARE: u64 = 8 << 20;
/// What the paper's emulation of CXL memory adds to an access of the own rack.
const CXL_NS: u32 = 50;

/// A pool, and its pages.
pub(super) struct Rackpool {
    /// Stopped when this is dropped.
    cluster: Mutex<Option<Cluster>>,
    pools: Vec<Arc<Pool>>,
    pages: Arc<[GlobalAddr]>,
}

impl Rackpool {
    pub(super) fn start(setting: &Setting) -> anyhow::Result<Self> {
        let mut options = ClusterOptions::ephemeral()?;
        let page = options.page_size;
        let racks = u16::try_from(setting.racks)?;
        let each = setting.bytes.div_ceil(page).div_ceil(racks.into());
        options.memory = each * page + SPARE;
        options.racks = racks;
        options.latency_us = setting.latency.as_secs_f64() * 1e6;
        options.cxl_latency_ns = CXL_NS;
        options.daemon_arguments.extend(setting.daemons.iter().cloned());
        let cluster = Cluster::start(options)?;
        let dir = cluster.options().dir.clone();
        let open = |rack| Ok(Arc::new(Pool::open(ClientOptions::new(&dir, RackId(rack)))?));
        let pools: Vec<Arc<Pool>> = (0..racks).map(open).collect::<anyhow::Result<_>>()?;
        let mut pages = Vec::new();
        for pool in pools.iter().cycle().take(usize::try_from(setting.bytes.div_ceil(page))?) {
            let addr = pool.alloc(page).context("no room for the items")?;
            ensure!(pool.is_local(addr)?, "{} has no room for its share", pool.rack());
            pool.write(addr, &vec![0; usize::try_from(page)?])?;
            pages.push(addr);
        }
        let system = Self { cluster: Mutex::new(Some(cluster)), pools, pages: pages.into() };
        system.touch(setting.bytes)?;
        Ok(system)
    }

    /// Reads from each page of the processor, so that clients and daemons have mapped it.
    fn touch(&self, bytes: u64) -> anyhow::Result<()> {
        for rack in 0..self.pools.len() {
            let mut client = self.client(rack)?;
            for offset in (0..bytes).step_by(4096) {
                client.read(offset, &mut [0; 8])?;
            }
        }
        Ok(())
    }
}

impl System for Rackpool {
    fn client(&self, rack: usize) -> anyhow::Result<Box<dyn AccessPath>> {
        let pool = Arc::clone(self.pools.get(rack).context("no such rack")?);
        let page_bytes = pool.page_bytes();
        Ok(Box::new(Client { pool, pages: Arc::clone(&self.pages), page_bytes }))
    }
}

impl Drop for Rackpool {
    fn drop(&mut self) {
        self.pools.clear();
        let cluster = self.cluster.lock().ok().and_then(|mut cluster| cluster.take());
        if let Some(Err(error)) = cluster.map(Cluster::stop) {
            eprintln!("the pool does not stop: {error:#}");
        }
    }
}

struct Client {
    pool: Arc<Pool>,
    pages: Arc<[GlobalAddr]>,
    page_bytes: u64,
}

impl Client {
    /// Items lie in the pages in turn, so that each part of the items is in all racks.
    fn addr(&self, offset: u64) -> anyhow::Result<GlobalAddr> {
        let page = usize::try_from(offset / self.page_bytes)?;
        let page = self.pages.get(page).context("an offset outside of the memory")?;
        Ok(page.add(offset % self.page_bytes)?)
    }
}

impl AccessPath for Client {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.pool.read(self.addr(offset)?, into)?)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        Ok(self.pool.write(self.addr(offset)?, from)?)
    }
}
