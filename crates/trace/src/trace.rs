use std::collections::BTreeMap;

use rackpool_model::{Access, PageId, RackId};

/// What one rack did with one page at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessed {
    /// Nanoseconds since the recording began.
    pub at_ns: u64,
    /// The page.
    pub page: PageId,
    /// Who.
    pub rack: RackId,
    /// How.
    pub access: Access,
}

/// The memory of a rack when the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackFrames {
    /// The rack.
    pub rack: RackId,
    /// The first of the page ids that were born here; there are as many as frames.
    pub first: PageId,
    /// Its frames.
    pub frames: u32,
    /// Frames that held no page.
    pub free: u32,
}

impl RackFrames {
    /// Whether the page's id was handed out for this rack's memory.
    #[must_use]
    pub const fn bore(&self, page: PageId) -> bool {
        page.0 >= self.first.0 && page.0 - self.first.0 < self.frames
    }
}

/// A recording that was checked: every access is of a rack and a page that it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The racks of the pool, in order of their page ids.
    pub racks: Vec<RackFrames>,
    /// Pages that did not live where they were born when they were first used, and where they did.
    pub homes: BTreeMap<PageId, RackId>,
    /// All accesses in order of time.
    pub accesses: Vec<Accessed>,
}

impl Trace {
    /// Where a page lived when it was first used. `None`: nobody has such a page.
    #[must_use]
    pub fn home(&self, page: PageId) -> Option<RackId> {
        let born = || self.racks.iter().find(|rack| rack.bore(page)).map(|rack| rack.rack);
        self.homes.get(&page).copied().or_else(born)
    }

    /// From the first access to the last one, in nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        match (self.accesses.first(), self.accesses.last()) {
            (Some(first), Some(last)) => last.at_ns.saturating_sub(first.at_ns),
            _ => 0,
        }
    }

    /// How many pages were used.
    #[must_use]
    pub fn pages(&self) -> usize {
        let mut pages: Vec<u32> = self.accesses.iter().map(|access| access.page.0).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    }
}
