//! Pages on their way out: called back from the racks that lease them, drained of this rack's
//! clients, then free.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rackpool_fabric::EndpointId;
use rackpool_model::PageId;
use rackpool_shm::access::{Drain, is_drained};
use rackpool_sync::barrier;
use rackpool_wire::peer::PeerRequest;

use super::DataPlane;
use super::peers::Purpose;

/// How long the holder of a lease may take to give it back before it is cut off.
const REVOKE: Duration = Duration::from_millis(500);

/// Who leases which page, and which leases have been called back.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    leases: BTreeMap<PageId, BTreeSet<EndpointId>>,
    called_back: BTreeMap<PageId, Instant>,
}

impl Leaving {
    /// Another rack leases the location of a page, over this endpoint.
    pub(super) fn lease(&mut self, page: PageId, endpoint: EndpointId) {
        self.leases.entry(page).or_default().insert(endpoint);
    }

    fn give_back(&mut self, page: PageId, endpoint: EndpointId) {
        if let Some(holders) = self.leases.get_mut(&page) {
            holders.remove(&endpoint);
            if holders.is_empty() {
                self.leases.remove(&page);
            }
        }
    }
}

impl DataPlane {
    /// A holder gives its lease back.
    pub(super) fn lease_returned(&mut self, page: PageId, endpoint: EndpointId) {
        self.leaving.give_back(page, endpoint);
    }

    /// An endpoint has ended: nothing can come over it any more, so its leases are void.
    pub(super) fn lessee_gone(&mut self, endpoint: EndpointId) -> anyhow::Result<()> {
        self.leaving.leases.retain(|_, holders| {
            holders.remove(&endpoint);
            !holders.is_empty()
        });
        Ok(())
    }

    /// Takes every leaving page one step further.
    pub(super) fn drive_leaving(&mut self, now: Instant) -> anyhow::Result<()> {
        if !self.slab.is_leaving() {
            return Ok(());
        }
        if self.slab.take_newly_leaving() {
            barrier::heavy();
        }
        let mut staying = Vec::new();
        for frame in self.slab.take_leaving() {
            let page = self.slab.page_of(frame)?;
            if self.leaving.leases.contains_key(&page) {
                self.call_back(page, now)?;
                staying.push(frame);
            } else if now >= self.earlier_leases_end
                && is_drained(frame, Drain::Everyone, self.clients.access_slots())
            {
                self.leaving.called_back.remove(&page);
                self.slab.drained(frame)?;
            } else {
                staying.push(frame);
            }
        }
        self.slab.keep_leaving(staying);
        Ok(())
    }

    fn call_back(&mut self, page: PageId, now: Instant) -> anyhow::Result<()> {
        let holders = self.leaving.leases.get(&page).cloned().unwrap_or_default();
        match self.leaving.called_back.get(&page) {
            None => {
                self.leaving.called_back.insert(page, now + REVOKE);
                let Some((_, word, _)) = self.slab.lookup(page) else { return Ok(()) };
                for holder in holders {
                    let request = PeerRequest::Revoke { page, epoch: word.epoch() };
                    self.ask_over(holder, request, Purpose::Revoke { page }, now + REVOKE)?;
                }
            }
            // Torn down first, so that no late write can land; then its leases are void.
            Some(deadline) if now > *deadline => {
                for holder in holders {
                    tracing::warn!("a rack does not give {page} back: it is cut off");
                    self.fabric.disconnect(holder);
                }
            }
            Some(_) => {}
        }
        Ok(())
    }
}
