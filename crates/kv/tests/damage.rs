//! Objects that another program has overwritten: damage costs only the damaged entry.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackpool_kv::{GlobalAddr, Handle, KvError, Memory, Table, TableOptions};
use support::heap::{Heap, HeapError};
use support::history::{Answer, Op, perform};
use support::{number, small_table, value_of};
use xxhash_rust::xxh3::xxh3_64;

/// The address and the bytes of the object of a key.
fn object_of(heap: &Heap, key: u64) -> (GlobalAddr, [u8; 64]) {
    let objects = heap.live_of(64).into_iter().map(|addr| {
        let mut bytes = [0; 64];
        heap.read(GlobalAddr::from_raw(addr), &mut bytes).unwrap();
        (GlobalAddr::from_raw(addr), bytes)
    });
    objects.into_iter().find(|(_, bytes)| bytes[32..40] == key.to_le_bytes()).unwrap()
}

/// Changes one byte of a key's object.
fn damage(heap: &Heap, key: u64, at: usize) {
    let (addr, mut bytes) = object_of(heap, key);
    bytes[at] ^= 1;
    heap.write(addr, &bytes).unwrap();
}

fn scanned(handle: &mut Handle<Arc<Heap>>) -> Vec<u64> {
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        cursor = handle.scan(cursor, 10, |key, _| keys.push(number(key))).unwrap();
        if cursor == 0 {
            keys.sort_unstable();
            keys.dedup();
            return keys;
        }
    }
}

#[test]
fn a_damaged_object_is_passed_by_and_may_be_replaced_or_deleted() {
    // In the hash, whose bits select the segment, and in the value.
    for at in [16, 17, 23, 40] {
        let heap = Arc::new(Heap::new(1 << 20));
        let table = small_table(&heap);
        let mut handle = table.handle();
        for key in 0..60 {
            perform(&mut handle, key, Op::Put(key));
        }
        damage(&heap, 7, at);
        damage(&heap, 9, at);
        let others: Vec<u64> = (0..60).filter(|key| ![7, 9].contains(key)).collect();
        assert_eq!(scanned(&mut handle), others);
        let mut seen = Vec::new();
        let error = handle.for_each(|key, _| seen.push(number(key))).unwrap_err();
        assert!(matches!(error, KvError::Corrupt { what: "entry", .. }), "{error}");
        seen.sort_unstable();
        assert_eq!(seen, others);
        let error = handle.get(&7_u64.to_le_bytes(), &mut Vec::new()).unwrap_err();
        assert!(matches!(error, KvError::Corrupt { what: "entry", .. }), "{error}");
        assert_eq!(perform(&mut handle, 7, Op::Put(70)), Answer::Bool(true));
        assert_eq!(value_of(&mut handle, 7), Some(70));
        assert_eq!(perform(&mut handle, 9, Op::Delete), Answer::Bool(true));
        assert_eq!(value_of(&mut handle, 9), None);
        damage(&heap, 7, at);
        // Splits move the damaged entry.
        for key in 100..400 {
            assert_eq!(perform(&mut handle, key, Op::Put(key)), Answer::Bool(false));
        }
        for key in others.into_iter().chain(100..400) {
            assert_eq!(value_of(&mut handle, key), Some(key), "damaged at {at}");
        }
    }
}

#[test]
fn conditions_that_lead_to_each_other_are_damage_and_no_endless_search() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    perform(&mut handle, 1, Op::Put(1));
    perform(&mut handle, 1, Op::Swap(Some(1), 2));
    let (addr, mut bytes) = object_of(&heap, 1);
    assert_eq!(bytes[30], 1, "it has a condition");
    // The object is aborted, and its condition refers to the object itself.
    bytes[..8].copy_from_slice(&(!(1_u64 << 50)).to_le_bytes());
    let word = number(&bytes[48..56]) & !((1 << 42) - 1) | addr.raw() >> 6;
    bytes[48..56].copy_from_slice(&word.to_le_bytes());
    let check = xxh3_64(&bytes[16..]) as u32;
    bytes[8..12].copy_from_slice(&check.to_le_bytes());
    heap.write(addr, &bytes).unwrap();
    let error = handle.get(&1_u64.to_le_bytes(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, KvError::Corrupt { what: "entry", .. }), "{error}");
    let error = handle.for_each(|_, _| {}).unwrap_err();
    assert!(matches!(error, KvError::Corrupt { what: "entry", .. }), "{error}");
}

