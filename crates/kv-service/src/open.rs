//! Opening the pool and its tables.

use std::sync::Arc;

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool};
use rackpool_kv::{Options as TableOptions, Table};

use crate::options::Options;

/// Opens the pool for so many threads.
pub(crate) fn pool(options: &Options, threads: u16) -> anyhow::Result<Arc<Pool>> {
    // The main thread, those that sweep and do long commands, and those that end need places as well.
    let threads = threads.saturating_add(8);
    let client = ClientOptions::new(&options.dir, options.rack).threads(threads);
    Ok(Arc::new(Pool::open(client)?))
}

/// The table of this name, which is made when there is none.
pub(crate) fn table(pool: &Arc<Pool>, name: &str) -> anyhow::Result<Table<Arc<Pool>>> {
    let open = || {
        loop {
            if let Some(addr) = pool.root(name)? {
                return Ok(Table::open(Arc::clone(pool), addr)?);
            }
            let table = Table::create(Arc::clone(pool), &table_options(pool.page_bytes()))?;
            if pool.set_root(name, None, Some(table.addr()))?.1 {
                return Ok(table);
            }
            // Somebody else was faster: theirs is used.
            table.destroy()?;
        }
    };
    let opened: anyhow::Result<_> = open();
    opened.with_context(|| format!("can't open the table '{name}'"))
}

/// The largest table that pages of this size allow, up to the usual one.
fn table_options(page_bytes: u64) -> TableOptions {
    let usual = TableOptions::default();
    let entries = (page_bytes / 8).max(1);
    let max_depth = u8::try_from(entries.ilog2()).unwrap_or(usual.max_depth).min(usual.max_depth);
    TableOptions { max_depth, segment_bytes: usual.segment_bytes.min(page_bytes) }
}
