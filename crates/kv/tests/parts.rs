//! A walk over the parts of a table finds all of its memory, also what killed clients have left.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use rackpool_kv::{
    Committer, Entry, EntryChange, Form, GlobalAddr, KvError, RecentUse, Table, TablePart,
};
use support::heap::{Heap, HeapError};
use support::history::{Op, perform};
use support::scheduler::{Fate, scheduler};
use support::small_table;

/// The objects that a walk visits, with their sizes.
fn met(heap: &Arc<Heap>, addr: GlobalAddr) -> BTreeMap<u64, u64> {
    let mut met = BTreeMap::new();
    let walk = Table::walk(Arc::clone(heap), addr, |_, addr, bytes| {
        met.insert(addr.raw(), bytes.unwrap());
    });
    assert_eq!(walk.unwrap().unread, 0);
    met
}

fn live(heap: &Heap) -> BTreeMap<u64, u64> {
    let mut sizes = heap.live();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
        .into_iter()
        .flat_map(|size| heap.live_of(size).into_iter().map(move |addr| (addr, size)))
        .collect()
}

#[test]
fn a_walk_meets_each_object_of_a_table_and_counts_its_entries() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    for key in 0..300_u64 {
        handle.put(&key.to_le_bytes(), &vec![7; key as usize * 20]).unwrap();
    }
    for key in 0..100 {
        perform(&mut handle, key, Op::Delete);
    }
    assert_eq!(met(&heap, table.addr()), live(&heap));
    let (mut entries, mut segments) = (0, 0);
    let walk = Table::walk(Arc::clone(&heap), table.addr(), |part, _, _| {
        entries += u64::from(part == TablePart::Entry);
        segments += u64::from(part == TablePart::Segment);
    });
    assert_eq!((entries, segments), (200, handle.segments().unwrap().current));
    assert!(walk.unwrap().is_complete);
}

#[test]
fn a_walk_meets_what_a_client_leaves_that_is_killed_in_a_split() {
    let mut at = 1;
    loop {
        let heap = Arc::new(Heap::new(1 << 20));
        let table = small_table(&heap);
        for key in 100..124 {
            perform(&mut table.handle(), key, Op::Put(key));
        }
        let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            perform(&mut table.handle(), 1, Op::Put(1));
        };
        if !time.run(vec![Box::new(victim)])[0] {
            break;
        }
        heap.recover(|client| client == Some(0), || {});
        assert_eq!(met(&heap, table.addr()), live(&heap), "killed at {at}");
        at += 1;
    }
    assert!(at > 20, "{at}");
}

#[test]
fn what_is_no_table_is_not_walked_along() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let addr = table.addr();
    table.destroy().unwrap();
    let walk = Table::walk(Arc::clone(&heap), addr, |_, _, _| panic!("nothing is there"));
    assert!(matches!(walk, Err(KvError::<HeapError>::NotATable { .. })));
}

/// The bytes of all entries of a table, according to a walk.
fn entry_bytes(heap: &Arc<Heap>, addr: GlobalAddr) -> i64 {
    let mut sum = 0;
    let walk = Table::walk(Arc::clone(heap), addr, |part, _, bytes| {
        if part == TablePart::Entry {
            sum += i64::try_from(bytes.unwrap()).unwrap();
        }
    });
    assert_eq!(walk.unwrap().unread, 0);
    sum
}

#[test]
fn the_growth_of_all_handles_is_what_a_walk_counts() {
    let heap = Arc::new(Heap::new(16 << 20));
    let table = small_table(&heap);
    let (mut one, mut two) = (table.handle(), table.handle());
    let mut sum = 0;
    // The lengths lie on both sides of 2 KiB, from which on the slot does not tell the size.
    for round in 0..40_u64 {
        for key in 0..30_u64 {
            let (name, step) = (key.to_le_bytes(), round * 31 + key * 7);
            let value = vec![round as u8; (step * 97 % 5000) as usize];
            let handle = if step % 2 == 0 { &mut one } else { &mut two };
            match step % 5 {
                0 | 1 => drop(handle.put(&name, &value).unwrap()),
                2 => drop(handle.delete(&name).unwrap()),
                3 => drop(handle.insert(&name, &value).unwrap()),
                _ => {
                    let change = |_: Option<Entry<'_>>, made: &mut Vec<u8>| {
                        made.extend_from_slice(&value);
                        EntryChange::Put(Form::PLAIN)
                    };
                    handle.modify(&name, change).unwrap();
                }
            }
        }
        let mut committer = Committer::new(round, 0);
        one.begin();
        one.put(b"in a transaction", &vec![1; round as usize * 100]).unwrap();
        one.put(&3_u64.to_le_bytes(), b"short").unwrap();
        one.delete(&4_u64.to_le_bytes()).unwrap();
        assert!(committer.commit(&mut [&mut one]).unwrap());
        sum += one.take_growth() + two.take_growth();
        assert_eq!(sum, entry_bytes(&heap, table.addr()), "round {round}");
    }
    assert!(sum > 0);
    assert_eq!(one.take_growth(), 0);
}

#[test]
fn a_handle_records_the_keys_that_it_looks_for() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let (mut recording, mut other) = (table.handle(), table.handle());
    let uses = Arc::new(RecentUse::new(1 << 16));
    assert!(recording.record_use(Some(Arc::clone(&uses))).is_none());
    uses.set_time(1);
    for key in [b"read", b"held"] {
        recording.put(key, b"value").unwrap();
    }
    uses.set_time(10);
    recording.get(b"read", &mut Vec::new()).unwrap();
    other.get(b"held", &mut Vec::new()).unwrap();
    recording.for_each(|_, _| {}).unwrap();
    assert_eq!((uses.age(b"read"), uses.age(b"held")), (0, 9));
    assert!(recording.record_use(None).is_some());
    uses.set_time(20);
    recording.get(b"read", &mut Vec::new()).unwrap();
    assert_eq!(uses.age(b"read"), 10);
}
