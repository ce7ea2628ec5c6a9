//! A store in this process's memory, for tests and to measure the benchmark's own cost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::store::{Fields, Pairs, Store, StoreError, StoreFactory, ValueStore};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens handles on one shared map. Thread `i` is in rack `i % racks`.
#[derive(Debug, Default)]
pub struct MemoryStores {
    pub(crate) pairs: Mutex<Map>,
    /// One in this many updates is written with a flipped bit. 0: none.
    pub corrupt_every: usize,
    /// Inserts fail once the map holds this many pairs. 0: never.
    pub full_at: usize,
}

impl MemoryStores {
    /// Number of racks that the threads are spread over.
    pub const RACKS: u16 = 2;

    /// Locks the map.
    pub fn pairs(&self) -> MutexGuard<'_, Map> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreFactory for MemoryStores {
    fn open(&self, _thread: usize) -> Result<Box<dyn Store + '_>, StoreError> {
        Ok(Box::new(MemoryStore { stores: self, updates: 0 }))
    }

    fn label(&self) -> String {
        "a map in memory".to_owned()
    }

    fn rack_of(&self, thread: usize) -> u16 {
        u16::try_from(thread % usize::from(Self::RACKS)).unwrap_or_default()
    }
}

struct MemoryStore<'a> {
    stores: &'a MemoryStores,
    updates: usize,
}

impl Store for MemoryStore<'_> {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        value.clear();
        let pairs = self.stores.pairs();
        let Some(found) = pairs.get(key) else { return Ok(false) };
        value.extend_from_slice(found);
        Ok(true)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.updates += 1;
        let mut pairs = self.stores.pairs();
        let Some(found) = pairs.get_mut(key) else { return Ok(false) };
        found.clear();
        found.extend_from_slice(value);
        if self.stores.corrupt_every != 0 && self.updates.is_multiple_of(self.stores.corrupt_every)
        {
            found[value.len() / 2] ^= 1;
        }
        Ok(true)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        let mut pairs = self.stores.pairs();
        if self.stores.full_at != 0 && pairs.len() >= self.stores.full_at {
            return Err(StoreError::new("the map is full"));
        }
        pairs.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError> {
        pairs.clear();
        let map = self.stores.pairs();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for (key, value) in map.range(start.to_vec()..).take(count) {
            let pair = pairs.push();
            pair.0.extend_from_slice(key);
            pair.1.extend_from_slice(value);
        }
        Ok(map.contains_key(start))
    }

    fn fields(&mut self) -> Fields<'_> {
        Fields::Together(self)
    }
}

impl ValueStore for MemoryStore<'_> {
    fn modify(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, StoreError> {
        let mut pairs = self.stores.pairs();
        let Some(found) = pairs.get_mut(key) else { return Ok(false) };
        change(found);
        Ok(true)
    }
}
