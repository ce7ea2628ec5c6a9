//! The state of a pool at one point in time.

use std::time::Instant;

use rackpool_admin::{MetadataServer, RackLook, look_at_racks};
use rackpool_wire::metadata::PoolStatus;

/// The state of the pool at one point in time.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) address: String,
    pub(super) pool: PoolStatus,
    pub(super) racks: Vec<RackLook>,
}

/// Asks the metadata server and the daemons of this host.
pub(super) fn look(server: &MetadataServer, pages: u16) -> anyhow::Result<Look> {
    let pool = server.status()?;
    let racks = look_at_racks(&pool, pages);
    Ok(Look { at: Instant::now(), address: server.address().to_owned(), pool, racks })
}
