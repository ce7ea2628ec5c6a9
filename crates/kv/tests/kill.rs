//! One client is killed or stopped at each of its memory operations in turn. The others must
//! continue, find every acknowledged change, and leak no memory.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;

use rackpool_kv::Handle;
use support::heap::Heap;
use support::history::{Op, perform};
use support::scheduler::{Fate, scheduler};
use support::{small_table, value_of, watch_table, watching_heap};

/// When a killed client's reservations are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolved {
    /// Before any other client does anything.
    AtOnce,
    /// After the others have changed, split and compacted everything.
    Late,
}

/// The key that the victim changes.
const KEY: u64 = 1;
const NEW: u64 = 77;
const OLD: u64 = 55;

/// An operation of the victim, and its preparation.
struct Case {
    name: &'static str,
    prepare: fn(&mut Handle<Arc<Heap>>),
    op: Op,
    /// The value that the key may have afterwards, besides its value before.
    after: Option<u64>,
}

fn fill(handle: &mut Handle<Arc<Heap>>, keys: std::ops::Range<u64>) {
    for key in keys {
        perform(handle, key, Op::Put(key));
    }
}

/// Operations that change one slot.
fn entry_cases() -> Vec<Case> {
    let put_old = |handle: &mut Handle<Arc<Heap>>| {
        perform(handle, KEY, Op::Put(OLD));
    };
    vec![
        Case { name: "a new key", prepare: |_| {}, op: Op::Put(NEW), after: Some(NEW) },
        Case { name: "a replaced value", prepare: put_old, op: Op::Put(NEW), after: Some(NEW) },
        Case { name: "an insertion", prepare: |_| {}, op: Op::Insert(NEW), after: Some(NEW) },
        Case {
            name: "an insertion of a key that is there",
            prepare: put_old,
            op: Op::Insert(NEW),
            after: Some(OLD),
        },
        Case { name: "an update", prepare: put_old, op: Op::Update(NEW), after: Some(NEW) },
        Case { name: "a deletion", prepare: put_old, op: Op::Delete, after: None },
        Case {
            name: "a compare-and-put",
            prepare: put_old,
            op: Op::Swap(Some(OLD), NEW),
            after: Some(NEW),
        },
    ]
}

/// Operations that replace a segment.
fn segment_cases() -> Vec<Case> {
    vec![
        Case {
            name: "a split",
            prepare: |handle| fill(handle, 100..124),
            op: Op::Put(NEW),
            after: Some(NEW),
        },
        Case {
            name: "a compaction",
            prepare: |handle| {
                fill(handle, 100..124);
                for key in 110..120 {
                    perform(handle, key, Op::Delete);
                }
            },
            op: Op::Put(NEW),
            after: Some(NEW),
        },
    ]
}

fn cases() -> impl Iterator<Item = Case> {
    entry_cases().into_iter().chain(segment_cases())
}

