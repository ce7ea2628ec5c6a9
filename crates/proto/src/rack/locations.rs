use alloc::collections::BTreeMap;

use rackpool_model::{PageId, RackId};

use crate::Time;

/// Where pages of other racks were last found.
#[derive(Debug, Default)]
pub struct Locations {
    found: BTreeMap<PageId, KnownLocation>,
}

/// The last known location of a page and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownLocation {
    /// Its home.
    pub home: RackId,
    /// The use of the page, from its slab header.
    pub usage: u64,
    /// Set while the page moves and its home executes writes for others.
    pub forwards: bool,
    /// When the page went there from this rack, if this rack has no later information.
    pub gone: Option<Time>,
}

impl Locations {
    /// Returns where a page was last found.
    #[must_use]
    pub fn of(&self, page: PageId) -> Option<KnownLocation> {
        self.found.get(&page).copied()
    }

    /// Records a page's location as its home has reported it.
    pub fn note_found(&mut self, page: PageId, home: RackId, usage: u64, forwards: bool) {
        self.found.insert(page, KnownLocation { home, usage, forwards, gone: None });
    }

    /// Records the home that the metadata server has named.
    pub fn note_home(&mut self, page: PageId, home: RackId) {
        let usage = self.of(page).map_or(0, |found| found.usage);
        self.note_found(page, home, usage, false);
    }

    /// Records that a page has gone from this rack to another.
    pub(super) fn note_gone(&mut self, now: Time, page: PageId, home: RackId) {
        self.note_home(page, home);
        if let Some(found) = self.found.get_mut(&page) {
            found.gone = Some(now);
        }
    }

    /// Records that the page's home does not write it for others any more.
    pub fn note_unforwarded(&mut self, page: PageId) {
        if let Some(found) = self.found.get_mut(&page) {
            found.forwards = false;
        }
    }

    /// Forgets a page.
    pub fn forget(&mut self, page: PageId) {
        self.found.remove(&page);
    }

    /// Forgets all pages of a rack.
    pub(super) fn forget_home(&mut self, home: RackId) {
        self.found.retain(|_, found| found.home != home);
    }
}
