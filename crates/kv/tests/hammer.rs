//! Real threads on one table.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;

use rackpool_kv::{Table, TableOptions};
use support::heap::Heap;
use support::number;

const THREADS: u64 = 4;

#[test]
fn threads_see_each_others_values_grow_while_the_table_does() {
    const KEYS: u64 = 1500;
    const ROUNDS: u64 = 40;
    let heap = Arc::new(Heap::new(64 << 20));
    let options = TableOptions { max_depth: 12, segment_bytes: 1024 };
    let table = Table::create(Arc::clone(&heap), &options).unwrap();
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let table = table.clone();
            scope.spawn(move || {
                let mut handle = table.handle();
                let mut value = Vec::new();
                let mut seen = vec![0; (KEYS * THREADS) as usize];
                for round in 1..=ROUNDS {
                    for key in 0..KEYS {
                        let mine = me * KEYS + key;
                        let present =
                            handle.put(&mine.to_le_bytes(), &round.to_le_bytes()).unwrap();
                        assert_eq!(present, round > 1 && (key + round) % 7 != 1);
                        assert!(handle.get(&mine.to_le_bytes(), &mut value).unwrap());
                        assert_eq!(number(&value), round);
                        // Deleted now, put again in the next round.
                        if (key + round) % 7 == 0 {
                            assert!(handle.delete(&mine.to_le_bytes()).unwrap());
                            assert!(!handle.get(&mine.to_le_bytes(), &mut value).unwrap());
                        }
                        let theirs = (mine * 7919 + round) % (KEYS * THREADS);
                        if handle.get(&theirs.to_le_bytes(), &mut value).unwrap() {
                            let last = &mut seen[theirs as usize];
                            assert!(number(&value) >= *last, "a value went back");
                            *last = number(&value);
                        }
                    }
                }
            });
        }
    });
    let mut count = 0;
    table.handle().for_each(|_, _| count += 1).unwrap();
    let gone = (0..KEYS).filter(|key| (key + ROUNDS).is_multiple_of(7)).count() as u64;
    assert_eq!(count, THREADS * (KEYS - gone));
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn no_increment_is_lost() {
    const INCREMENTS: u64 = 60_000;
    const COUNTERS: u64 = 2;
    let heap = Arc::new(Heap::new(16 << 20));
    let options = TableOptions { max_depth: 8, segment_bytes: 256 };
    let table = Table::create(Arc::clone(&heap), &options).unwrap();
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let table = table.clone();
            scope.spawn(move || {
                let mut handle = table.handle();
                let mut value = Vec::new();
                for at in 0..INCREMENTS {
                    let key = (at % COUNTERS).to_le_bytes();
                    loop {
                        let found = handle.get(&key, &mut value).unwrap();
                        let next = if found { number(&value) + 1 } else { 1 };
                        let old = found.then_some(&value[..]);
                        if handle.compare_and_put(&key, old, &next.to_le_bytes()).unwrap() {
                            break;
                        }
                    }
                    // Other keys are inserted and deleted, so that segments are replaced.
                    let beside = 1000 + me * 1000 + at % 100;
                    if at % 2 == 0 {
                        handle.put(&beside.to_le_bytes(), b"beside").unwrap();
                    } else {
                        handle.delete(&(beside - 1).to_le_bytes()).unwrap();
                    }
                }
            });
        }
    });
    let mut handle = table.handle();
    for counter in 0..COUNTERS {
        let value = support::value_of(&mut handle, counter);
        assert_eq!(value, Some(THREADS * INCREMENTS / COUNTERS));
    }
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn a_scan_sees_every_key_that_stays_exactly_once() {
    const STAY: u64 = 800;
    let heap = Arc::new(Heap::new(64 << 20));
    let options = TableOptions { max_depth: 10, segment_bytes: 512 };
    let table = Table::create(Arc::clone(&heap), &options).unwrap();
    for key in 0..STAY {
        table.handle().put(&key.to_le_bytes(), b"stays").unwrap();
    }
    std::thread::scope(|scope| {
        for me in 1..3 {
            let table = table.clone();
            scope.spawn(move || {
                let mut handle = table.handle();
                for at in 0..6000u64 {
                    let key = me * 1_000_000 + at;
                    handle.put(&key.to_le_bytes(), b"goes").unwrap();
                    handle.put(&(at % STAY).to_le_bytes(), b"changed").unwrap();
                    if at >= 500 {
                        handle.delete(&(key - 500).to_le_bytes()).unwrap();
                    }
                }
            });
        }
        let mut handle = table.handle();
        for _ in 0..20 {
            let mut seen = vec![0; STAY as usize];
            handle
                .for_each(|key, _| {
                    if let Some(seen) = seen.get_mut(number(key) as usize) {
                        *seen += 1;
                    }
                })
                .unwrap();
            assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
        }
    });
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}
