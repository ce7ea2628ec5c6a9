//! A pool with room for entries but not for another segment: stored entries stay usable when a
//! client is killed or stopped during a split.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rackpool_kv::{Handle, KvError};
use support::heap::Heap;
use support::history::{Answer, Op, perform};
use support::scheduler::{Fate, scheduler};
use support::{number, small_table, value_of, watch_table, watching_heap};

fn allow_segments(heap: &Heap, count: u64) {
    heap.segments_left.store(count, Ordering::Relaxed);
}

/// Puts keys from `first` on until one is refused; returns that key.
fn fill(handle: &mut Handle<Arc<Heap>>, first: u64) -> u64 {
    let refused = (first..).find(|key| perform(handle, *key, Op::Put(*key)) == Answer::Refused);
    refused.unwrap()
}

fn stored(handle: &mut Handle<Arc<Heap>>) -> Vec<u64> {
    let mut keys = Vec::new();
    handle.for_each(|key, _| keys.push(number(key))).unwrap();
    keys.sort_unstable();
    keys
}

#[test]
fn who_gets_no_segment_freezes_nothing_and_what_is_stored_goes_on() {
    for segments in 0..6 {
        let heap = Arc::new(watching_heap());
        let table = small_table(&heap);
        watch_table(&heap, &table);
        allow_segments(&heap, segments);
        let mut handle = table.handle();
        let full = fill(&mut handle, 0);
        assert_eq!(stored(&mut handle), (0..full).collect::<Vec<_>>());
        for key in 0..full {
            assert_eq!(perform(&mut handle, key, Op::Update(key + 1)), Answer::Bool(true));
            assert_eq!(value_of(&mut table.handle(), key), Some(key + 1));
        }
        for key in 0..full {
            assert_eq!(perform(&mut table.handle(), key, Op::Delete), Answer::Bool(true));
        }
        assert_eq!(stored(&mut handle), []);
        assert!(segments == 0 || perform(&mut handle, full, Op::Put(1)) == Answer::Bool(false));
        allow_segments(&heap, u64::MAX);
        for key in 0..3 * full {
            assert_ne!(perform(&mut handle, key, Op::Put(key)), Answer::Refused);
        }
        table.destroy().unwrap();
        assert_eq!(heap.live(), Vec::<u64>::new());
    }
}

/// A table whose next insertion of key 1000 splits, with `spare` spare segments.
fn before_a_split(heap: &Arc<Heap>, spare: u64) -> (rackpool_kv::Table<Arc<Heap>>, u64) {
    let table = small_table(heap);
    watch_table(heap, &table);
    let mut handle = table.handle();
    allow_segments(heap, spare);
    let full = fill(&mut handle, 0);
    (table, full)
}

