//! Opening the pool and its tables.

use std::sync::Arc;

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool};
use rackpool_kv::{Options as TableOptions, Table};

use crate::options::Options;

/// Opens the pool for so many threads.
pub(crate) fn pool(options: &Options, threads: u16) -> anyhow::Result<Arc<Pool>> {
    // The main thread, those that sweep and do long commands, and those that end need places as
    // well.
    let threads = threads.saturating_add(8);
    let client = ClientOptions::new(&options.dir, options.rack).threads(threads);
    Ok(Arc::new(Pool::open(client)?))
}

/// The table of this name, which is made when there is none.
pub(crate) fn table(pool: &Arc<Pool>, name: &str) -> anyhow::Result<Table<Arc<Pool>>> {
    let options = TableOptions::for_pages(pool.page_bytes());
    let opened = Table::open_or_create(Arc::clone(pool), name, &options);
    opened.with_context(|| format!("can't open the table '{name}'"))
}
