//! Pages that have arrived and can't be written, because their old home has not reported them as
//! quiesced. Operators are warned when that lasts.

use std::collections::BTreeMap;
use std::time::Instant;

use rackpool_model::{PageId, RackId};

use crate::data_plane::DataPlane;

/// Since when each of the pages has been here, as far as this daemon knows, and whether that was
/// logged.
#[derive(Debug, Default)]
pub(super) struct Unleft {
    since: BTreeMap<PageId, (Instant, bool)>,
}

impl Unleft {
    /// The page can be written, or is not here any more.
    pub(super) fn forget(&mut self, page: PageId) {
        self.since.remove(&page);
    }
}

impl DataPlane {
    /// Called when a rack is asked whether it has quiesced the pages that came from it. Warns once
    /// for each page if that takes longer than a lease.
    pub(super) fn tell_of_unleft(&mut self, now: Instant, rack: RackId) {
        let waits = self.machine.swap().waits().filter(|waits| waits.peer == rack);
        let machine = self.machine.swap();
        for page in waits.filter_map(|waits| waits.comes).filter(|page| !machine.is_lost(*page)) {
            let (since, told) = self.swaps.unleft.since.entry(page).or_insert((now, false));
            if now.saturating_duration_since(*since) > self.lease && !*told {
                *told = true;
                let use_of_it = match self.slab.lookup(page) {
                    Some(_) => "it can be read and not written",
                    None => "what was written there last has not come, so it can't be used",
                };
                tracing::warn!(
                    "{page} has come from {rack}, which does not say that it has left it: {use_of_it} \
                     until that daemon runs again, or until a client there that was stopped in the midst of \
                     a write goes on or ends"
                );
            }
        }
    }
}
