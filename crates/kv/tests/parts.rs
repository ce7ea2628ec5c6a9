//! A walk over the parts of a table finds all of its memory, also what killed clients have left.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use rackpool_kv::{GlobalAddr, KvError, Table, TablePart};
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