/// Runs a case with this fate. Returns whether the victim met it.
fn run(case: &Case, fate: Fate, when: Resolved, first_key: usize, label: &str) -> bool {
    let heap = Arc::new(watching_heap());
    let table = small_table(&heap);
    watch_table(&heap, &table);
    let mut first = table.handle();
    (case.prepare)(&mut first);
    let before = value_of(&mut first, KEY);
    let mut others = Vec::new();
    first.for_each(|key, _| others.push(support::number(key))).unwrap();
    others.retain(|key| *key != KEY);
    others.sort_unstable();
    if let Some(count) = std::num::NonZero::new(others.len()) {
        others.rotate_left(first_key % count);
    }
    // The clients run one after the other; only the fate switches them.
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    heap.schedule(Arc::clone(&time));
    let victim = || {
        perform(&mut table.handle(), KEY, case.op);
    };
    let resolve = || heap.recover(|client| client == Some(0), || {});
    let mut survivor = || {
        if matches!(fate, Fate::KilledAt(_)) && when == Resolved::AtOnce {
            resolve();
        }
        let mut handle = table.handle();
        let seen = value_of(&mut handle, KEY);
        assert!(seen == before || seen == case.after, "{label}: {seen:?}");
        for key in &others {
            assert_eq!(value_of(&mut handle, *key), Some(*key), "{label}");
        }
        // A client with an empty cache changes what a client with a stale cache reads.
        for key in &others {
            perform(&mut table.handle(), *key, Op::Put(key + 1000));
            assert_eq!(value_of(&mut first, *key), Some(key + 1000), "{label}");
            perform(&mut table.handle(), *key, Op::Put(*key));
        }
        // Splits and compacts every segment that the victim may have borrowed.
        let more = 200..212 + 16 * first_key as u64;
        for key in more.clone() {
            perform(&mut handle, key, Op::Put(key));
        }
        for key in more {
            perform(&mut handle, key, Op::Delete);
        }
        // In the other half of the cases the victim's object is only moved, out of segments that
        // are reused.
        if matches!(fate, Fate::KilledAt(_)) && first_key.is_multiple_of(2) {
            perform(&mut handle, KEY, Op::Put(5));
            perform(&mut handle, KEY, Op::Put(6));
            assert_eq!(value_of(&mut handle, KEY), Some(6), "{label}");
        }
    };
    let killed = time.run(vec![Box::new(victim), Box::new(&mut survivor)])[0];
    let mut last = table.handle();
    for key in &others {
        assert_eq!(value_of(&mut last, *key), Some(*key), "{label}");
    }
    if !killed && matches!(fate, Fate::StoppedAt(_)) {
        assert_eq!(value_of(&mut last, KEY), case.after, "{label}");
    }
    if killed {
        resolve();
    }
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

/// Runs a case with the fate at each operation of the victim; returns the number of operations.
fn everywhere(case: &Case, fate: fn(u64) -> Fate, when: Resolved) -> u64 {
    let mut at = 1;
    loop {
        // The others begin with different keys: of the lower and of the upper half of a split.
        for first_key in 0..4 {
            let label = format!("{} at {at}, {when:?}, first key {first_key}", case.name);
            if !run(case, fate(at), when, first_key, &label) {
                return at - 1;
            }
        }
        at += 1;
    }
}

#[test]
fn a_client_killed_anywhere_harms_nobody_and_leaves_nothing_behind() {
    for case in cases() {
        assert!(everywhere(&case, Fate::KilledAt, Resolved::AtOnce) > 4, "{}", case.name);
    }
}

#[test]
fn reservations_that_are_resolved_late_are_resolved_alike() {
    for case in cases() {
        assert!(everywhere(&case, Fate::KilledAt, Resolved::Late) > 4, "{}", case.name);
    }
}

#[test]
fn a_client_stopped_anywhere_finishes_later() {
    for case in cases() {
        assert!(everywhere(&case, Fate::StoppedAt, Resolved::Late) > 4, "{}", case.name);
    }
}

#[test]
fn a_stopped_compare_and_put_is_not_fooled_by_a_value_that_came_back_to_its_place() {
    // The slot changes 1024 times, and the old object's address is reused for another value. The
    // slot then has exactly the word that the stopped client read.
    for at in 1..20 {
        let heap = Arc::new(Heap::new(1 << 20));
        let table = small_table(&heap);
        perform(&mut table.handle(), KEY, Op::Put(OLD));
        let time = scheduler(1, &[Fate::StoppedAt(at), Fate::Lives]).never_switching();
        heap.schedule(Arc::clone(&time));
        let done = std::sync::Mutex::new(None);
        let victim = || {
            let answer = perform(&mut table.handle(), KEY, Op::Swap(Some(OLD), NEW));
            *done.lock().unwrap() = Some(answer);
        };
        let survivor = || {
            let mut handle = table.handle();
            for value in 1000..2024 {
                perform(&mut handle, KEY, Op::Put(value));
            }
        };
        time.run(vec![Box::new(victim), Box::new(survivor)]);
        let stopped = time.operations(0) >= at;
        let seen = value_of(&mut table.handle(), KEY);
        let done = done.into_inner().unwrap();
        if done == Some(support::history::Answer::Bool(true)) {
            // It was made before the others' changes, or the client never stopped: its value is
            // gone.
            assert!(!stopped || seen == Some(2023), "stopped at {at}: {seen:?}");
        } else {
            assert_eq!(seen, Some(2023), "stopped at {at}");
        }
        table.destroy().unwrap();
        assert_eq!(heap.live(), Vec::<u64>::new(), "stopped at {at}");
    }
}

#[test]
fn a_compare_and_put_that_was_fooled_and_killed_leaves_nothing_behind() {
    // As above; then the client is killed at each of its operations after it continued.
    for (at, more) in (1..20).flat_map(|at| (1..30).map(move |more| (at, more))) {
        let heap = Arc::new(Heap::new(1 << 20));
        let table = small_table(&heap);
        perform(&mut table.handle(), KEY, Op::Put(OLD));
        let fates = [Fate::StoppedAndKilledAt(at, at + more), Fate::Lives];
        let time = scheduler(1, &fates).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            perform(&mut table.handle(), KEY, Op::Swap(Some(OLD), NEW));
        };
        let survivor = || {
            let mut handle = table.handle();
            for value in 1000..2024 {
                perform(&mut handle, KEY, Op::Put(value));
            }
        };
        let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
        if !killed {
            continue;
        }
        let resolve = || heap.recover(|client| client == Some(0), || {});
        resolve();
        let mut handle = table.handle();
        if more % 2 == 0 {
            // The object is only moved, out of segments that are reused, before any client reads
            // it.
            for key in 200..260 {
                perform(&mut handle, key, Op::Put(key));
                perform(&mut handle, key, Op::Delete);
            }
            resolve();
        }
        let seen = value_of(&mut handle, KEY);
        assert!(seen == Some(2023) || seen == Some(NEW), "killed {more} after {at}: {seen:?}");
        // What the victim could not unlink is freed once the slot has changed.
        perform(&mut handle, KEY, Op::Put(5));
        resolve();
        table.destroy().unwrap();
        assert_eq!(heap.live(), Vec::<u64>::new(), "killed {more} after {at}");
    }
}
