//! The benchmark's store: the key-value table in the pool, from every rack.

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_kv::{Handle, KvError, Options, Table};
use std::path::Path;
use std::sync::Arc;

use crate::ycsb::{Store, StoreError, StoreFactory};

/// A pool opened from several racks, and one table in it.
pub struct PoolStores {
    tables: Vec<(RackId, Table<Arc<Pool>>)>,
    label: String,
}

impl PoolStores {
    /// Opens the pool from each of `racks` and the table named `name`, which is made when there is
    /// none. Each worker thread uses one of the racks in turn.
    pub fn open(dir: &Path, racks: &[RackId], threads: usize, name: &str) -> anyhow::Result<Self> {
        let threads = u16::try_from(threads.saturating_add(2)).unwrap_or(u16::MAX).max(8);
        let mut tables = Vec::new();
        let mut fabric = String::new();
        for rack in racks {
            let options = ClientOptions::new(dir, *rack).threads(threads);
            let pool = Arc::new(Pool::open(options)?);
            fabric = pool.rack_status()?.fabric;
            let table = open_table(&pool, name)
                .with_context(|| format!("can't open the table '{name}' from {rack}"))?;
            tables.push((*rack, table));
        }
        let label = format!("pool of {} racks, {fabric}", tables.len());
        Ok(Self { tables, label })
    }
}

fn open_table(pool: &Arc<Pool>, name: &str) -> anyhow::Result<Table<Arc<Pool>>> {
    loop {
        if let Some(addr) = pool.root(name)? {
            return Ok(Table::open(Arc::clone(pool), addr)?);
        }
        let table = Table::create(Arc::clone(pool), &Options::default())?;
        if pool.set_root(name, None, Some(table.addr()))?.1 {
            return Ok(table);
        }
        // Somebody else was faster: use theirs.
        table.destroy()?;
    }
}

struct KvStore(Handle<Arc<Pool>>);

fn failed<E: std::error::Error + Send + Sync + 'static>(error: KvError<E>) -> StoreError {
    StoreError::new(error)
}

impl Store for KvStore {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.0.get(key, value).map_err(failed)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.0.update(key, value).map_err(failed)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.0.put(key, value).map(drop).map_err(failed)
    }
}

impl StoreFactory for PoolStores {
    fn open(&self, thread: usize) -> Result<Box<dyn Store + '_>, StoreError> {
        let (_, table) = &self.tables[thread % self.tables.len()];
        Ok(Box::new(KvStore(table.handle())))
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn rack_of(&self, thread: usize) -> u16 {
        self.tables[thread % self.tables.len()].0.0
    }
}
