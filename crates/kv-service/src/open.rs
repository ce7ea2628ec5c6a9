//! Opening the pool and its tables.

use std::sync::Arc;

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool};
use rackpool_kv::{Table, TableOptions};

use crate::service_options::ServiceOptions;

/// Opens the pool for `threads` threads that serve connections.
pub(crate) fn pool(options: &ServiceOptions, threads: u16) -> anyhow::Result<Arc<Pool>> {
    // The main thread, the sweeps and the threads for long commands also use the pool, as do
    // threads that are just ending.
    let threads = threads.saturating_add(8);
    let client = ClientOptions::new(&options.dir, options.rack).threads(threads);
    Ok(Arc::new(Pool::open(client)?))
}

/// Opens the table with this name, or creates it.
pub(crate) fn table(pool: &Arc<Pool>, name: &str) -> anyhow::Result<Table<Arc<Pool>>> {
    let options = TableOptions::for_pages(pool.page_bytes());
    let opened = Table::open_or_create(Arc::clone(pool), name, &options);
    opened.with_context(|| format!("can't open the table '{name}'"))
}
