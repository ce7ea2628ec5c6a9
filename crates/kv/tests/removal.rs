//! Tables at a place that are removed, by clients that are killed at each memory operation.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use rackpool_kv::{GlobalAddr, KvError, Memory, Table, TableOptions};
use support::heap::Heap;
use support::history::{Op, perform};
use support::scheduler::{Fate, scheduler};
use support::{SEGMENT_BYTES, value_of};

/// The size of the object with the place, which is all that stays.
const PLACE: u64 = 64;

fn heap() -> (Arc<Heap>, GlobalAddr) {
    let heap = Arc::new(Heap::new(1 << 20));
    let place = heap.allocate(PLACE).unwrap();
    heap.write(place, &[0; 8]).unwrap();
    (heap, place)
}

fn open(heap: &Arc<Heap>, place: GlobalAddr) -> Table<Arc<Heap>> {
    let options = TableOptions { max_depth: 4, segment_bytes: SEGMENT_BYTES };
    let table = Table::open_or_create_at(Arc::clone(heap), place, &options).unwrap();
    table.with_lock_wait(Duration::ZERO)
}

fn remove(heap: &Arc<Heap>, place: GlobalAddr) {
    Table::remove_at(Arc::clone(heap), place).unwrap();
}

fn fill(heap: &Arc<Heap>, place: GlobalAddr, keys: std::ops::Range<u64>) {
    let mut handle = open(heap, place).handle();
    for key in keys {
        perform(&mut handle, key, Op::Put(key));
    }
}

/// Runs `first` until it is killed at its operation `at`; the daemon then resolves what it left,
/// and the table is removed. Returns whether it was killed.
fn meet(at: u64, keys: u64, first: fn(&Arc<Heap>, GlobalAddr)) -> bool {
    let (heap, place) = heap();
    if keys > 0 {
        fill(&heap, place, 0..keys);
    }
    let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
    heap.schedule(Arc::clone(&time));
    let killed = time.run(vec![Box::new(|| first(&heap, place))])[0];
    heap.recover(|client| client == Some(0), || {});
    remove(&heap, place);
    assert_eq!(heap.live(), [PLACE], "at {at}");
    // The place can be used again.
    fill(&heap, place, 0..1);
    assert_eq!(value_of(&mut open(&heap, place).handle(), 0), Some(0));
    remove(&heap, place);
    killed
}

#[test]
fn what_a_killed_remover_left_is_removed_by_the_next() {
    for keys in [1, 100] {
        let count = (1..).take_while(|at| meet(*at, keys, remove)).count();
        assert!(count > 40, "{count}");
    }
}

/// No scan visits them, and nobody can read their keys.
#[test]
fn a_table_with_lost_entries_is_removed() {
    let (heap, place) = heap();
    fill(&heap, place, 0..60);
    let entries = heap.live_of(64).into_iter().filter(|addr| *addr != place.raw());
    entries.take(5).for_each(|addr| heap.lose(GlobalAddr::from_raw(addr)));
    remove(&heap, place);
    assert_eq!(heap.live(), [PLACE]);
}

#[test]
fn a_table_whose_creator_was_killed_is_removed() {
    let create = |heap: &Arc<Heap>, place| fill(heap, place, 0..30);
    let count = (1..).take_while(|at| meet(*at, 0, create)).count();
    assert!(count > 100, "{count}");
}

#[test]
fn a_table_is_not_removed_while_a_killed_client_needs_its_words() {
    let mut refused = 0;
    for at in 1.. {
        let (heap, place) = heap();
        fill(&heap, place, 0..30);
        let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
        heap.schedule(Arc::clone(&time));
        let work = || {
            let mut handle = open(&heap, place).handle();
            perform(&mut handle, 3, Op::Delete);
            for key in 30..60 {
                perform(&mut handle, key, Op::Put(key));
            }
        };
        let killed = time.run(vec![Box::new(work)])[0];
        match Table::remove_at(Arc::clone(&heap), place) {
            Ok(()) => heap.recover(|client| client == Some(0), || {}),
            Err(KvError::InUse { .. }) => {
                refused += 1;
                heap.recover(|client| client == Some(0), || {});
                remove(&heap, place);
            }
            Err(error) => panic!("at {at}: {error}"),
        }
        assert_eq!(heap.live(), [PLACE], "at {at}");
        if !killed {
            break;
        }
    }
    assert!(refused > 0, "no kill left anything unresolved");
}
