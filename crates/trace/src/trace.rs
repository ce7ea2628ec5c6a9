use std::collections::BTreeMap;

use rackpool_model::{Access, PageId, RackId};

/// One access of a rack to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessed {
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    /// The page.
    pub page: PageId,
    /// The rack.
    pub rack: RackId,
    /// The kind of access.
    pub access: Access,
}

/// The memory of a rack when the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackFrames {
    /// The rack.
    pub rack: RackId,
    /// The first page id of the rack's memory; there are as many ids as frames.
    pub first: PageId,
    /// Its frames.
    pub frames: u32,
    /// Frames that held no page.
    pub free: u32,
}

impl RackFrames {
    /// Returns true if the page's id was assigned to this rack's memory.
    #[must_use]
    pub const fn bore(&self, page: PageId) -> bool {
        page.0 >= self.first.0 && page.0 - self.first.0 < self.frames
    }
}

/// A checked recording: it contains every rack and page that its accesses name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The racks of the pool, in order of their page ids.
    pub racks: Vec<RackFrames>,
    /// The homes of pages that had moved before their first access.
    pub homes: BTreeMap<PageId, RackId>,
    /// All accesses in order of time.
    pub accesses: Vec<Accessed>,
}

impl Trace {
    /// Returns a page's home at its first access; `None` if there is no such page.
    #[must_use]
    pub fn home(&self, page: PageId) -> Option<RackId> {
        let born = || self.racks.iter().find(|rack| rack.bore(page)).map(|rack| rack.rack);
        self.homes.get(&page).copied().or_else(born)
    }

    /// Returns the time from the first access to the last, in nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        match (self.accesses.first(), self.accesses.last()) {
            (Some(first), Some(last)) => last.at_ns.saturating_sub(first.at_ns),
            _ => 0,
        }
    }

    /// Returns the number of pages accessed.
    #[must_use]
    pub fn pages(&self) -> usize {
        let mut pages: Vec<u32> = self.accesses.iter().map(|access| access.page.0).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }
}
