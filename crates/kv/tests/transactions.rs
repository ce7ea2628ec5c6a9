//! Transactions: any interleaving is serializable. A client that is killed or stopped at any memory
//! operation leaves all of a change or nothing, blocks no other client, and leaks nothing.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rackpool_kv::{KeyChange, KvError, Table, Transactor};
use rackpool_sync::SplitMix64;
use support::heap::Heap;
use support::interleaving::seeds;
use support::scheduler::{Fate, Scheduler, scheduler};
use support::{small_table, watching_heap};

const KEYS: usize = 4;
/// The values of all keys; 0: the key is absent.
type State = [u64; KEYS];

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
enum Op {
    Read(usize),
    /// For each key in the transaction: the expected value and the new one.
    Commit([Option<(u64, u64)>; KEYS]),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    op: Op,
    /// The value read, or whether the transaction committed; `None` if unknown.
    answer: Option<u64>,
    begin: u64,
    end: u64,
}

fn transactor(table: &Table<Arc<Heap>>, client: usize) -> Transactor<Arc<Heap>> {
    Transactor::new(table, client as u64 + 1, 0).with_lock_wait(Duration::ZERO)
}

fn read(client: &mut Transactor<Arc<Heap>>, key: usize) -> u64 {
    let mut value = Vec::new();
    match client.get(&[key as u8], &mut value).unwrap() {
        true => support::number(&value),
        false => 0,
    }
}

