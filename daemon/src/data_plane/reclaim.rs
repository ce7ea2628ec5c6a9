//! Clients that connect, reconnect and leave; reclaims what gone clients held.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_ring::client_file::ClientFile;
use rackpool_shm::marks::ObjectHolder;
use rackpool_sync::atomic::Ordering;

use super::clients::{Client, array_cells, strike};
use super::swap::Work;
use super::{ControlNotification, DataPlane};
use crate::region::Region;

impl DataPlane {
    /// Adopts the file of a client that an earlier daemon served. Objects in it that are not
    /// allocated were being handed over when that daemon died: they are removed from the file.
    pub(crate) fn adopt(&mut self, id: ClientId, file: Arc<ClientFile>) -> anyhow::Result<()> {
        for thread in 0..file.threads() {
            let slot = file.thread(thread)?;
            strike(slot, |addr| {
                let page = addr.page(self.rack.geometry.page_size);
                let is_here = page.is_some_and(|page| self.slab.lookup(page).is_some());
                is_here && !self.slab.is_allocated(addr)
            });
        }
        self.insert_client(id, file, None);
        Ok(())
    }

    fn insert_client(&mut self, id: ClientId, file: Arc<ClientFile>, doorbell: Option<OwnedFd>) {
        let region = self.fabric.register(Arc::new(Region(Arc::clone(&file))));
        self.clients.all.insert(id, Client::new(file, region, doorbell));
    }

    /// Serves a client that has connected or reconnected. Returns whether it is served.
    pub(super) fn admit(
        &mut self,
        id: ClientId,
        file: Option<Arc<ClientFile>>,
        doorbell: OwnedFd,
    ) -> anyhow::Result<bool> {
        self.sleeper.watch_client(id, &doorbell)?;
        match (self.clients.all.get_mut(id), file) {
            (None, Some(file)) => self.insert_client(id, file, Some(doorbell)),
            (Some(client), None) if !client.gone => {
                if let Some(earlier) = client.doorbell.replace(doorbell) {
                    self.sleeper.unwatch(&earlier)?;
                }
            }
            _ => return Ok(false),
        }
        self.publish_metrics();
        Ok(true)
    }

    /// A client has gone: reclaims everything that its file holds.
    pub(super) fn client_gone(&mut self, id: ClientId) -> anyhow::Result<()> {
        let Some(client) = self.clients.all.get_mut(id).filter(|client| !client.gone) else {
            return Ok(());
        };
        client.gone = true;
        self.active_set.lose(id);
        // Keeps the client known until all of its threads were handled.
        client.returning += 1;
        let (region, file) = (client.region, Arc::clone(&client.file));
        if let Some(doorbell) = client.doorbell.take() {
            self.sleeper.unwatch(&doorbell)?;
        }
        self.drop_unposted_of(id)?;
        self.drop_unsent_of(id);
        self.fabric.unregister(region);
        for thread in 0..file.threads() {
            let slot = file.thread(thread)?;
            // Other clients may have seen what it has written, so its logged lines are transferred.
            self.take_noted(id, thread);
            slot.access.clear();
            let held: BTreeSet<GlobalAddr> = array_cells(slot)
                .map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)))
                .filter(|addr| !addr.is_null())
                .collect();
            self.give_back(id, thread, held)?;
        }
        self.resolve_reservations_of(id)?;
        if let Some(client) = self.clients.all.get_mut(id) {
            client.returning -= 1;
        }
        self.forget_if_returned(id);
        self.publish_metrics();
        Ok(())
    }

    /// Frees objects that a gone client held: in this rack at once, elsewhere by an exchange with
    /// the home, in a moving page when its swap has ended.
    pub(super) fn give_back(
        &mut self,
        id: ClientId,
        thread: u16,
        addrs: impl IntoIterator<Item = GlobalAddr>,
    ) -> anyhow::Result<()> {
        let mut elsewhere = Vec::new();
        let mut moving = BTreeMap::<_, Vec<GlobalAddr>>::new();
        let mut freed = BTreeSet::new();
        for addr in addrs {
            match addr.page(self.rack.geometry.page_size) {
                Some(page) if self.is_moving(page) => {
                    moving.entry(page).or_default().push(addr);
                }
                Some(page) if self.swap_has_lost(page) => {
                    freed.insert(addr);
                }
                Some(page) if self.slab.lookup(page).is_some() => {
                    if self.slab.free(addr, ObjectHolder::of(id))?.is_err() {
                        tracing::warn!("client {} held {addr}, which is not in use", id.0);
                    }
                    freed.insert(addr);
                }
                _ => elsewhere.push(addr),
            }
        }
        let Some(file) = self.clients.all.get(id).map(|client| Arc::clone(&client.file)) else {
            return Ok(());
        };
        // Free first, then remove: a daemon killed in between leaves free objects in the file,
        // which its successor removes before it allocates anything.
        strike(file.thread(thread)?, |addr| freed.contains(&addr));
        for (page, addrs) in moving {
            if let Some(client) = self.clients.all.get_mut(id) {
                client.returning += 1;
            }
            self.wait_for_swap(page, Work::GiveBack(id, thread, addrs));
        }
        if !elsewhere.is_empty() {
            self.free_elsewhere(id, thread, None, &elsewhere)?;
        }
        Ok(())
    }

    /// Continues [`Self::give_back`] when the swap of the objects' page has ended.
    pub(super) fn give_back_rest(
        &mut self,
        id: ClientId,
        thread: u16,
        addrs: Vec<GlobalAddr>,
    ) -> anyhow::Result<()> {
        self.give_back(id, thread, addrs)?;
        if let Some(client) = self.clients.all.get_mut(id) {
            client.returning = client.returning.saturating_sub(1);
        }
        self.forget_if_returned(id);
        Ok(())
    }

    /// Forgets a gone client once everything that it held is reclaimed.
    pub(super) fn forget_if_returned(&mut self, id: ClientId) {
        let done = self.clients.all.get(id).is_some_and(|c| c.gone && c.returning == 0);
        if done {
            self.clients.all.remove(id);
            self.notify(ControlNotification::Reclaimed(id));
        }
    }
}
