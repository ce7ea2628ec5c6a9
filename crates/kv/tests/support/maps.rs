//! Operations of a history on an ordered map, and checks of what is left.

use std::sync::Arc;

use rackpool_kv::ordered::{Direction, KeyRange, MapChange, MapId, OrderedError, OrderedMaps};
use rackpool_kv::{KvError, Table};

use super::heap::{Heap, HeapError};
use super::history::{Answer, Op};

pub const MAP: MapId = MapId::from_bytes([5; 16]);

/// Access to an empty map, whose nodes hold few entries with [`fat`] values.
pub fn new_map(table: &Table<Arc<Heap>>) -> OrderedMaps<Arc<Heap>> {
    let mut maps = OrderedMaps::new(table.handle());
    maps.create(MAP, b"owner").unwrap();
    maps
}

/// A key with a long prefix: only a few separators fit into a node.
pub fn fat_key(key: u64) -> Vec<u8> {
    [&[b'k'; 300][..], &key.to_be_bytes()].concat()
}

pub fn key_of(fat: &[u8]) -> u64 {
    u64::from_be_bytes(fat[300..].try_into().unwrap())
}

fn value_in(value: &[u8]) -> u64 {
    super::number(value)
}

/// The value of a key; `None` if it is absent.
pub fn value_of(maps: &mut OrderedMaps<Arc<Heap>>, key: u64) -> Option<u64> {
    let mut value = Vec::new();
    maps.map(MAP).get(&fat_key(key), &mut value).unwrap().then(|| value_in(&value))
}

/// Performs an operation.
pub fn perform(maps: &mut OrderedMaps<Arc<Heap>>, key: u64, op: Op) -> Answer {
    if op == Op::Get {
        return Answer::Value(value_of(maps, key));
    }
    let mut done = false;
    let put = |value: u64| MapChange::Put(value.to_le_bytes().to_vec());
    let result = maps.map(MAP).update(&fat_key(key), |old| {
        let old = old.map(value_in);
        let (answer, change) = match op {
            Op::Put(new) => (old.is_some(), put(new)),
            Op::Insert(new) if old.is_none() => (true, put(new)),
            Op::Update(new) if old.is_some() => (true, put(new)),
            Op::Delete => (old.is_some(), MapChange::Remove),
            Op::Swap(expected, new) if old == expected => (true, put(new)),
            _ => (false, MapChange::Keep),
        };
        done = answer;
        change
    });
    match result {
        Ok(_) => Answer::Bool(done),
        Err(OrderedError::Table(KvError::OutcomeUnknown)) => Answer::None,
        Err(error) => panic!("{op:?}: {error}"),
    }
}

/// The keys of the map in ascending order, read in `direction`.
pub fn keys(maps: &mut OrderedMaps<Arc<Heap>>, direction: Direction) -> Vec<u64> {
    let entries = maps.map(MAP).range(&KeyRange::ALL, direction, usize::MAX).unwrap();
    let mut keys: Vec<u64> = entries.iter().map(|entry| key_of(&entry.key)).collect();
    if direction == Direction::Backward {
        keys.reverse();
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "{direction:?}: {keys:?}");
    keys
}

/// The number of nodes in the table.
pub fn nodes(table: &Table<Arc<Heap>>) -> u64 {
    let mut nodes = 0;
    table.handle().for_each(|_, _| nodes += 1).unwrap();
    nodes
}

/// Deletes all nodes of maps without a root.
pub fn sweep(maps: &mut OrderedMaps<Arc<Heap>>) -> u64 {
    maps.sweep(|_, _| Ok::<_, OrderedError<HeapError>>(true)).unwrap()
}
