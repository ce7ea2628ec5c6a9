//! One client is killed, or stopped, at each of its memory operations in turn; the others must go
//! on, miss nothing that was acknowledged, and find little memory left behind.
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
use support::{SEGMENT_BYTES, small_table, value_of, watch_table, watching_heap};

/// What a killed client may leave: objects and segments.
struct Bound {
    objects: usize,
    segments: usize,
}

/// The key that the victim works on.
const KEY: u64 = 1;
const NEW: u64 = 77;
const OLD: u64 = 55;

/// An operation of the victim, and what is done before it.
struct Case {
    name: &'static str,
    prepare: fn(&mut Handle<Arc<Heap>>),
    op: Op,
    /// What the key's value may be afterwards, beside what it was before.
    after: Option<u64>,
    bound: Bound,
}

fn fill(handle: &mut Handle<Arc<Heap>>, keys: std::ops::Range<u64>) {
    for key in keys {
        perform(handle, key, Op::Put(key));
    }
}

fn cases() -> Vec<Case> {
    let put_old = |handle: &mut Handle<Arc<Heap>>| {
        perform(handle, KEY, Op::Put(OLD));
    };
    vec![
        Case {
            name: "a new key",
            prepare: |_| {},
            op: Op::Put(NEW),
            after: Some(NEW),
            bound: Bound { objects: 1, segments: 0 },
        },
        Case {
            name: "a replaced value",
            prepare: put_old,
            op: Op::Put(NEW),
            after: Some(NEW),
            bound: Bound { objects: 1, segments: 0 },
        },
        Case {
            name: "a deletion",
            prepare: put_old,
            op: Op::Delete,
            after: None,
            bound: Bound { objects: 1, segments: 0 },
        },
        Case {
            name: "a compare-and-put",
            prepare: put_old,
            op: Op::Swap(Some(OLD), NEW),
            after: Some(NEW),
            // The new object, and the old one that it held.
            bound: Bound { objects: 2, segments: 0 },
        },
        Case {
            name: "a split",
            prepare: |handle| fill(handle, 100..124),
            op: Op::Put(NEW),
            after: Some(NEW),
            bound: Bound { objects: 1, segments: 1 },
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
            bound: Bound { objects: 1, segments: 1 },
        },
    ]
}

/// Runs a case with the victim's fate. Returns whether the victim met it.
fn run(case: &Case, fate: Fate, first_key: usize, label: &str) -> bool {
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
    // One client after the other; only the fate switches them.
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    heap.schedule(Arc::clone(&time));
    let victim = || {
        perform(&mut table.handle(), KEY, case.op);
    };
    let mut survivor = || {
        let mut handle = table.handle();
        let seen = value_of(&mut handle, KEY);
        assert!(seen == before || seen == case.after, "{label}: {seen:?}");
        for key in &others {
            assert_eq!(value_of(&mut handle, *key), Some(*key), "{label}");
        }
        // A client that knows nothing changes what one that knows the old segment reads.
        for key in &others {
            perform(&mut table.handle(), *key, Op::Put(key + 1000));
            assert_eq!(value_of(&mut first, *key), Some(key + 1000), "{label}");
            perform(&mut table.handle(), *key, Op::Put(*key));
        }
        // Splits and compactions of all that the victim may have had in its hands.
        for key in 200..260 {
            perform(&mut handle, key, Op::Put(key));
        }
        for key in 200..260 {
            perform(&mut handle, key, Op::Delete);
        }
        if matches!(fate, Fate::KilledAt(_)) {
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
    table.destroy().unwrap();
    let (segments, objects): (Vec<u64>, Vec<u64>) =
        heap.live().into_iter().partition(|size| *size == SEGMENT_BYTES);
    let bound = if killed { &case.bound } else { &Bound { objects: 0, segments: 0 } };
    assert!(objects.len() <= bound.objects, "{label}: {objects:?} left");
    assert!(segments.len() <= bound.segments, "{label}: {segments:?} left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

/// Runs a case with the victim's end at each of its operations; returns how many there are.
fn everywhere(case: &Case, fate: fn(u64) -> Fate) -> u64 {
    let mut at = 1;
    loop {
        // The others begin with different keys: of the lower and of the upper half of a split.
        for first_key in 0..4 {
            let label = format!("{} at {at}, first key {first_key}", case.name);
            if !run(case, fate(at), first_key, &label) {
                return at - 1;
            }
        }
        at += 1;
    }
}

#[test]
fn a_client_killed_anywhere_harms_nobody_and_leaves_little() {
    for case in cases() {
        assert!(everywhere(&case, Fate::KilledAt) > 4, "{}", case.name);
    }
}

#[test]
fn a_client_stopped_anywhere_finishes_later() {
    for case in cases() {
        assert!(everywhere(&case, Fate::StoppedAt) > 4, "{}", case.name);
    }
}

#[test]
fn a_stopped_compare_and_put_is_not_fooled_by_a_value_that_came_back_to_its_place() {
    // 256 changes of the slot, and the old object's address again with another value in it:
    // the slot's word is the very one that the stopped client saw.
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
            for value in 1000..1256 {
                perform(&mut handle, KEY, Op::Put(value));
            }
        };
        time.run(vec![Box::new(victim), Box::new(survivor)]);
        let stopped = time.operations(0) >= at;
        let seen = value_of(&mut table.handle(), KEY);
        let done = done.into_inner().unwrap();
        if done == Some(support::history::Answer::Bool(true)) {
            // It happened before the others or never stopped: its value is gone.
            assert!(!stopped || seen == Some(1255), "stopped at {at}: {seen:?}");
        } else {
            assert_eq!(seen, Some(1255), "stopped at {at}");
        }
        table.destroy().unwrap();
        assert_eq!(heap.live(), Vec::<u64>::new(), "stopped at {at}");
    }
}
