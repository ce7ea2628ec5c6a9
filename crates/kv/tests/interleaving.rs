//! Clients that are switched, stopped and killed at every memory operation: one register per key
//! explains their answers, and no memory is leaked.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rackpool_kv::{Handle, KvError, Table};
use rackpool_sync::SplitMix64;
use support::heap::{Heap, HeapError};
use support::history::{Answer, History, Op};
use support::interleaving::{Client, Replay, scheduler, seeds};
use support::scheduler::{Fate, Scheduler};
use support::small_table;

/// Keys 0..HOT are used by all clients; the others fill the table.
const HOT: u64 = 3;

struct Plan {
    seed: u64,
    fates: Vec<Fate>,
    faults: u64,
    far: bool,
    /// The pool sometimes has room for only a few segments.
    full: bool,
    /// Reading freed memory is an error.
    closes: bool,
}

/// An operation that stores `value`, if it stores any; `known` was the key's value.
fn operation(choice: u64, known: Option<u64>, value: u64) -> Op {
    match choice % 10 {
        0 | 1 => Op::Put(value),
        2 => Op::Insert(value),
        3 => Op::Update(value),
        4 => Op::Delete,
        5..=7 => Op::Swap(known, value),
        8 => Op::GetMany,
        _ => Op::Get,
    }
}

/// Fills the table partly.
fn prepare(
    first: &mut Handle<Arc<Heap>>,
    stream: &mut SplitMix64,
    history: &History,
    time: &Scheduler,
) {
    // Nearly full, so that the clients split and compact.
    for key in 100..100 + 16 + stream.draw() % 8 {
        first.put(&key.to_le_bytes(), &0u64.to_le_bytes()).unwrap();
    }
    for key in 0..HOT {
        if stream.draw().is_multiple_of(2) {
            history.run(time, first, key, Op::Put(1000 + key));
        }
    }
}

/// Runs one schedule and checks everything.
fn run(plan: &Plan) {
    let mut heap = support::watching_heap();
    heap.far = plan.far;
    heap.closes = plan.closes;
    let heap = Arc::new(heap);
    let table = small_table(&heap);
    support::watch_table(&heap, &table);
    let _replay = Replay(plan.seed);
    let time = scheduler(plan.seed, &plan.fates, plan.faults);
    let history = History::default();
    let mut first = table.handle();
    let mut stream = SplitMix64::new(plan.seed ^ 0x5eed);
    prepare(&mut first, &mut stream, &history, &time);
    let mut rooms = SplitMix64::new(plan.seed);
    if plan.full {
        heap.segments_left.store(rooms.draw() % 4, Ordering::Relaxed);
    }
    let clients: Vec<Client<'_>> = (0..plan.fates.len() as u64)
        .map(|client| {
            let (table, history, time) = (&table, &history, &*time);
            let mut stream = SplitMix64::new(plan.seed.wrapping_mul(31) + client);
            let body = move || {
                let mut handle = table.handle();
                let mut known = [None; HOT as usize];
                for at in 0..7 {
                    let value = 10_000 + client * 100 + at;
                    let key = stream.draw() % HOT;
                    let known = &mut known[key as usize];
                    let op = operation(stream.draw(), *known, value);
                    let answer = history.run(time, &mut handle, key, op);
                    match (op, answer) {
                        (Op::Get | Op::GetMany, Answer::Value(found)) => *known = found,
                        (Op::Put(_), _) => *known = Some(value),
                        _ => {}
                    }
                    // Other keys cause splits and many dead slots.
                    if stream.draw().is_multiple_of(3) {
                        let key = 200 + client * 50 + at;
                        history.run(time, &mut handle, key, Op::Put(value));
                        if stream.draw().is_multiple_of(2) {
                            history.run(time, &mut handle, key, Op::Delete);
                        }
                    }
                }
            };
            Box::new(body) as Client<'_>
        })
        .collect();
    support::interleaving::run(&heap, &time, clients, || {
        if plan.full && rooms.draw().is_multiple_of(64) {
            heap.segments_left.store(rooms.draw() % 3, Ordering::Relaxed);
        }
    });
    heap.segments_left.store(u64::MAX, Ordering::Relaxed);
    check(plan, &heap, table, &history, &time);
}

