use rackpool_client::GlobalAddr;

use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::protocol;
use crate::steps::Entries;
use crate::store::{PlacedHead, Store};

impl Store {
    /// Removes the object of this id from all racks. Returns whether there was one. The id is free
    /// at once; the memory of each rack comes back with its last view. An object whose memory was
    /// lost with that of its rack counts as absent, and what is left of it is removed.
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool. If a rack with a replica does not answer, the
    /// object stays, since that rack's programs read the replica without a daemon: call again.
    pub fn delete(&self, id: &[u8]) -> Result<bool, StoreError> {
        let keys = Keys::of(id)?;
        let oldest = self.oldest_alive()?;
        let deleted = self.repairing(|| {
            self.with(|handles| protocol::delete(&mut Entries::new(self, handles, &keys)))
        })?;
        let is_deleted = deleted.is_some_and(|object| object.head.created_ms >= oldest);
        self.shared.counters.deletes.add(is_deleted.into());
        Ok(is_deleted)
    }

    /// Removes exactly this object from all racks. Returns whether it was there.
    pub(crate) fn delete_version(
        &self,
        keys: &Keys,
        object: &PlacedHead,
    ) -> Result<bool, StoreError> {
        self.repairing(|| {
            self.with(|handles| protocol::remove(&mut Entries::new(self, handles, keys), object))
        })
    }

    /// The heads of the replicas of an object.
    pub(crate) fn replicas_of(
        &self,
        keys: &Keys,
        object: &PlacedHead,
    ) -> Result<Vec<GlobalAddr>, StoreError> {
        let registration = self.with(|handles| {
            let mut entries = Entries::new(self, handles, keys);
            protocol::registration(&mut entries, object)
        })?;
        let (mut heads, mut value) = (Vec::new(), Vec::new());
        for rack in registration.iter().flat_map(Registration::racks) {
            let Some(mut table) = self.replica_table_if_any(rack)? else { continue };
            let replica = table.get_placed(keys.object(), &mut value)?;
            heads.extend(replica.map(|replica| replica.addr));
        }
        Ok(heads)
    }
}
