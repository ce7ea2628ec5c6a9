//! Clients that come, come back, and go; what the gone ones held is taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_ring::client_file::{ClientFile, Route};
use rackpool_sync::atomic::Ordering;

use super::clients::{Client, object_cells, strike};
use super::{DataPlane, Notice};
use crate::region::Region;

impl DataPlane {
    /// Takes over the file of a client that an earlier daemon served. Objects noted in it that
    /// are not in use were on their way when that daemon died: they are struck out.
    pub(crate) fn adopt(&mut self, id: ClientId, file: Arc<ClientFile>) -> anyhow::Result<()> {
        for thread in 0..file.threads() {
            let slot = file.thread(thread)?;
            for cell in object_cells(slot) {
                let addr = GlobalAddr::from_raw(cell.load(Ordering::Relaxed));
                let page = addr.page(self.rack.geometry.page_size);
                let here = page.is_some_and(|page| self.slab.lookup(page).is_some());
                if here && !self.slab.is_allocated(addr) {
                    cell.store(0, Ordering::Release);
                }
            }
        }
        for route in [Route::Rack, Route::Remote] {
            file.ring(route)?.recover();
        }
        self.insert_client(id, file, None);
        Ok(())
    }

    fn insert_client(&mut self, id: ClientId, file: Arc<ClientFile>, doorbell: Option<OwnedFd>) {
        let region = self.fabric.register(Arc::new(Region(Arc::clone(&file))));
        let client =
            Client { file, region, doorbell, gone: false, returning: 0, refused: BTreeMap::new() };
        self.clients.0.insert(id, client);
    }

    /// Serves a client that has connected, or that has come back. Whether it is served.
    pub(super) fn admit(
        &mut self,
        id: ClientId,
        file: Option<Arc<ClientFile>>,
        doorbell: OwnedFd,
    ) -> anyhow::Result<bool> {
        self.sleeper.watch_client(id, &doorbell)?;
        match (self.clients.0.get_mut(&id), file) {
            (None, Some(file)) => self.insert_client(id, file, Some(doorbell)),
            (Some(client), None) if !client.gone => {
                if let Some(earlier) = client.doorbell.replace(doorbell) {
                    self.sleeper.unwatch(&earlier)?;
                }
            }
            _ => return Ok(false),
        }
        self.publish_figures();
        Ok(true)
    }

    /// A client has gone: everything that stands in its file goes back.
    pub(super) fn client_gone(&mut self, id: ClientId) -> anyhow::Result<()> {
        let Some(client) = self.clients.0.get_mut(&id).filter(|client| !client.gone) else {
            return Ok(());
        };
        client.gone = true;
        // Not forgotten before all of its threads have been looked at.
        client.returning += 1;
        let (region, file) = (client.region, Arc::clone(&client.file));
        if let Some(doorbell) = client.doorbell.take() {
            self.sleeper.unwatch(&doorbell)?;
        }
        self.drop_unposted_of(id);
        self.fabric.unregister(region);
        let page_size = self.rack.geometry.page_size;
        for thread in 0..file.threads() {
            let slot = file.thread(thread)?;
            slot.access.clear();
            let held: BTreeSet<GlobalAddr> = object_cells(slot)
                .map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)))
                .filter(|addr| !addr.is_null())
                .collect();
            let mut elsewhere = Vec::new();
            let mut freed = BTreeSet::new();
            for addr in held {
                let page = addr.page(page_size);
                if page.is_some_and(|page| self.slab.lookup(page).is_some()) {
                    if self.slab.free(addr)?.is_err() {
                        tracing::warn!("client {} held {addr}, which is not in use", id.0);
                    }
                    freed.insert(addr);
                } else {
                    elsewhere.push(addr);
                }
            }
            // Free, then struck out: a daemon killed in between leaves notes of free objects, which
            // its successor strikes out before it hands anything out.
            strike(slot, |addr| freed.contains(&addr));
            if !elsewhere.is_empty() {
                self.free_elsewhere(id, thread, None, &elsewhere)?;
            }
        }
        if let Some(client) = self.clients.0.get_mut(&id) {
            client.returning -= 1;
        }
        self.forget_if_returned(id);
        self.publish_figures();
        Ok(())
    }

    /// Removes a gone client once nothing of what it held is left.
    pub(super) fn forget_if_returned(&mut self, id: ClientId) {
        let done = self.clients.0.get(&id).is_some_and(|c| c.gone && c.returning == 0);
        if done {
            self.clients.0.remove(&id);
            self.notice(Notice::Reclaimed(id));
        }
    }
}
