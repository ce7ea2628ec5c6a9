use std::sync::Arc;

use crate::memory::Memory;
use crate::ordered::node::MapNode;
use crate::ordered::search::SearchTarget;
use crate::ordered::{Direction, KeyRange, MapId, OrderedError, OrderedMaps};

/// An entry of an ordered map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// An ordered map from byte strings, in lexicographic order, to values.
///
/// A key has up to 65535 bytes, and with its value up to a quarter of a page. Operations on one key
/// are linearizable among all clients in all racks. [`range`](Self::range) has weaker guarantees.
///
/// An operation that fails has changed no entry, except after
/// [`KvError::OutcomeUnknown`](crate::KvError::OutcomeUnknown).
#[derive(Debug)]
pub struct OrderedMap<'a, M> {
    pub(super) maps: &'a mut OrderedMaps<M>,
    pub(super) id: MapId,
}

/// The decision of the closure passed to [`OrderedMap::update`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Leave the entry unchanged.
    Keep,
    /// Store this value.
    Put(Vec<u8>),
    /// Remove the entry.
    Remove,
}

impl<M: Memory> OrderedMap<'_, M> {
    /// The map's id.
    #[must_use]
    pub fn id(&self) -> MapId {
        self.id
    }

    /// Reads the value of `key` into `value`, replacing the buffer's content. Returns whether the
    /// key is present; if it is absent, `value` is empty.
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, OrderedError<M::Error>> {
        value.clear();
        let leaf = self.find(SearchTarget::At(key), 0)?.node;
        let found = leaf.search(key);
        if let Ok(index) = found {
            value.extend_from_slice(leaf.value(index));
        }
        Ok(found.is_ok())
    }

    /// Stores `value` under `key`. Returns the previous value.
    pub fn insert(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, OrderedError<M::Error>> {
        self.update(key, |_| MapChange::Put(value.to_vec()))
    }

    /// Removes `key`. Returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, OrderedError<M::Error>> {
        self.update(key, |_| MapChange::Remove)
    }

    /// Changes the entry of `key` atomically: `change` gets the value, or `None` if the key is
    /// absent. If another client changes the leaf first, `change` is called again. Returns the
    /// previous value.
    pub fn update(
        &mut self,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> MapChange,
    ) -> Result<Option<Vec<u8>>, OrderedError<M::Error>> {
        loop {
            let found = self.find(SearchTarget::At(key), 0)?;
            let leaf: &MapNode = &found.node;
            let place = leaf.search(key);
            let old = place.ok().map(|index| leaf.value(index));
            let new = match (change(old), place) {
                (MapChange::Keep, _) | (MapChange::Remove, Err(_)) => {
                    return Ok(old.map(<[u8]>::to_vec));
                }
                (MapChange::Remove, Ok(index)) => leaf.with(index, 1, None),
                (MapChange::Put(value), place) => {
                    self.check_size(key, &value)?;
                    let before = old.map_or(0, |old| MapNode::entry_bytes(key, old));
                    let more = MapNode::entry_bytes(key, &value).saturating_sub(before);
                    if leaf.must_split_for(more) {
                        self.split(found.id, &Arc::clone(&found.node))?;
                        continue;
                    }
                    let (index, replaced) = place.map_or_else(|at| (at, 0), |at| (at, 1));
                    leaf.with(index, replaced, Some((key, &value)))
                }
            };
            if self.maps.swap(self.id, found.id, leaf, &new)? {
                let old = old.map(<[u8]>::to_vec);
                self.heal(found.missed);
                return Ok(old);
            }
        }
    }

    /// The entry with the least key.
    pub fn first(&mut self) -> Result<Option<MapEntry>, OrderedError<M::Error>> {
        Ok(self.range(&KeyRange::ALL, Direction::Forward, 1)?.pop())
    }

    /// The entry with the greatest key.
    pub fn last(&mut self) -> Result<Option<MapEntry>, OrderedError<M::Error>> {
        Ok(self.range(&KeyRange::ALL, Direction::Backward, 1)?.pop())
    }

    fn check_size(&self, key: &[u8], value: &[u8]) -> Result<(), OrderedError<M::Error>> {
        let page = self.maps.handle.shared.memory.page_bytes();
        let max = usize::try_from(page / 4).unwrap_or(usize::MAX);
        if key.len() <= usize::from(u16::MAX) && MapNode::entry_bytes(key, value) <= max {
            return Ok(());
        }
        let (key_bytes, value_bytes) = (key.len(), value.len());
        Err(OrderedError::TooLarge { key_bytes, value_bytes, max })
    }
}
