use crate::error::StoreError;
use crate::layout::keys::Keys;
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
        self.with(|handles| {
            loop {
                let Some(object) = handles.find(keys.object())? else { return Ok(false) };
                let Registered::As(closed) = handles.close(&keys, &object.place)? else {
                    continue;
                };
                for rack in closed.racks() {
                    self.replica_table(rack)?.delete(keys.object())?;
                }
                let is_mine = handles.objects.delete_placed(keys.object(), &object.place)?;
                handles.end_registration(&keys, &closed)?;
                if is_mine {
                    return Ok(true);
                }
            }
        })
    }
}
