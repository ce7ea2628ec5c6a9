//! The server's table: keys and where their values lie in the registered memory.

use std::collections::HashMap;

use rackpool_shm::Mapping;

use super::{KEYS, Key, Value, first_value, key};
use crate::StudyError;

/// Bytes of a slot: the value, which starts a cache line, and the key in the next one.
const SLOT_BYTES: u64 = 128;
const KEY_AT: u64 = 64;

/// A table with a slot for each key. Keys are not added or removed.
#[derive(Debug)]
pub(super) struct Store {
    offsets: HashMap<Key, u64>,
}

impl Store {
    /// Bytes of registered memory for this many connections.
    pub(super) fn bytes(connections: u32) -> u64 {
        u64::from(connections * KEYS) * SLOT_BYTES
    }

    /// Writes the first values of all keys into the memory.
    pub(super) fn fill(memory: &Mapping, connections: u32) -> Result<Self, StudyError> {
        let mut offsets = HashMap::new();
        for number in 0..connections * KEYS {
            let (key, offset) = (key(number), u64::from(number) * SLOT_BYTES);
            let written = memory
                .write(offset, &first_value(number))
                .and_then(|()| memory.write(offset + KEY_AT, &key));
            written
                .map_err(std::io::Error::other)
                .map_err(StudyError::system("fill the key-value table"))?;
            offsets.insert(key, offset);
        }
        Ok(Self { offsets })
    }

    /// The offset of a key's value. The key in the slot is compared, as a server with chained slots
    /// must: this access of the registered memory is part of what is measured.
    pub(super) fn find(&self, memory: &Mapping, key: &Key) -> Option<u64> {
        let offset = *self.offsets.get(key)?;
        let mut found = Key::default();
        memory.read(offset + KEY_AT, &mut found).ok()?;
        (found == *key).then_some(offset)
    }
}

/// Bytes of a value, for the offsets of both sides.
pub(super) const VALUE: u64 = size_of::<Value>() as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn every_key_is_found_with_its_value() {
        let buffer = Buffer::new(Store::bytes(2), None).unwrap();
        let store = Store::fill(&buffer.mapping, 2).unwrap();
        for number in [0, 1, KEYS, 2 * KEYS - 1] {
            let offset = store.find(&buffer.mapping, &key(number)).unwrap();
            let mut found = [0; size_of::<Value>()];
            buffer.mapping.read(offset, &mut found).unwrap();
            assert_eq!(found, first_value(number));
        }
        assert_eq!(store.find(&buffer.mapping, &key(2 * KEYS)), None);
        buffer.mapping.write(KEY_AT, b"???").unwrap();
        assert_eq!(store.find(&buffer.mapping, &key(0)), None, "the slot has another key");
    }
}
