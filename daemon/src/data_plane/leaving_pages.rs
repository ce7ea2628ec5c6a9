//! Leaving pages: first every other rack's lease is returned, then this rack's clients have
//! quiesced the page, then its frame is free.

use std::collections::BTreeSet;

use rackpool_model::PageId;
use rackpool_proto::lease::Users;
use rackpool_shm::access::{Occupants, is_quiesced};
use rackpool_sync::barrier;

use super::DataPlane;

/// The progress of the leaving pages.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    needed: BTreeSet<PageId>,
    clean: BTreeSet<PageId>,
}

impl Leaving {
    /// Records that no other rack uses the page any more. Pages that are not leaving are ignored.
    pub(super) fn clean(&mut self, page: PageId) {
        if self.needed.contains(&page) {
            self.clean.insert(page);
        }
    }
}

impl DataPlane {
    /// Advances every leaving page.
    pub(super) fn drive_leaving(&mut self) -> anyhow::Result<()> {
        if !self.slab.is_leaving() {
            return Ok(());
        }
        if self.slab.take_newly_leaving() {
            barrier::heavy();
        }
        let mut staying = Vec::new();
        for frame in self.slab.take_leaving() {
            let page = self.slab.page_of(frame)?;
            if self.leaving.needed.insert(page) {
                self.page_needed(page, Users::Everyone)?;
            }
            if self.leaving.clean.contains(&page)
                && is_quiesced(frame, Occupants::Everyone, self.clients.access_slots())
            {
                self.leaving.needed.remove(&page);
                self.leaving.clean.remove(&page);
                self.slab.quiesced(frame)?;
                self.swaps.freed(page);
            } else {
                staying.push(frame);
            }
        }
        self.slab.keep_leaving(staying);
        Ok(())
    }
}
