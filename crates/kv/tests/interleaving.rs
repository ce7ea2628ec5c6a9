//! Clients that are switched, stopped and killed at every memory operation: whatever they saw must
//! be explained by one register per key, and little memory may be left behind.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;

use support::history::{Answer, History, Op};
use support::scheduler::{Fate, Scheduler};
use support::{SEGMENT_BYTES, small_table};

/// Keys 0..HOT are used by all clients; the others fill the table.
const HOT: u64 = 3;

struct Plan {
    seed: u64,
    fates: Vec<Fate>,
    faults: u64,
    far: bool,
}

impl Drop for Plan {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with RACKPOOL_SEED={}", self.seed);
        }
    }
}

/// A random stream of a test's own.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// An operation that stores `value`, if it stores any; `known` is what the key's value was.
fn operation(choice: u64, known: Option<u64>, value: u64) -> Op {
    match choice % 10 {
        0 | 1 => Op::Put(value),
        2 => Op::Insert(value),
        3 => Op::Update(value),
        4 => Op::Delete,
        5..=7 => Op::Swap(known, value),
        _ => Op::Get,
    }
}

/// Runs one schedule and checks everything.
fn run(plan: &Plan) {
    let mut heap = support::watching_heap();
    heap.far = plan.far;
    let heap = Arc::new(heap);
    let table = small_table(&heap);
    support::watch_table(&heap, &table);
    let time = Arc::new(Scheduler::new(plan.seed, &plan.fates).with_faults(plan.faults));
    let history = History::default();
    let mut first = table.handle();
    let mut stream = plan.seed ^ 0x5eed;
    // Nearly full, so that the clients split and compact.
    for key in 100..100 + 16 + random(&mut stream) % 8 {
        first.put(&key.to_le_bytes(), &0u64.to_le_bytes()).unwrap();
    }
    for key in 0..HOT {
        if random(&mut stream).is_multiple_of(2) {
            history.run(&time, &mut first, key, Op::Put(1000 + key));
        }
    }
    heap.schedule(Arc::clone(&time));
    let clients = (0..plan.fates.len() as u64)
        .map(|client| {
            let (table, history, time) = (&table, &history, &*time);
            let mut stream = plan.seed.wrapping_mul(31) + client;
            let body = move || {
                let mut handle = table.handle();
                let mut known = [None; HOT as usize];
                for at in 0..7 {
                    let value = 10_000 + client * 100 + at;
                    let key = random(&mut stream) % HOT;
                    let known = &mut known[key as usize];
                    let op = operation(random(&mut stream), *known, value);
                    let answer = history.run(time, &mut handle, key, op);
                    match (op, answer) {
                        (Op::Get, Answer::Value(found)) => *known = found,
                        (Op::Put(_), _) => *known = Some(value),
                        _ => {}
                    }
                    // Other keys make the segments split and the dead slots many.
                    if random(&mut stream).is_multiple_of(3) {
                        let key = 200 + client * 50 + at;
                        history.run(time, &mut handle, key, Op::Put(value));
                        if random(&mut stream).is_multiple_of(2) {
                            history.run(time, &mut handle, key, Op::Delete);
                        }
                    }
                }
            };
            Box::new(body) as Box<dyn FnOnce() + Send>
        })
        .collect();
    let killed = time.run(clients);
    let mut last = table.handle();
    for key in (0..HOT).chain(200..200 + plan.fates.len() as u64 * 50) {
        history.run(&time, &mut last, key, Op::Get);
    }
    history.check(&format!("seed {} {:?}", plan.seed, plan.fates));
    for key in 100..116u64 {
        assert_eq!(support::value_of(&mut last, key), Some(0), "seed {}", plan.seed);
    }
    table.destroy().unwrap();
    if plan.faults == 0 {
        let (segments, objects): (Vec<u64>, Vec<u64>) =
            heap.live().into_iter().partition(|size| *size == SEGMENT_BYTES);
        let dead = killed.iter().filter(|killed| **killed).count();
        assert!(objects.len() <= 2 * dead, "seed {}: {objects:?} left by {dead}", plan.seed);
        assert!(segments.len() <= dead, "seed {}: {segments:?} left by {dead}", plan.seed);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("RACKPOOL_SEEDS").ok().and_then(|count| count.parse().ok());
    let first = std::env::var("RACKPOOL_SEED").ok().and_then(|seed| seed.parse().ok());
    first.map_or(0..count.unwrap_or(700), |first| first..first + 1)
}

#[test]
fn any_interleaving_is_linearizable_and_leaks_nothing() {
    for seed in seeds() {
        let clients = 2 + seed as usize % 3;
        run(&Plan { seed, fates: vec![Fate::Lives; clients], faults: 0, far: seed % 2 == 1 });
    }
}

#[test]
fn stopped_and_killed_clients_harm_nobody() {
    for seed in seeds() {
        let mut stream = seed;
        let at = random(&mut stream) % 250 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        let other = if seed % 5 == 0 { Fate::KilledAt(at / 2 + 1) } else { Fate::Lives };
        run(&Plan { seed, fates: vec![fate, other, Fate::Lives], faults: 0, far: seed % 4 > 1 });
    }
}

#[test]
fn unanswered_swaps_are_explained_or_reported() {
    for seed in seeds() {
        run(&Plan { seed, fates: vec![Fate::Lives; 3], faults: 20, far: false });
    }
}