#[test]
fn a_table_that_can_not_be_made_leaves_nothing() {
    let heap = Arc::new(Heap::new(1 << 20));
    heap.segments_left.store(0, Ordering::Relaxed);
    let options = TableOptions { max_depth: 8, segment_bytes: support::SEGMENT_BYTES };
    let made = Table::create(Arc::clone(&heap), &options);
    assert!(matches!(made, Err(KvError::Memory(_))), "{made:?}");
    assert_eq!(heap.live(), Vec::<u64>::new());
}

/// A rack that comes back without its memory: its entries can't be read, by anybody.
#[test]
fn a_lost_entry_costs_only_its_key_and_may_be_replaced_or_deleted() {
    const LOST: [u64; 4] = [7, 9, 11, 13];
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    for key in 0..60 {
        perform(&mut handle, key, Op::Put(key));
    }
    let lost = LOST.map(|key| object_of(&heap, key).0);
    lost.into_iter().for_each(|addr| heap.lose(addr));
    let others: Vec<u64> = (0..60).filter(|key| !LOST.contains(key)).collect();
    assert_eq!(scanned(&mut handle), others);
    let mut seen = Vec::new();
    let error = handle.for_each(|key, _| seen.push(number(key))).unwrap_err();
    assert!(matches!(error, KvError::Memory(HeapError::Lost(_))), "{error}");
    seen.sort_unstable();
    assert_eq!(seen, others);
    let is_lost = |handle: &mut Handle<Arc<Heap>>, key: u64| {
        matches!(
            handle.get(&key.to_le_bytes(), &mut Vec::new()),
            Err(KvError::Memory(HeapError::Lost(_)))
        )
    };
    assert!(LOST.iter().all(|key| is_lost(&mut handle, *key)));
    assert_eq!(handle.lost_entries().unwrap().len(), LOST.len());
    assert!(handle.replace_unreadable(&7_u64.to_le_bytes(), &6_u64.to_le_bytes()).unwrap());
    assert_eq!(value_of(&mut handle, 7), Some(6));
    for key in [7_u64, 1000] {
        assert!(!handle.replace_unreadable(&key.to_le_bytes(), b"value").unwrap());
    }
    assert_eq!(perform(&mut handle, 7, Op::Put(70)), Answer::Bool(true));
    assert_eq!(perform(&mut handle, 9, Op::Delete), Answer::Bool(true));
    // The table grows. A key that was lost stays so, or counts as absent after a split.
    for key in 100..400 {
        assert_eq!(perform(&mut handle, key, Op::Put(key)), Answer::Bool(false));
    }
    for key in [11, 13] {
        assert!(is_lost(&mut handle, key) || value_of(&mut handle, key).is_none());
    }
    assert_eq!(value_of(&mut handle, 7), Some(70));
    assert_eq!(value_of(&mut handle, 9), None);
    let lost = handle.lost_entries().unwrap();
    assert_eq!(lost.len(), 2);
    assert_eq!(handle.remove_lost(&lost).unwrap(), 2);
    assert!(handle.lost_entries().unwrap().is_empty());
    assert_eq!(handle.remove_lost(&lost).unwrap(), 0);
    assert_eq!(value_of(&mut handle, 11), None);
    assert_eq!(perform(&mut handle, 11, Op::Swap(None, 110)), Answer::Bool(true));
    assert_eq!(value_of(&mut handle, 11), Some(110));
    for key in others.into_iter().chain(100..400) {
        assert_eq!(value_of(&mut handle, key), Some(key));
    }
    assert_eq!(handle.unreclaimed(), 0);
}

/// Nobody can find out any more whether the entry that was replaced is the one that was read.
#[test]
fn a_change_whose_former_entry_is_lost_is_not_made() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    perform(&mut handle, 1, Op::Put(1));
    let (old, _) = object_of(&heap, 1);
    perform(&mut handle, 1, Op::Swap(Some(1), 2));
    // As if the client had been killed before it resolved the change and freed the old entry.
    assert_eq!(heap.allocate(64).unwrap(), old);
    let token = 1_u64 << 50;
    let new = heap.live_of(64).into_iter().map(GlobalAddr::from_raw).find(|addr| {
        let mut bytes = [0; 64];
        heap.read(*addr, &mut bytes).unwrap();
        bytes[32..40] == 1_u64.to_le_bytes()
    });
    let new = new.unwrap();
    heap.write(new, &token.to_le_bytes()).unwrap();
    heap.lose(old);
    let error = handle.get(&1_u64.to_le_bytes(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, KvError::Memory(HeapError::Lost(_))), "{error}");
    let mut owner = [0; 8];
    heap.read(new, &mut owner).unwrap();
    assert_eq!(u64::from_le_bytes(owner), !token);
    assert_eq!(perform(&mut handle, 1, Op::Put(3)), Answer::Bool(true));
    assert_eq!(value_of(&mut handle, 1), Some(3));
}