/// Commits a transaction; `None` if its outcome is unknown.
fn commit(client: &mut Transactor<Arc<Heap>>, wanted: &[Option<(u64, u64)>; KEYS]) -> Option<bool> {
    let bytes =
        wanted.map(|change| change.map(|(old, new)| (old.to_le_bytes(), new.to_le_bytes())));
    let some = |value: &'_ [u8; 8]| *value != [0; 8];
    let changes: Vec<([u8; 1], _)> =
        (0..KEYS).filter_map(|key| bytes[key].as_ref().map(|both| ([key as u8], both))).collect();
    let changes: Vec<KeyChange<'_>> = changes
        .iter()
        .map(|(key, (old, new))| KeyChange {
            key,
            expected: some(old).then_some(&old[..]),
            new: some(new).then_some(&new[..]),
        })
        .collect();
    match client.commit(&changes) {
        Ok(done) => Some(done),
        Err(KvError::OutcomeUnknown) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The answer of an operation in a state, and the state afterwards.
fn apply(op: Op, mut state: State) -> (u64, State) {
    match op {
        Op::Read(key) => (state[key], state),
        Op::Commit(wanted) => {
            let fits = |key: usize| wanted[key].is_none_or(|(old, _)| old == state[key]);
            if !(0..KEYS).all(fits) {
                return (0, state);
            }
            for key in 0..KEYS {
                state[key] = wanted[key].map_or(state[key], |(_, new)| new);
            }
            (1, state)
        }
    }
}

/// Whether some order of the events not in `done` explains their answers.
fn explain(events: &[Event], done: u128, state: State, seen: &mut HashSet<(u128, State)>) -> bool {
    let rest = (0..events.len()).filter(|at| done & (1_u128 << at) == 0);
    if rest.clone().all(|at| events[at].answer.is_none()) {
        return true;
    }
    if !seen.insert((done, state)) {
        return false;
    }
    let first_end = rest.clone().map(|at| events[at].end).min().unwrap_or(u64::MAX);
    rest.filter(|at| events[*at].begin <= first_end).any(|at| {
        let event = events[at];
        let (answer, next) = apply(event.op, state);
        let skipped = event.answer.is_none() && explain(events, done | 1_u128 << at, state, seen);
        let fits = event.answer.is_none_or(|said| said == answer);
        skipped || (fits && explain(events, done | 1_u128 << at, next, seen))
    })
}

/// Runs one client's operations and records them in `history`.
fn work(
    client: usize,
    seed: u64,
    table: &Table<Arc<Heap>>,
    time: &Scheduler,
    history: &Mutex<Vec<Event>>,
) {
    let mut stream = SplitMix64::new(seed * 31 + client as u64);
    let mut access = transactor(table, client);
    for number in 0..5 {
        let mut known = [0; KEYS];
        let first = stream.draw() as usize % KEYS;
        let count = 1 + stream.draw() as usize % KEYS;
        let mut wanted = [None; KEYS];
        for key in (first..first + count).map(|key| key % KEYS) {
            let at = note(history, time, Op::Read(key));
            known[key] = read(&mut access, key);
            answer(history, time, at, Some(known[key]));
            let fresh = (client as u64 + 1) * 1000 + number * 10 + key as u64;
            let new = [fresh, 0, known[key], fresh][stream.draw() as usize % 4];
            wanted[key] = Some((known[key], new));
        }
        let at = note(history, time, Op::Commit(wanted));
        let done = commit(&mut access, &wanted);
        answer(history, time, at, done.map(u64::from));
    }
}

fn note(history: &Mutex<Vec<Event>>, time: &Scheduler, op: Op) -> usize {
    let event = Event { op, answer: None, begin: time.now(), end: u64::MAX };
    let mut history = history.lock().unwrap();
    history.push(event);
    history.len() - 1
}

fn answer(history: &Mutex<Vec<Event>>, time: &Scheduler, at: usize, answer: Option<u64>) {
    let mut history = history.lock().unwrap();
    history[at].answer = answer;
    history[at].end = time.now();
}

/// Runs clients with these fates; checks their answers and what is left.
fn run(seed: u64, fates: &[Fate], faults: u64) {
    let heap = Arc::new(watching_heap());
    let table = small_table(&heap);
    let time = Arc::new(Scheduler::new(seed, fates).with_faults(faults));
    heap.schedule(Arc::clone(&time));
    let history = Mutex::new(Vec::new());
    let (table_ref, time_ref, history_ref) = (&table, &*time, &history);
    let clients = (0..fates.len())
        .map(|client| {
            let body = move || work(client, seed, table_ref, time_ref, history_ref);
            Box::new(body) as Box<dyn FnOnce() + Send>
        })
        .collect();
    let killed = time.run(clients);
    heap.recover(|client| client.is_some(), || {});
    let mut last = transactor(&table, 50);
    for (client, _) in killed.iter().enumerate() {
        last.recover(client as u64 + 1, 1).unwrap();
    }
    let label = format!("seed {seed} {fates:?}");
    for key in 0..KEYS {
        let at = note(&history, &time, Op::Read(key));
        let value = read(&mut last, key);
        answer(&history, &time, at, Some(value));
    }
    let events = history.into_inner().unwrap();
    assert!(explain(&events, 0, [0; KEYS], &mut HashSet::new()), "{label}: {events:#?}");
    last.recover(51, 1).unwrap();
    check_nothing_left(&heap, table, &mut last, &label, faults == 0);
}

/// Checks that no lock and no record is left, and no memory once all keys are deleted.
fn check_nothing_left(
    heap: &Heap,
    table: Table<Arc<Heap>>,
    last: &mut Transactor<Arc<Heap>>,
    label: &str,
    exactly: bool,
) {
    last.recover(51, 1).unwrap();
    table
        .handle()
        .for_each(|key, value| {
            assert_eq!((key.len(), value[0]), (1, 0), "{label}: left {key:x?}");
        })
        .unwrap();
    table.destroy().unwrap();
    if exactly {
        assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    }
}

#[test]
fn any_interleaving_is_serializable() {
    for seed in seeds(150) {
        run(seed, &vec![Fate::Lives; 2 + seed as usize % 2], 0);
    }
}

#[test]
fn killed_and_stopped_clients_leave_all_of_a_change_or_nothing() {
    for seed in seeds(150) {
        let mut stream = SplitMix64::new(seed);
        let at = stream.draw() % 300 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        let other = if seed % 5 == 0 { Fate::KilledAt(at / 2 + 1) } else { Fate::Lives };
        run(seed, &[fate, other, Fate::Lives], 0);
    }
}

#[test]
fn unanswered_swaps_are_explained_or_reported() {
    for seed in seeds(150) {
        run(seed, &[Fate::Lives; 3], 20);
    }
}

/// One client makes a change and meets its fate at each of its memory operations in turn.
fn everywhere(fate: fn(u64) -> Fate) -> u64 {
    let (before, wanted) = ([5, 6, 0, 0], [Some((5, 7)), Some((6, 0)), Some((0, 8)), None]);
    let after = apply(Op::Commit(wanted), before).1;
    for at in 1.. {
        let heap = Arc::new(watching_heap());
        let table = small_table(&heap);
        let first = [Some((0, 5)), Some((0, 6)), None, None];
        assert_eq!(commit(&mut transactor(&table, 9), &first), Some(true));
        let time = scheduler(1, &[fate(at), Fate::Lives]).never_switching();
        heap.schedule(Arc::clone(&time));
        let label = format!("{:?}", fate(at));
        let victim = || {
            commit(&mut transactor(&table, 0), &wanted);
        };
        let survivor = || {
            let mut other = transactor(&table, 1);
            let seen: State = std::array::from_fn(|key| read(&mut other, key));
            assert!(seen == before || seen == after, "{label}: {seen:?}");
            // Readers change nothing; writers resolve locks. What a reader has seen stays true.
            let same = seen.map(|value| Some((value, value)));
            assert_eq!(commit(&mut other, &same), Some(true), "{label}");
            let again: State = std::array::from_fn(|key| read(&mut other, key));
            assert_eq!(again, seen, "{label}");
        };
        let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
        heap.recover(|client| client.is_some(), || {});
        let mut last = transactor(&table, 50);
        for owner in [1, 2, 10] {
            last.recover(owner, 1).unwrap();
        }
        let now: State = std::array::from_fn(|key| read(&mut last, key));
        assert!(now == before || now == after, "{label}: {now:?}");
        assert!(killed || now == after, "{label}: {now:?}");
        check_nothing_left(&heap, table, &mut last, &label, true);
        if time.operations(0) < at {
            return at;
        }
    }
    0
}

#[test]
fn a_client_killed_at_any_step_of_a_commit_has_changed_all_or_nothing() {
    assert!(everywhere(Fate::KilledAt) > 20);
}

#[test]
fn a_client_stopped_at_any_step_of_a_commit_keeps_nobody_waiting() {
    assert!(everywhere(Fate::StoppedAt) > 20);
}

#[test]
fn keys_of_records_and_keys_named_twice_are_refused() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut access = transactor(&table, 0);
    let change = |key| KeyChange { key, expected: None, new: Some(b"v") };
    for refused in [[change(b"a"), change(b"a")], [change(b"a"), change(b"\xffb")]] {
        assert!(matches!(access.commit(&refused), Err(KvError::Option { name: "key", .. })));
    }
    assert!(access.commit(&[]).unwrap());
}

#[test]
fn bytes_that_no_transactor_wrote_are_an_error() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    table.handle().put(b"a", b"\x07junk").unwrap();
    let mut access = transactor(&table, 0);
    assert!(matches!(access.get(b"a", &mut Vec::new()), Err(KvError::Corrupt { .. })));
    let wanted = KeyChange { key: b"a", expected: None, new: Some(b"v") };
    assert!(matches!(access.commit(&[wanted]), Err(KvError::Corrupt { .. })));
}
