use std::sync::Arc;

use rackpool_client::{AccessError, GlobalAddr, Pool};
use rackpool_kv::Table;

use crate::layout::header::{StoreHeader, StorePrefix};

/// Calls `visit` with the address of each pool object that the store at `addr` leads to: its
/// header, its seat, its tables and the heads of its objects and replicas. Extents belong to their
/// heads. Only reads. Returns the number of parts that could not be read.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
/// if let Some(addr) = pool.root("images")? {
///     let mut objects = 0;
///     rackpool_objects::walk_store(&pool, addr, |_| objects += 1)?;
///     println!("the store takes {objects} objects of the pool");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// That of a header which can't be read.
pub fn walk_store(
    pool: &Arc<Pool>,
    addr: GlobalAddr,
    mut visit: impl FnMut(GlobalAddr),
) -> Result<u64, AccessError> {
    let mut header = vec![0; StoreHeader::BYTES];
    pool.read(addr, &mut header)?;
    visit(addr);
    let prefix = header.first_chunk().and_then(StorePrefix::decode);
    prefix.map(|prefix| GlobalAddr::from_raw(prefix.seat)).into_iter().for_each(&mut visit);
    let mut unread = 0;
    for table in StoreHeader::tables(&header) {
        let walk = Table::walk(Arc::clone(pool), table, |_, addr, _| visit(addr));
        unread += walk.map_or(1, |walk| walk.unread);
    }
    Ok(unread)
}
