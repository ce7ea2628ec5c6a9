//! A memory in one process that checks how it is used; a scheduler that switches, stops and kills
//! clients at every memory operation; and a checker of histories.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod heap;
pub mod history;
pub mod interleaving;
pub mod maps;
pub mod reservations;
pub mod roots;
pub mod scheduler;
pub mod trouble;

use std::sync::Arc;
use std::time::Duration;

use rackpool_kv::{Handle, Memory, Table, TableOptions};

use heap::Heap;

/// A table of the smallest segments (24 slots), so that a few keys make it split.
pub fn small_table(heap: &Arc<Heap>) -> Table<Arc<Heap>> {
    let options = TableOptions { max_depth: 8, segment_bytes: SEGMENT_BYTES };
    Table::create(Arc::clone(heap), &options).unwrap().with_lock_wait(Duration::ZERO)
}

/// A heap that panics when a word of a small table's segment returns to an earlier value.
pub fn watching_heap() -> Heap {
    let mut heap = Heap::new(1 << 20);
    heap.watched_size = SEGMENT_BYTES;
    heap
}

/// Also watches the directory. Returns the addresses of its entries.
pub fn watch_table(heap: &Heap, table: &Table<Arc<Heap>>) -> Vec<u64> {
    let mut header = [0; 24];
    heap.read(table.addr(), &mut header).unwrap();
    let directory = number(&header[16..]);
    let entries: Vec<u64> = (0..256).map(|entry| directory + entry * 8).collect();
    entries.iter().for_each(|entry| heap.watch(*entry));
    entries.clone_into(&mut heap.entries.lock().unwrap());
    entries
}

/// The segments that have ever been in one of these watched directory entries.
pub fn published_segments(heap: &Heap, entries: &[u64]) -> Vec<u64> {
    let values = entries.iter().flat_map(|entry| heap.values(*entry));
    values.map(|value| (value & ((1 << 42) - 1)) << 6).collect()
}

pub const SEGMENT_BYTES: u64 = 256;

/// The value of a key; `None` if it is absent.
pub fn value_of(handle: &mut Handle<Arc<Heap>>, key: u64) -> Option<u64> {
    let mut value = Vec::new();
    let found = handle.get(&key.to_le_bytes(), &mut value).unwrap();
    found.then(|| number(&value))
}

/// The number in a value.
pub fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}
