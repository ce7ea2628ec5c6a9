//! The measurements of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use rackpool_admin::{LocatedPages, MetadataServer};
use rackpool_client::Pool;
use rackpool_kv::{Table, TablePart, TableWalk};
use rackpool_model::{GlobalAddr, PageId, PageSize, RackId};
use rackpool_wire::metadata::PoolStatus;

/// The measurements of a table.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) walk: TableWalk,
    pub(super) entries: u64,
    pub(super) segments: u64,
    pub(super) spare_segments: u64,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Number of the table's pages in each rack.
    pub(super) pages: BTreeMap<RackId, u64>,
    pub(super) lost_pages: u64,
}

impl Measured {
    pub(super) fn load_factor(&self) -> f64 {
        let slots = self.segments.saturating_mul(self.walk.segment_entries).max(1);
        #[expect(clippy::cast_precision_loss, reason = "a number for people")]
        let factor = self.entries as f64 / slots as f64;
        factor
    }
}

/// Walks the table, and asks for the home of each of its pages.
pub(super) fn measure(
    server: &MetadataServer,
    status: &PoolStatus,
    pool: Arc<Pool>,
    addr: GlobalAddr,
) -> anyhow::Result<Measured> {
    let size = PageSize::from_bytes(status.page_bytes).context("the pool has no racks")?;
    let mut found = Measured::default();
    let mut pages = BTreeSet::new();
    found.walk = Table::walk(pool, addr, |part, addr, bytes| {
        found.objects += 1;
        found.bytes += bytes.unwrap_or(0);
        pages.extend(addr.page(size));
        match part {
            TablePart::Entry => found.entries += 1,
            TablePart::Segment => found.segments += 1,
            TablePart::SpareSegment => found.spare_segments += 1,
            _ => {}
        }
    })?;
    for (home, count) in homes(server, pages)? {
        match home {
            Some(rack) => drop(found.pages.insert(rack, count)),
            None => found.lost_pages = count,
        }
    }
    Ok(found)
}

/// Counts the pages in each rack. One answer of the metadata server often covers many pages.
fn homes(
    server: &MetadataServer,
    pages: BTreeSet<PageId>,
) -> anyhow::Result<BTreeMap<Option<RackId>, u64>> {
    let mut homes = BTreeMap::new();
    let mut known: Option<LocatedPages> = None;
    for page in pages {
        let home = match known {
            Some(LocatedPages { pages, home }) if pages.contains(page) => Some(home),
            _ => {
                known = server.lookup(page)?;
                known.map(|found| found.home)
            }
        };
        *homes.entry(home).or_default() += 1;
    }
    Ok(homes)
}
