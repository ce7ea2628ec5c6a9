//! The objects that no client uses, in the order in which they were last released. Pure.

use std::collections::{BTreeMap, HashMap};

use crate::protocol::ObjectId;

/// Making room evicts at least this part of the capacity, so that a full store does not evict at
/// each create.
const LEAST_PART: u64 = 5;

/// The order of eviction.
#[derive(Debug, Default)]
pub struct EvictionOrder {
    /// Ids and bytes by the number of their release.
    order: BTreeMap<u64, (ObjectId, u64)>,
    places: HashMap<ObjectId, u64>,
    released: u64,
}

impl EvictionOrder {
    /// Adds an object that no client uses any more, as the one that is evicted last.
    pub fn add(&mut self, id: ObjectId, bytes: u64) {
        self.remove(&id);
        self.released += 1;
        self.order.insert(self.released, (id, bytes));
        self.places.insert(id, self.released);
    }

    /// Removes an object that is used again or gone. Returns its bytes if it was here.
    pub fn remove(&mut self, id: &ObjectId) -> Option<u64> {
        let place = self.places.remove(id)?;
        self.order.remove(&place).map(|(_, bytes)| bytes)
    }

    /// Makes an object that is here the one that is evicted last.
    pub fn refresh(&mut self, id: &ObjectId) {
        if let Some(bytes) = self.remove(id) {
            self.add(*id, bytes);
        }
    }

    /// The object that is evicted next.
    #[must_use]
    pub fn first(&self) -> Option<ObjectId> {
        self.order.first_key_value().map(|(_, (id, _))| *id)
    }

    /// How many objects are here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if there is no object here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// How many bytes are evicted to make room for `wanted` bytes, when `used` of `capacity` are used.
#[must_use]
pub fn bytes_to_evict(used: u64, wanted: u64, capacity: u64) -> u64 {
    if used.saturating_add(wanted) <= capacity { 0 } else { wanted.max(capacity / LEAST_PART) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(byte: u8) -> ObjectId {
        ObjectId([byte; ObjectId::BYTES])
    }

    /// The ids in the order in which they are evicted.
    fn drained(mut order: EvictionOrder) -> Vec<ObjectId> {
        let mut all = Vec::new();
        while let Some(next) = order.first() {
            assert!(order.remove(&next).is_some());
            all.push(next);
        }
        assert!(order.is_empty() && order.places.is_empty());
        all
    }

    #[test]
    fn the_object_released_first_is_evicted_first() {
        let mut order = EvictionOrder::default();
        for byte in [1, 2, 3, 4] {
            order.add(id(byte), u64::from(byte));
        }
        assert_eq!(order.remove(&id(3)), Some(3));
        assert_eq!(order.remove(&id(3)), None);
        order.add(id(1), 1);
        order.refresh(&id(2));
        order.refresh(&id(9));
        assert_eq!(order.len(), 3);
        assert_eq!(drained(order), [id(4), id(1), id(2)]);
    }

    #[test]
    fn making_room_evicts_a_fifth_of_the_capacity() {
        assert_eq!(bytes_to_evict(90, 10, 100), 0);
        assert_eq!(bytes_to_evict(91, 10, 100), 20);
        assert_eq!(bytes_to_evict(91, 30, 100), 30);
        assert_eq!(bytes_to_evict(1, u64::MAX, 100), u64::MAX);
    }
}
