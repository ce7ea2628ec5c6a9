//! Which home writes a page of another rack for this one.

use rackpool_model::{PageId, RackId};

use super::RackMachine;
use crate::Time;
use crate::lease::LeaseKind;
use crate::planted_bugs::Bugs;

impl<B: Bugs> RackMachine<B> {
    /// Returns the home that writes the page for this rack without a write lease: the page is
    /// leaving that home, or went there from this rack within the last lease time.
    #[must_use]
    pub fn writing_home(&self, now: Time, page: PageId) -> Option<RackId> {
        let found = self.locations.of(page)?;
        match found.gone {
            Some(gone) if now < gone.after(self.rules.lease.lease) => Some(found.home),
            _ => self.forwarding_home(now, page),
        }
    }

    /// Returns the home of a page that is leased for reading, if the home executes writes for
    /// others.
    #[must_use]
    pub fn forwarding_home(&self, now: Time, page: PageId) -> Option<RackId> {
        let (lease, found) = (self.lease(now, page)?, self.locations.of(page)?);
        let is_meant = found.forwards && lease.home == found.home && lease.kind == LeaseKind::Read;
        is_meant.then_some(found.home)
    }
}