/// The victim meets its fate in a split for which it had two segments; the pool has room for only
/// `more` others. `early`: more become available before a stopped victim continues. Returns whether
/// the victim met its fate.
fn run(fate: Fate, more: u64, at_once: bool, early: bool, label: &str) -> bool {
    let heap = Arc::new(watching_heap());
    let (table, full) = before_a_split(&heap, 3);
    allow_segments(&heap, 2);
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    heap.schedule(Arc::clone(&time));
    let victim = || {
        perform(&mut table.handle(), full, Op::Put(full));
    };
    let resolve = || heap.recover(|client| client == Some(0), || {});
    let is_killed = matches!(fate, Fate::KilledAt(_));
    // Each is changed once, so that no object stays at its address.
    let values = Mutex::new((0..full).collect::<Vec<_>>());
    let survivor = || {
        allow_segments(&heap, more);
        if is_killed && at_once {
            resolve();
        }
        let mut handle = table.handle();
        // A killed victim's segments are spare again; a stopped one may have borrowed them all.
        let is_sure = (is_killed && at_once) || more > 0;
        for key in 0..full {
            assert_eq!(value_of(&mut handle, key), Some(key), "{label}");
            let answer = perform(&mut table.handle(), key, Op::Update(key + 1));
            assert!(answer == Answer::Bool(true) || !is_sure, "{label}: {answer:?}");
            if answer == Answer::Bool(true) {
                values.lock().unwrap()[key as usize] += 1;
            }
        }
        if is_sure {
            let mut keys = stored(&mut handle);
            keys.retain(|key| *key != full);
            assert_eq!(keys, (0..full).collect::<Vec<_>>(), "{label}");
        }
        if !early {
            return;
        }
        // With more memory, everything that was begun completes.
        allow_segments(&heap, u64::MAX);
        for key in 2000..2000 + 2 * full {
            assert_eq!(perform(&mut handle, key, Op::Put(key)), Answer::Bool(false), "{label}");
        }
        for key in 2000..2000 + full {
            assert_eq!(perform(&mut handle, key, Op::Delete), Answer::Bool(true), "{label}");
        }
    };
    let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
    if killed {
        resolve();
    }
    allow_segments(&heap, u64::MAX);
    let mut last = table.handle();
    let puts = if early { 2000 + full..2000 + 2 * full } else { 0..0 };
    let values = values.into_inner().unwrap();
    let check = |last: &mut Handle<Arc<Heap>>| {
        for (key, value) in
            (0..full).zip(values.iter().copied()).chain(puts.clone().zip(puts.clone()))
        {
            assert_eq!(value_of(last, key), Some(value), "{label}");
        }
    };
    check(&mut last);
    for key in 3000..3000 + full {
        assert_eq!(perform(&mut last, key, Op::Put(key)), Answer::Bool(false), "{label}");
    }
    check(&mut last);
    let seen = value_of(&mut last, full);
    assert!(seen == Some(full) || killed || !early, "{label}: {seen:?}");
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

/// Runs the test with the fate at each operation of the victim.
fn everywhere(fate: fn(u64) -> Fate, at_once: bool) {
    let met = |at: &u64| {
        let cases = (0..4).flat_map(|more| [(more, true), (more, false)]);
        cases.into_iter().all(|(more, early)| {
            let label = format!("{:?}, {more} segments more, {at_once}, {early}", fate(*at));
            run(fate(*at), more, at_once, early, &label)
        })
    };
    let count = (1..).find(|at| !met(at)).unwrap();
    assert!(count > 50, "{count}");
}

#[test]
fn a_segment_that_a_killed_client_froze_is_usable_in_a_full_pool() {
    everywhere(Fate::KilledAt, true);
}

#[test]
fn a_killed_clients_segments_may_come_back_late_in_a_full_pool() {
    everywhere(Fate::KilledAt, false);
}

#[test]
fn a_client_that_was_stopped_in_a_split_finds_that_others_have_compacted() {
    everywhere(Fate::StoppedAt, false);
}

#[test]
fn a_segment_among_the_spare_ones_that_is_damaged_stops_no_split() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    for key in 0..100 {
        perform(&mut handle, key, Op::Put(key));
    }
    // The table's header, which is no segment, and a word that is no valid place.
    let spare_segments = table.addr().raw() + 64;
    for (place, word) in [(60, table.addr().raw()), (61, 77)] {
        let place = rackpool_kv::GlobalAddr::from_raw(spare_segments + place * 8);
        rackpool_kv::Memory::write(&heap, place, &word.to_le_bytes()).unwrap();
    }
    for key in 100..1000 {
        assert_eq!(perform(&mut handle, key, Op::Put(key)), Answer::Bool(false));
    }
    assert_eq!(stored(&mut handle), (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_full_pool_is_told_as_such() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    allow_segments(&heap, 0);
    let full = fill(&mut table.handle(), 0);
    let error = table.handle().put(&full.to_le_bytes(), b"12345678").unwrap_err();
    assert!(matches!(error, KvError::Memory(_)), "{error}");
}