/// Checks that the clients' answers are explained and that nothing is left.
fn check(
    plan: &Plan,
    heap: &Arc<Heap>,
    table: Table<Arc<Heap>>,
    history: &History,
    time: &Scheduler,
) {
    let mut last = table.handle();
    for key in (0..HOT).chain(200..200 + plan.fates.len() as u64 * 50) {
        history.run(time, &mut last, key, Op::Get);
    }
    history.check(&format!("seed {} {:?}", plan.seed, plan.fates));
    for key in 100..116u64 {
        assert_eq!(support::value_of(&mut last, key), Some(0), "seed {}", plan.seed);
    }
    table.destroy().unwrap();
    if plan.faults == 0 {
        assert_eq!(heap.live(), Vec::<u64>::new(), "seed {} {:?}: left", plan.seed, plan.fates);
    }
}

/// Clients that are neither killed nor stopped.
fn lively(seed: u64, closes: bool) -> Plan {
    let fates = vec![Fate::Lives; 2 + seed as usize % 3];
    Plan { seed, fates, faults: 0, far: seed % 2 == 1, full: false, closes }
}

#[test]
fn any_interleaving_is_linearizable_and_leaks_nothing() {
    for seed in seeds(700) {
        run(&lively(seed, false));
    }
}

#[test]
fn stopped_and_killed_clients_harm_nobody() {
    for seed in seeds(700) {
        let mut stream = SplitMix64::new(seed);
        let at = stream.draw() % 250 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        let other = if seed % 5 == 0 { Fate::KilledAt(at / 2 + 1) } else { Fate::Lives };
        run(&Plan {
            seed,
            fates: vec![fate, other, Fate::Lives],
            faults: 0,
            far: seed % 4 > 1,
            full: false,
            closes: false,
        });
    }
}

#[test]
fn unanswered_swaps_are_explained_or_reported() {
    for seed in seeds(700) {
        run(&Plan {
            seed,
            fates: vec![Fate::Lives; 3],
            faults: 20,
            far: false,
            full: false,
            closes: false,
        });
    }
}

#[test]
fn a_pool_that_is_full_now_and_then_is_linearizable_and_leaks_nothing() {
    for seed in seeds(700) {
        let mut stream = SplitMix64::new(seed ^ 0xf011);
        let at = stream.draw() % 250 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        let other = if seed % 5 == 0 { Fate::StoppedAt(at / 2 + 1) } else { Fate::Lives };
        let fates = vec![fate, other, Fate::Lives];
        run(&Plan { seed, fates, faults: 0, far: seed % 4 > 1, full: true, closes: false });
    }
}

#[test]
fn who_looks_at_what_was_freed_meanwhile_looks_again() {
    for seed in seeds(700) {
        run(&lively(seed, true));
    }
}

/// The result of an interrupted compare-and-put, and whether each interruption ran.
struct Interrupted {
    done: Result<bool, KvError<HeapError>>,
    first: bool,
    second: bool,
}

const KEY: [u8; 8] = 7_u64.to_le_bytes();

