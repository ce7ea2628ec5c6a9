use rackpool_client::GlobalAddr;
use rackpool_kv::EntryPlace;

use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::replicas::Registered;
use crate::store::Store;

impl Store {
    /// Removes the object of this id from all racks. Returns whether there was one. The id is free
    /// at once; the memory of each rack comes back with its last view.
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool. If a rack with a replica does not answer, the
    /// object stays, since that rack's programs read the replica without a daemon: call again.
    pub fn delete(&self, id: &[u8]) -> Result<bool, StoreError> {
        let keys = Keys::of(id)?;
        let oldest = self.oldest_alive()?;
        while let Some(object) = self.with(|handles| handles.find(keys.object()))? {
            if self.delete_version(&keys, &object.place)? {
                return Ok(object.head.created_ms >= oldest);
            }
        }
        Ok(false)
    }

    /// Removes the object at this place from all racks. Returns whether it was there.
    pub(crate) fn delete_version(
        &self,
        keys: &Keys,
        place: &EntryPlace,
    ) -> Result<bool, StoreError> {
        self.with(|handles| {
            let Registered::As(closed) = handles.close(keys, place)? else { return Ok(false) };
            for rack in closed.racks() {
                self.replica_table(rack)?.delete(keys.object())?;
            }
            let is_mine = handles.objects.delete_placed(keys.object(), place)?;
            handles.end_registration(keys, &closed)?;
            Ok(is_mine)
        })
    }

    /// The heads of the replicas of the object at this place.
    pub(crate) fn replicas_of(
        &self,
        keys: &Keys,
        place: &EntryPlace,
    ) -> Result<Vec<GlobalAddr>, StoreError> {
        let key = keys.registration();
        let registration =
            self.with(|handles| Ok(handles.value(key.object())?.and_then(Registration::decode)))?;
        let registration = registration.filter(|now| now.version == place.version.to_bytes());
        let (mut heads, mut value) = (Vec::new(), Vec::new());
        for rack in registration.iter().flat_map(Registration::racks) {
            let replica = self.replica_table(rack)?.get_placed(keys.object(), &mut value)?;
            heads.extend(replica.map(|replica| replica.addr));
        }
        Ok(heads)
    }
}
