//! Clients that connect, reconnect and leave; reclaims what gone clients held.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_ring::client_file::ClientFile;
use rackpool_sync::atomic::Ordering;

use super::clients::{Client, ClientThread, array_cells};
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;
use crate::region::Region;

impl DataPlane {
    /// Adopts the file of a client that an earlier daemon served.
    pub(crate) fn adopt(&mut self, id: ClientId, file: Arc<ClientFile>) {
        self.insert_client(id, file, None);
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
    ) -> Result<bool> {
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
    pub(super) fn client_gone(&mut self, id: ClientId) -> Result<()> {
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
        self.inherit(id, &file);
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
            let owner = ClientThread { client: id, thread };
            self.give_back(owner, held.into_iter().collect());
        }
        self.resolve_reservations_of(id)?;
        if let Some(client) = self.clients.all.get_mut(id) {
            client.returning -= 1;
        }
        self.forget_if_returned(id);
        self.publish_metrics();
        Ok(())
    }

    /// Forgets a gone client once everything that it held is reclaimed.
    pub(super) fn forget_if_returned(&mut self, id: ClientId) {
        let done = self.clients.all.get(id).is_some_and(|c| c.gone && c.returning == 0);
        if done && !self.machine.returns_of(id) {
            self.clients.all.remove(id);
            self.notify(ControlNotification::Reclaimed(id));
        }
    }
}
