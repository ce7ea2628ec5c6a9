//! Registrations: which racks have replicas of an object. A delete closes the registration, removes
//! the replicas that it names, and then the object. A replica counts only once it is registered.

use rackpool_client::RackId;
use rackpool_kv::EntryPlace;

use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::store::Handles;

/// The result of a change of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// The registration is now this one.
    As(Registration),
    /// A delete has closed the registration.
    Closed,
    /// The object is not in the store any more.
    Gone,
}

impl Handles {
    /// Registers a replica of the object at `place` in `rack`.
    pub(crate) fn register(
        &mut self,
        keys: &Keys,
        place: &EntryPlace,
        rack: RackId,
    ) -> Result<Registered, StoreError> {
        self.change_registration(keys, place, |now| (!now.is_closed).then(|| now.with(rack)))
    }

    /// Whether the registration of the object at `place` exists and is not closed, and the object
    /// is in the store. Deletes that begin afterwards close the registration first.
    pub(crate) fn is_open(&mut self, keys: &Keys, place: &EntryPlace) -> Result<bool, StoreError> {
        let key = keys.registration();
        let now = self.value(key.object())?.and_then(Registration::decode);
        let is_open =
            now.is_some_and(|now| now.version == place.version.to_bytes() && !now.is_closed);
        Ok(is_open && self.is_linked(keys, place)?)
    }

    /// Closes the registration of the object at `place`.
    pub(crate) fn close(
        &mut self,
        keys: &Keys,
        place: &EntryPlace,
    ) -> Result<Registered, StoreError> {
        self.change_registration(keys, place, |now| Some(now.closed()))
    }

    /// Removes a registration that has not changed.
    pub(crate) fn end_registration(
        &mut self,
        keys: &Keys,
        registration: &Registration,
    ) -> Result<(), StoreError> {
        let key = keys.registration();
        self.objects.compare_and_delete(key.object(), &registration.encode())?;
        Ok(())
    }

    /// Removes the registration of an object that is not in the store any more. An object that was
    /// removed never comes back, so the registration names nothing.
    pub(crate) fn remove_orphan(&mut self, keys: &Keys) -> Result<(), StoreError> {
        let key = keys.registration();
        let found = self.value(key.object())?.and_then(Registration::decode);
        let Some(found) = found else { return Ok(()) };
        let object = self.find(keys.object())?;
        if object.is_none_or(|object| object.place.version.to_bytes() != found.version) {
            self.end_registration(keys, &found)?;
        }
        Ok(())
    }

    /// Changes the registration of the object at `place` by `change`, which returns `None` for a
    /// closed one.
    fn change_registration(
        &mut self,
        keys: &Keys,
        place: &EntryPlace,
        change: impl Fn(Registration) -> Option<Registration>,
    ) -> Result<Registered, StoreError> {
        let (key, version) = (keys.registration(), place.version.to_bytes());
        loop {
            let found = self.value(key.object())?.map(<[u8]>::to_vec);
            let now = found.as_deref().and_then(Registration::decode);
            let now = match now.filter(|now| now.version == version) {
                Some(now) => now,
                None => {
                    // What was found is of an older object only if this one is in the store after
                    // that: no registration is made for an object that is not.
                    if !self.is_linked(keys, place)? {
                        return Ok(Registered::Gone);
                    }
                    Registration::new(version)
                }
            };
            let Some(new) = change(now) else { return Ok(Registered::Closed) };
            let stored = found.as_deref() == Some(&new.encode())
                || self.objects.compare_and_put(key.object(), found.as_deref(), &new.encode())?;
            if !stored {
                continue;
            }
            // A delete may have made, closed and removed a registration since it was found absent.
            // A delete removes it only after the object.
            if self.is_linked(keys, place)? {
                return Ok(Registered::As(new));
            }
            self.end_registration(keys, &new)?;
            return Ok(Registered::Gone);
        }
    }

    fn is_linked(&mut self, keys: &Keys, place: &EntryPlace) -> Result<bool, StoreError> {
        Ok(self.find(keys.object())?.is_some_and(|now| now.place == *place))
    }
}