/// A compare-and-put from 1 to 2 in memory that cannot be read once it is freed. `first` runs at
/// the `first_at`th of its memory operations. `first` gets a closure that makes `second` run at the
/// `second_at`th operation from then on. At the end nothing may be left.
fn interrupt_twice(
    (first_at, second_at): (u64, u64),
    first: impl FnOnce(&mut Handle<Arc<Heap>>, Box<dyn FnOnce() + '_>) + Send + 'static,
    second: impl FnOnce(&mut Handle<Arc<Heap>>) + Send + 'static,
) -> Interrupted {
    let [old, new] = [1_u64, 2].map(u64::to_le_bytes);
    let mut heap = Heap::new(1 << 20);
    heap.closes = true;
    let heap = Arc::new(heap);
    let table = small_table(&heap);
    let mut publisher = table.handle();
    publisher.put(&KEY, &old).unwrap();
    let [mut one, mut other] = [table.handle(), table.handle()];
    let reached = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let (hooked, seen) = (Arc::clone(&heap), Arc::clone(&reached));
    heap.troubles.interrupt(first_at, move || {
        seen[0].store(true, Ordering::Relaxed);
        let seen = Arc::clone(&seen);
        let begin_second = || {
            hooked.troubles.interrupt(second_at, move || {
                seen[1].store(true, Ordering::Relaxed);
                second(&mut other);
            });
        };
        first(&mut one, Box::new(begin_second));
    });
    let done = publisher.compare_and_put(&KEY, Some(&old), &new);
    heap.troubles.forget_hook();
    drop(publisher);
    table.destroy().unwrap();
    let at = format!("at {first_at}, {second_at}");
    assert_eq!(heap.live(), Vec::<u64>::new(), "{at}: left after {done:?}");
    let [first, second] = reached.each_ref().map(|reached| reached.load(Ordering::Relaxed));
    Interrupted { done, first, second }
}

/// Calls `interrupt` with all pairs of operations at which both can run.
fn at_all_pairs(mut interrupt: impl FnMut((u64, u64)) -> Interrupted) {
    for first_at in 1.. {
        let mut is_met = false;
        for second_at in 1.. {
            let Interrupted { first, second, .. } = interrupt((first_at, second_at));
            is_met |= first;
            if !second {
                break;
            }
        }
        if !is_met {
            assert!(first_at > 5, "a compare-and-put takes more than that");
            break;
        }
    }
}

/// A compare-and-put is interrupted by a reader of the key, and the reader by a client that
/// replaces the new value.
fn replaced_meanwhile(at: (u64, u64)) -> Interrupted {
    let reads = move |helper: &mut Handle<Arc<Heap>>, begin_second: Box<dyn FnOnce() + '_>| {
        begin_second();
        let mut value = Vec::new();
        let found = helper.get(&KEY, &mut value);
        assert!(found.is_ok_and(|found| found), "at {at:?}: {value:?}");
    };
    let replaces = |replacer: &mut Handle<Arc<Heap>>| {
        let [new, newer] = [2_u64, 3].map(u64::to_le_bytes);
        replacer.compare_and_put(&KEY, Some(&new), &newer).expect("it is alone now");
    };
    interrupt_twice(at, reads, replaces)
}

#[test]
fn who_decides_for_one_that_was_replaced_meanwhile_looks_again() {
    at_all_pairs(replaced_meanwhile);
}

#[test]
fn who_was_replaced_while_another_one_decided_knows_that_it_counted() {
    at_all_pairs(|at| {
        let interrupted = replaced_meanwhile(at);
        assert!(matches!(interrupted.done, Ok(true)), "at {at:?}: {:?}", interrupted.done);
        interrupted
    });
}

#[test]
fn who_was_fooled_never_says_that_it_counted_whatever_was_freed_meanwhile() {
    at_all_pairs(|at| {
        let seen = Arc::new(AtomicU64::new(0));
        let (known, told) = (Arc::clone(&seen), Arc::clone(&seen));
        // The slot changes 1024 times, and the old object's address is reused for another value.
        let fools = move |fooler: &mut Handle<Arc<Heap>>, begin_second: Box<dyn FnOnce() + '_>| {
            known.store(support::value_of(fooler, 7).unwrap(), Ordering::Relaxed);
            for value in 1000..2024_u64 {
                fooler.put(&KEY, &value.to_le_bytes()).unwrap();
            }
            begin_second();
        };
        // This value is also replaced, and with it the object that the aborted one stands for.
        let replaces = |replacer: &mut Handle<Arc<Heap>>| {
            replacer.put(&KEY, &3_u64.to_le_bytes()).unwrap();
        };
        let interrupted = interrupt_twice(at, fools, replaces);
        let was_first = [0, 2].contains(&told.load(Ordering::Relaxed));
        assert_eq!(interrupted.done.as_ref().ok(), Some(&was_first), "at {at:?}");
        interrupted
    });
}
