//! Clients that connect, reconnect and leave; reclaims what gone clients held.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::ClientId;
use rackpool_proto::lock::LockEvent;
use rackpool_proto::publication::RecoveryEvent;
use rackpool_proto::rack::RackEvent;
use rackpool_ring::client_file::ClientFile;

use super::clients::Client;
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;
use crate::region::Region;

impl DataPlane {
    /// Adopts the file of a client that an earlier daemon served.
    pub(crate) fn adopt(&mut self, id: ClientId, file: Arc<ClientFile>) {
        self.insert_client(id, file, None);
        self.lose_locks_elsewhere(id);
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
        }
        self.machine.handle(RackEvent::Recovery(RecoveryEvent::ClientGone(id)));
        self.machine.handle(RackEvent::Lock(LockEvent::ClientGone(id)));
        self.run_machine()?;
        self.report_ended_operations();
        self.publish_metrics();
        Ok(())
    }

    /// Forgets a gone client once everything that it held is reclaimed.
    pub(super) fn forget_if_returned(&mut self, id: ClientId) {
        let is_gone = self.clients.all.get(id).is_some_and(|client| client.gone);
        let is_needed = self.machine.returns_of(id)
            || self.retiring.has_estate_of(id)
            || self.machine.has_remote_locks(id);
        if is_gone && !is_needed {
            self.clients.all.remove(id);
            self.notify(ControlNotification::Reclaimed(id));
        }
    }
}
