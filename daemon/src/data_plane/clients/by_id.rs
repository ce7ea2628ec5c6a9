//! A map keyed by client id.

use std::cell::Cell;

use rackpool_model::ClientId;

/// A sorted map with one `T` for each client. Serving a request looks up its client four times, and
/// most requests come from the same client as the last one: that client is found with one
/// comparison, with any number of clients.
#[derive(Debug)]
pub(crate) struct ById<T> {
    /// In ascending order.
    ids: Vec<ClientId>,
    /// One value for each id.
    values: Vec<T>,
    /// The index that the last lookup found; may be out of range.
    last: Cell<usize>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self { ids: Vec::new(), values: Vec::new(), last: Cell::new(0) }
    }
}

impl<T> ById<T> {
    #[inline]
    fn find(&self, id: ClientId) -> Option<usize> {
        if self.ids.get(self.last.get()) == Some(&id) {
            return Some(self.last.get());
        }
        let found = self.ids.binary_search(&id).ok()?;
        self.last.set(found);
        Some(found)
    }

    /// Returns the value of a client.
    #[inline]
    pub(crate) fn get(&self, id: ClientId) -> Option<&T> {
        self.values.get(self.find(id)?)
    }

    /// Returns the value of a client, mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut T> {
        let found = self.find(id)?;
        self.values.get_mut(found)
    }

    /// Sets the value of a client.
    pub(crate) fn insert(&mut self, id: ClientId, value: T) {
        match self.ids.binary_search(&id) {
            Ok(found) => self.values[found] = value,
            Err(place) => {
                self.ids.insert(place, id);
                self.values.insert(place, value);
            }
        }
    }

    /// Removes a client.
    pub(crate) fn remove(&mut self, id: ClientId) {
        if let Some(found) = self.find(id) {
            self.ids.remove(found);
            self.values.remove(found);
        }
    }

    /// Returns the number of clients.
    pub(crate) const fn len(&self) -> usize {
        self.ids.len()
    }

    /// Iterates over ids and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &T)> {
        self.ids.iter().copied().zip(&self.values)
    }

    /// Iterates over the ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ClientId> {
        self.ids.iter().copied()
    }

    /// Iterates over the values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }

    /// Returns the first client with an id of at least `id`.
    pub(crate) fn first_from(&self, id: ClientId) -> Option<(ClientId, &T)> {
        let place = self.ids.partition_point(|known| *known < id);
        Some((*self.ids.get(place)?, self.values.get(place)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(ClientId, u32),
        Remove(ClientId),
        Change(ClientId, u32),
        LookUp(ClientId),
    }

    fn step() -> impl Strategy<Value = Step> {
        let id = || (0..12_u32).prop_map(ClientId);
        prop_oneof![
            (id(), any::<u32>()).prop_map(|(id, value)| Step::Insert(id, value)),
            id().prop_map(Step::Remove),
            (id(), any::<u32>()).prop_map(|(id, value)| Step::Change(id, value)),
            id().prop_map(Step::LookUp),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec(step(), 0..80)) {
            let (mut clients, mut model) = (ById::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(id, value) => {
                        clients.insert(id, value);
                        model.insert(id, value);
                    }
                    Step::Remove(id) => {
                        clients.remove(id);
                        model.remove(&id);
                    }
                    Step::Change(id, value) => {
                        let (found, expected) = (clients.get_mut(id), model.get_mut(&id));
                        prop_assert_eq!(found.is_some(), expected.is_some());
                        if let (Some(found), Some(expected)) = (found, expected) {
                            (*found, *expected) = (value, value);
                        }
                    }
                    Step::LookUp(id) => {
                        prop_assert_eq!(clients.get(id), model.get(&id));
                        let next = model.range(id..).next().map(|(id, value)| (*id, value));
                        prop_assert_eq!(clients.first_from(id), next);
                    }
                }
                prop_assert_eq!(clients.len(), model.len());
                prop_assert!(clients.iter().eq(model.iter().map(|(id, value)| (*id, value))));
                prop_assert!(clients.values().eq(model.values()));
            }
        }
    }
}
