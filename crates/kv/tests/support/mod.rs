//! A memory in one process that checks how it is used, a scheduler that switches, stops and kills
//! clients at every memory operation, and a checker of histories.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod heap;
pub mod history;
pub mod scheduler;

use std::sync::Arc;
use std::time::Duration;

use rackpool_kv::{Handle, Options, Table};

use heap::Heap;

/// A table of the smallest segments (24 slots), so that a few keys make it split.
pub fn small_table(heap: &Arc<Heap>) -> Table<Arc<Heap>> {
    let options = Options { max_depth: 8, segment_bytes: SEGMENT_BYTES };
    Table::create(Arc::clone(heap), &options).unwrap().with_patience(Duration::ZERO)
}

pub const SEGMENT_BYTES: u64 = 256;

/// The value of a key, if it is there.
pub fn value_of(handle: &mut Handle<Arc<Heap>>, key: u64) -> Option<u64> {
    let mut value = Vec::new();
    let found = handle.get(&key.to_le_bytes(), &mut value).unwrap();
    found.then(|| number(&value))
}

/// The number in a value.
pub fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}
