//! Clients of an ordered map that are switched, stopped and killed at every memory operation: one
//! register per key explains their answers, ranges miss no key, and no node is left.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;

use rackpool_kv::Table;
use rackpool_kv::ordered::{Direction, OrderedMaps};
use rackpool_sync::SplitMix64;
use support::heap::Heap;
use support::history::{Answer, History, Op};
use support::interleaving::{Client, Replay, scheduler, seeds};
use support::maps::{MAP, keys, new_map, nodes, perform, sweep, value_of};
use support::scheduler::{Fate, Scheduler};
use support::small_table;

/// Keys that all clients change, among others that stay.
const HOT: [u64; 3] = [55, 60, 75];
/// The number of keys that stay: multiples of ten.
const STAYS: u64 = 12;

struct Plan {
    seed: u64,
    fates: Vec<Fate>,
    faults: u64,
}

fn operation(choice: u64, known: Option<u64>, value: u64) -> Op {
    match choice % 8 {
        0..=2 => Op::Put(value),
        3 => Op::Insert(value),
        4 => Op::Delete,
        5 | 6 => Op::Swap(known, value),
        _ => Op::Get,
    }
}

/// Runs one client's operations.
fn client(plan: &Plan, number: u64, table: &Table<Arc<Heap>>, history: &History, time: &Scheduler) {
    let mut maps = OrderedMaps::new(table.handle());
    let mut stream = SplitMix64::new(plan.seed.wrapping_mul(31) + number);
    let mut known = [None; HOT.len()];
    for at in 0..5 {
        let value = 10_000 + number * 100 + at;
        let hot = stream.draw() as usize % HOT.len();
        let op = operation(stream.draw(), known[hot], value);
        let answer = history.note(time, HOT[hot], op, || perform(&mut maps, HOT[hot], op));
        match (op, answer) {
            (Op::Get, Answer::Value(found)) => known[hot] = found,
            (Op::Put(_), _) => known[hot] = Some(value),
            _ => {}
        }
        // Other keys split leaves, all at the same position.
        let key = 61 + number + 4 * (at % 3);
        let op = if stream.draw().is_multiple_of(4) { Op::Delete } else { Op::Put(value) };
        if !key.is_multiple_of(10) {
            history.note(time, key, op, || perform(&mut maps, key, op));
        }
        if stream.draw().is_multiple_of(3) {
            let back = stream.draw().is_multiple_of(2);
            let direction = if back { Direction::Backward } else { Direction::Forward };
            check_stays(&mut maps, direction);
        }
    }
}

/// Checks that a range sees every key that no client changes.
fn check_stays(maps: &mut OrderedMaps<Arc<Heap>>, direction: Direction) {
    let mut seen = keys(maps, direction);
    seen.retain(|key| key.is_multiple_of(10) && !HOT.contains(key));
    let expected = (0..STAYS).map(|key| key * 10).filter(|key| !HOT.contains(key));
    assert_eq!(seen, expected.collect::<Vec<_>>());
}

/// Runs one schedule and checks everything.
fn run(plan: &Plan) {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut first = new_map(&table);
    for key in (0..STAYS).map(|key| key * 10).filter(|key| !HOT.contains(key)) {
        perform(&mut first, key, Op::Put(key));
    }
    let _replay = Replay(plan.seed);
    let time = scheduler(plan.seed, &plan.fates, plan.faults);
    let history = History::default();
    let mut clients: Vec<Client<'_>> = Vec::new();
    for number in 0..plan.fates.len() as u64 {
        let (table, history, time) = (&table, &history, &*time);
        clients.push(Box::new(move || client(plan, number, table, history, time)));
    }
    support::interleaving::run(&heap, &time, clients, || {});
    let mut last = OrderedMaps::new(table.handle());
    for key in
        HOT.into_iter().chain(61..80).filter(|key| !key.is_multiple_of(10) || HOT.contains(key))
    {
        let get = || Answer::Value(value_of(&mut last, key));
        history.note(&time, key, Op::Get, get);
    }
    let label = format!("seed {} {:?}", plan.seed, plan.fates);
    history.check(&label);
    let all = keys(&mut last, Direction::Forward);
    assert_eq!(all, keys(&mut last, Direction::Backward), "{label}");
    check_stays(&mut last, Direction::Forward);
    assert_eq!(sweep(&mut last), 0, "{label}");
    last.map(MAP).destroy().unwrap();
    assert_eq!(nodes(&table), 0, "{label}: nodes are left");
    table.destroy().unwrap();
    if plan.faults == 0 {
        assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    }
}

#[test]
fn any_interleaving_is_linearizable_and_leaks_nothing() {
    for seed in seeds(60) {
        run(&Plan { seed, fates: vec![Fate::Lives; 2 + seed as usize % 3], faults: 0 });
    }
}

#[test]
fn stopped_and_killed_clients_harm_nobody() {
    for seed in seeds(60) {
        let mut stream = SplitMix64::new(seed);
        let at = stream.draw() % 400 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        let other = if seed % 5 == 0 { Fate::KilledAt(at / 2 + 1) } else { Fate::Lives };
        run(&Plan { seed, fates: vec![fate, other, Fate::Lives], faults: 0 });
    }
}

#[test]
fn unanswered_swaps_are_explained_or_reported() {
    for seed in seeds(60) {
        run(&Plan { seed, fates: vec![Fate::Lives; 3], faults: 60 });
    }
}
