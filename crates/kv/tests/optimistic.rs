//! Optimistic transactions: together with operations of single keys, any interleaving is strictly
//! serializable. A client that is killed or stopped at any memory operation leaves all of a change
//! or nothing, blocks no other client, and leaks nothing.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rackpool_kv::ordered::{Direction, KeyRange, MapId, OrderedMaps};
use rackpool_kv::{
    Committer, EntryChange, Form, Handle, KvError, Recovery, Table, ValueKind, now_ms,
};
use rackpool_sync::SplitMix64;
use support::heap::Heap;
use support::interleaving::seeds;
use support::scheduler::{Fate, Fault, Scheduler, scheduler};
use support::{number, small_table, watching_heap};

const KEYS: usize = 4;
/// The values of all keys, half of them in each of two tables; 0: the key is absent.
type State = [u64; KEYS];

/// An operation of a client.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A transaction that failed and must be repeated.
    Nothing,
    Read(usize),
    Put(usize, u64),
    Delete(usize),
    /// What was read, and what was written.
    Transaction([Option<u64>; KEYS], [Option<u64>; KEYS]),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    op: Op,
    /// `None` if it is unknown.
    answer: Option<u64>,
    begin: u64,
    end: u64,
}

/// A client's access to the tables.
struct Access {
    handles: [Handle<Arc<Heap>>; 2],
    committer: Committer,
}

impl Access {
    fn new(tables: &[Table<Arc<Heap>>; 2], client: usize) -> Self {
        let committer = Committer::new(client as u64 + 1, 0);
        Self { handles: [tables[0].handle(), tables[1].handle()], committer }
    }

    fn of(&mut self, key: usize) -> &mut Handle<Arc<Heap>> {
        &mut self.handles[key * 2 / KEYS]
    }

    fn read(&mut self, key: usize) -> u64 {
        self.try_read(key).unwrap()
    }

    /// `None` in a transaction that must be repeated.
    fn try_read(&mut self, key: usize) -> Option<u64> {
        let mut value = Vec::new();
        match self.of(key).get(&[key as u8], &mut value) {
            Ok(true) => Some(number(&value)),
            Ok(false) => Some(0),
            Err(KvError::Conflict) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, key: usize, value: u64) -> Option<u64> {
        let key_bytes = [key as u8];
        let done = match value {
            0 => self.of(key).delete(&key_bytes),
            value => self.of(key).put(&key_bytes, &value.to_le_bytes()),
        };
        known(done).map(u64::from)
    }

    fn begin(&mut self) {
        self.handles.iter_mut().for_each(Handle::begin);
    }

    /// Begins an insistent transaction.
    fn insist(&mut self) -> bool {
        let [first, second] = &mut self.handles;
        known(self.committer.insist(&mut [first, second]).map(|()| true)).is_some()
    }

    fn commit(&mut self) -> Option<bool> {
        let [first, second] = &mut self.handles;
        known(self.committer.commit(&mut [first, second]))
    }

    fn recover(&mut self) -> u64 {
        let [first, second] = &mut self.handles;
        Committer::recover(&mut [first, second]).unwrap()
    }
}

fn known(done: Result<bool, KvError<support::heap::HeapError>>) -> Option<bool> {
    match done {
        Ok(done) => Some(done),
        Err(KvError::OutcomeUnknown | KvError::Conflict) => None,
        Err(error) => panic!("{error}"),
    }
}

fn tables(heap: &Arc<Heap>) -> [Table<Arc<Heap>>; 2] {
    let first = small_table(heap);
    let second = small_table(heap).with_records(&first);
    [first, second]
}

/// The answer of an operation in a state, and the state afterwards.
fn apply(op: Op, mut state: State) -> (u64, State) {
    match op {
        Op::Nothing => (0, state),
        Op::Read(key) => (state[key], state),
        Op::Put(key, value) => {
            let was_there = u64::from(state[key] != 0);
            state[key] = value;
            (was_there, state)
        }
        Op::Delete(key) => apply(Op::Put(key, 0), state),
        Op::Transaction(reads, writes) => {
            let fits = |key: usize| reads[key].is_none_or(|value| value == state[key]);
            if !(0..KEYS).all(fits) {
                return (0, state);
            }
            for key in 0..KEYS {
                state[key] = writes[key].unwrap_or(state[key]);
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

/// The recorded events, with the scheduler's clock.
struct History<'a> {
    events: Mutex<Vec<Event>>,
    time: &'a Scheduler,
}

impl History<'_> {
    fn begin(&self, op: Op) -> usize {
        let event = Event { op, answer: None, begin: self.time.now(), end: u64::MAX };
        let mut events = self.events.lock().unwrap();
        events.push(event);
        events.len() - 1
    }

    fn end(&self, at: usize, op: Op, answer: Option<u64>) {
        let mut events = self.events.lock().unwrap();
        let end = self.time.now();
        events[at] = Event { op, answer, begin: events[at].begin, end };
    }
}

/// Runs one client's operations.
fn work(client: usize, seed: u64, tables: &[Table<Arc<Heap>>; 2], history: &History<'_>) {
    let mut stream = SplitMix64::new(seed * 31 + client as u64);
    let mut access = Access::new(tables, client);
    for step in 0..5 {
        let fresh = (client as u64 + 1) * 1000 + step * 10;
        let key = stream.draw() as usize % KEYS;
        let single = match stream.draw() % 6 {
            0 => Some(Op::Read(key)),
            1 => Some(Op::Put(key, fresh)),
            2 => Some(Op::Delete(key)),
            _ => None,
        };
        if let Some(op) = single {
            let at = history.begin(op);
            let answer = match op {
                Op::Put(_, value) => access.write(key, value),
                Op::Delete(_) => access.write(key, 0),
                _ => Some(access.read(key)),
            };
            history.end(at, op, answer);
            continue;
        }
        let (read, written) = (stream.draw() % 16, stream.draw() % 16);
        transact(&mut access, history, fresh, read, written);
    }
}

/// Reads and writes the keys of these sets in one transaction, with a few attempts.
fn transact(access: &mut Access, history: &History<'_>, fresh: u64, read: u64, written: u64) {
    for attempt in 0..3 {
        let (mut reads, mut writes) = ([None; KEYS], [None; KEYS]);
        if attempt == 0 && !fresh.is_multiple_of(3) {
            access.begin();
        } else if !access.insist() {
            continue;
        }
        let at = history.begin(Op::Nothing);
        let mut is_torn = false;
        for key in 0..KEYS {
            let is_used = (read | written) >> key & 1 != 0;
            is_torn = is_torn || is_used && access.try_read(key).is_none();
            if is_torn {
                break;
            }
            if read >> key & 1 != 0 {
                reads[key] = Some(access.read(key));
            }
            if written >> key & 1 != 0 {
                let value = if (fresh / 10 + attempt + key as u64).is_multiple_of(4) {
                    0
                } else {
                    fresh + key as u64
                };
                let was_there = access.write(key, value).unwrap();
                if let Some(seen) = reads[key] {
                    assert_eq!(was_there, u64::from(seen != 0));
                }
                writes[key] = Some(value);
                assert_eq!(access.read(key), value, "what was written is read");
            }
        }
        let op = Op::Transaction(reads, writes);
        history.events.lock().unwrap()[at].op = op;
        let done = access.commit();
        assert!(!is_torn || done != Some(true), "what can't be of one time is not committed");
        match done {
            Some(false) => history.end(at, Op::Nothing, Some(0)),
            done => {
                history.end(at, op, done.map(u64::from));
                return;
            }
        }
    }
}

/// Runs clients with these fates; checks their answers and what is left.
fn run(seed: u64, fates: &[Fate], faults: u64) {
    let heap = Arc::new(watching_heap());
    let tables = tables(&heap);
    let time = Arc::new(Scheduler::new(seed, fates).with_faults(faults));
    heap.schedule(Arc::clone(&time));
    let history = History { events: Mutex::default(), time: &time };
    let (tables_ref, history_ref) = (&tables, &history);
    let clients = (0..fates.len())
        .map(|client| {
            let body = move || work(client, seed, tables_ref, history_ref);
            Box::new(body) as Box<dyn FnOnce() + Send>
        })
        .collect();
    time.run(clients);
    heap.recover(|client| client.is_some(), || {});
    let mut last = Access::new(&tables, 50);
    last.recover();
    let label = format!("seed {seed} {fates:?}");
    for key in 0..KEYS {
        let at = history.begin(Op::Read(key));
        let value = last.read(key);
        history.end(at, Op::Read(key), Some(value));
    }
    let events = history.events.into_inner().unwrap();
    assert!(explain(&events, 0, [0; KEYS], &mut HashSet::new()), "{label}: {events:#?}");
    check_nothing_left(&heap, tables, &mut last, &label, faults == 0);
}

/// Checks that no lock and no record is left, and no memory once the tables are destroyed.
fn check_nothing_left(
    heap: &Heap,
    tables: [Table<Arc<Heap>>; 2],
    last: &mut Access,
    label: &str,
    exactly: bool,
) {
    assert_eq!(last.recover(), 0, "{label}: a record is left");
    for (half, handle) in last.handles.iter_mut().enumerate() {
        let mut seen = 0;
        handle
            .for_each(|key, value| {
                assert_eq!((key.len(), value.len()), (1, 8), "{label}: left {key:x?}");
                assert_eq!(usize::from(key[0]) * 2 / KEYS, half);
                seen += 1;
            })
            .unwrap();
        assert_eq!(handle.count().unwrap(), seen, "{label}: a lock is left");
    }
    for table in tables {
        table.destroy().unwrap();
    }
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
fn everywhere(fate: fn(u64) -> Fate, insists: bool) -> u64 {
    let (before, after) = ([5, 6, 0, 9], [7, 6, 8, 0]);
    for at in 1.. {
        let heap = Arc::new(watching_heap());
        let tables = tables(&heap);
        let mut first = Access::new(&tables, 9);
        before.iter().enumerate().for_each(|(key, value)| {
            first.write(key, *value);
        });
        let mut versions =
            || (0..KEYS).map(|key| first.of(key).version(&[key as u8]).unwrap()).collect();
        let old: Vec<_> = versions();
        let time = scheduler(1, &[fate(at), Fate::Lives]).never_switching();
        heap.schedule(Arc::clone(&time));
        let label = format!("{:?}", fate(at));
        let victim = || {
            let mut access = Access::new(&tables, 0);
            if insists {
                access.insist();
            } else {
                access.begin();
            }
            // Key 1 is only read.
            assert_eq!(access.read(1), before[1]);
            for key in [0, 2, 3] {
                access.write(key, after[key]);
            }
            access.commit();
        };
        let survivor = || {
            let mut other = Access::new(&tables, 1);
            let seen: State = std::array::from_fn(|key| other.read(key));
            assert!(seen == before || seen == after, "{label}: {seen:?}");
            let again: State = std::array::from_fn(|key| other.read(key));
            assert_eq!(again, seen, "{label}");
            // The other client also writes, in a transaction that reads what it has just seen.
            other.begin();
            let found: State = std::array::from_fn(|key| other.read(key));
            found.iter().enumerate().for_each(|(key, value)| {
                other.write(key, *value);
            });
            assert_eq!((found, other.commit()), (seen, Some(true)), "{label}");
        };
        let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
        heap.recover(|client| client.is_some(), || {});
        let mut last = Access::new(&tables, 50);
        last.recover();
        let now: State = std::array::from_fn(|key| last.read(key));
        assert!(now == before || now == after, "{label}: {now:?}");
        assert!(
            killed || now == after || matches!(fate(at), Fate::StoppedAt(_)),
            "{label}: {now:?}"
        );
        assert_ne!(versions(), old, "{label}: all keys were stored again");
        check_nothing_left(&heap, tables, &mut last, &label, true);
        if time.operations(0) < at {
            return at;
        }
    }
    0
}

#[test]
fn a_client_killed_at_any_step_of_a_commit_has_changed_all_or_nothing() {
    for insists in [false, true] {
        assert!(everywhere(Fate::KilledAt, insists) > 40);
    }
}

#[test]
fn a_client_stopped_at_any_step_of_a_commit_keeps_nobody_waiting() {
    for insists in [false, true] {
        assert!(everywhere(Fate::StoppedAt, insists) > 40);
    }
}

/// One client is killed at each step; then recovery removes what it left.
#[test]
fn a_transaction_that_did_not_commit_changes_no_version() {
    let mut aborted = 0;
    for at in 1..60 {
        let heap = Arc::new(watching_heap());
        let tables = tables(&heap);
        let mut other = Access::new(&tables, 9);
        let form = Form { kind: ValueKind(7), expires_ms: rackpool_kv::now_ms() + 1_000_000 };
        other.of(0).put_entry(&[0], form, b"kept").unwrap();
        other.write(2, 5);
        let mut versions = || [0, 2].map(|key| other.of(key).version(&[key as u8]).unwrap());
        let old = versions();
        let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            let mut access = Access::new(&tables, 0);
            access.begin();
            access.write(0, 1);
            access.write(2, 2);
            access.commit();
        };
        time.run(vec![Box::new(victim)]);
        heap.recover(|client| client.is_some(), || {});
        let seen = versions();
        Access::new(&tables, 50).recover();
        assert_eq!(versions(), seen, "step {at}: clearing away changes no version either");
        if seen == old {
            let mut last = Access::new(&tables, 51);
            let entry = last.of(0).read(&[0]).unwrap().unwrap();
            assert_eq!((entry.form, entry.value), (form, &b"kept"[..]));
            aborted += 1;
        }
    }
    assert!(aborted > 10, "only {aborted}");
}

/// Two clients change one map, with splits, each time together with a counter in another table.
#[test]
fn maps_change_together_with_other_keys() {
    for seed in 0..20 {
        let heap = Arc::new(Heap::new(4 << 20));
        let tables = tables(&heap);
        let id = MapId::from_bytes([seed as u8 + 1; 16]);
        OrderedMaps::new(tables[1].handle()).create(id, b"counter").unwrap();
        tables[0].handle().put(b"counter", &0_u64.to_le_bytes()).unwrap();
        let time = scheduler(seed, &[Fate::Lives; 2]);
        heap.schedule(Arc::clone(&time));
        let work = |client: u64| {
            let mut keys = tables[0].handle();
            let mut maps = OrderedMaps::new(tables[1].handle());
            let mut committer = Committer::new(client + 1, 0);
            for round in 0..8 {
                loop {
                    keys.begin();
                    maps.handle_mut().begin();
                    let mut value = Vec::new();
                    keys.get(b"counter", &mut value).unwrap();
                    let count = number(&value);
                    // The values are long enough to split nodes.
                    let mut map = maps.map(id);
                    let all = map.range(&KeyRange::ALL, Direction::Forward, usize::MAX);
                    let inserted = map.insert(&[client as u8, round], &[7; 300]).map(drop);
                    keys.put(b"counter", &(count + 1).to_le_bytes()).unwrap();
                    let done = committer.commit(&mut [&mut keys, maps.handle_mut()]).unwrap();
                    if done {
                        inserted.unwrap();
                        assert_eq!(all.unwrap().len() as u64, count, "seed {seed}: one time");
                        break;
                    }
                }
            }
        };
        time.run(vec![Box::new(|| work(0)), Box::new(|| work(1))]);
        let mut maps = OrderedMaps::new(tables[1].handle());
        assert_eq!(maps.map(id).count(&KeyRange::ALL).unwrap(), 16, "seed {seed}");
        maps.map(id).destroy().unwrap();
        let mut last = Access::new(&tables, 50);
        last.recover();
        assert_eq!(tables[1].handle().count().unwrap(), 0, "seed {seed}");
    }
}

#[test]
fn keys_that_a_record_has_no_room_for_are_found_again() {
    const MANY: usize = 600;
    let key = |number: usize| format!("{number:0>2000}").into_bytes();
    for at in [3000, 6000, 9000] {
        let heap = Arc::new(Heap::new(16 << 20));
        let tables = tables(&heap);
        let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            let mut access = Access::new(&tables, 0);
            access.begin();
            (0..MANY).for_each(|number| {
                access.of(number % KEYS).put(&key(number), b"v").unwrap();
            });
            access.commit();
        };
        assert!(time.run(vec![Box::new(victim)])[0], "it is killed in its commit");
        heap.recover(|client| client.is_some(), || {});
        let mut last = Access::new(&tables, 50);
        assert_eq!(last.recover(), 1);
        let counts = [0, 2].map(|key| last.of(key).count().unwrap() as usize);
        assert!(counts == [0, 0] || counts == [MANY / 2, MANY / 2], "{counts:?} at {at}");
    }
}

/// Each recovery makes one step only, as in instances that are killed all the time.
#[test]
fn records_go_though_nobody_lives_to_see_all_of_the_table() {
    let heap = Arc::new(Heap::new(16 << 20));
    let tables = tables(&heap);
    let mut filler = tables[0].handle();
    (0..2000_u32).for_each(|number| {
        filler.put(&number.to_le_bytes(), b"v").unwrap();
    });
    let victims = 12;
    let time = scheduler(1, &vec![Fate::KilledAt(60); victims]);
    heap.schedule(Arc::clone(&time));
    let tables_ref = &tables;
    let bodies = (0..victims)
        .map(|client| {
            let body = move || {
                let mut access = Access::new(tables_ref, client);
                for value in 1..100 {
                    access.begin();
                    access.write(client % KEYS, value);
                    access.write((client + 1) % KEYS, value);
                    access.commit();
                }
            };
            Box::new(body) as Box<dyn FnOnce() + Send>
        })
        .collect();
    assert_eq!(time.run(bodies), vec![true; victims], "all are killed");
    heap.recover(|client| client.is_some(), || {});
    let mut last = Access::new(&tables, 50);
    let mut step = |unchanged| {
        let [first, second] = &mut last.handles;
        let mut recovery = Recovery::anywhere(first).unchanged_for(unchanged);
        recovery.step(&mut [first, second], 20).unwrap().cleared
    };
    assert_eq!((0..100).map(|_| step(Duration::from_secs(3600))).sum::<u64>(), 0);
    let lives = 3000;
    let cleared = (0..lives).map(|_| step(Duration::ZERO)).sum::<u64>();
    assert!(cleared > 1, "{cleared}");
    assert_eq!(last.recover(), 0, "a record is left after {lives} lives, which took {cleared}");
}

/// A client does not learn whether its commit was made, and another one removes the record of the
/// transaction before the client looks again. Found by reading: a committed transaction was
/// reported as aborted, and its program repeated it.
#[test]
fn a_commit_that_others_have_cleared_away_is_not_taken_for_an_abort() {
    let (mut at, mut unknown) = (1, 0);
    loop {
        let heap = Arc::new(Heap::new(4 << 20));
        let tables = tables(&heap);
        let mut access = Access::new(&tables, 1);
        access.write(0, 1);
        access.begin();
        assert_eq!(access.try_read(0), Some(1));
        access.write(0, 2);
        access.write(KEYS - 1, 2);
        let mut other = Access::new(&tables, 2);
        heap.troubles.fail(at, 1, Fault::Applied);
        heap.troubles.interrupt(at + 1, move || _ = other.recover());
        let committed = access.commit();
        heap.troubles.forget_hook();
        let had_fault = heap.troubles.heal();
        let values = [access.read(0), access.read(KEYS - 1)];
        match committed {
            Some(true) => assert_eq!(values, [2, 2], "at {at}"),
            Some(false) => assert_eq!(values, [1, 0], "at {at}: it is said to be aborted"),
            None => {
                assert!([[2, 2], [1, 0]].contains(&values), "at {at}: {values:?}");
                unknown += 1;
            }
        }
        if !had_fault {
            break;
        }
        at += 1;
    }
    assert!(unknown > 0, "in {at} operations no outcome was unknown");
}

#[test]
fn a_view_shows_its_own_changes_and_only_those() {
    let heap = Arc::new(Heap::new(1 << 20));
    let tables = tables(&heap);
    let (mut handle, mut other) = (tables[0].handle(), tables[0].handle());
    for key in [b"a", b"b", b"c"] {
        other.put(key, b"old").unwrap();
    }
    handle.begin();
    assert!(handle.has_begun());
    assert!(handle.put(b"a", b"new").unwrap() && !handle.put(b"d", b"new").unwrap());
    assert!(handle.delete(b"b").unwrap() && !handle.delete(b"b").unwrap());
    assert!(!handle.insert(b"c", b"no").unwrap() && handle.insert(b"e", b"new").unwrap());
    assert!(!handle.update(b"x", b"no").unwrap() && handle.update(b"e", b"newer").unwrap());
    assert!(!handle.compare_and_put(b"c", Some(b"no"), b"no").unwrap());
    assert!(handle.compare_and_put(b"c", Some(b"old"), b"now").unwrap());
    assert!(!handle.compare_and_delete(b"c", b"old").unwrap());
    assert!(
        handle
            .modify(b"f", |_, _| EntryChange::Put(Form { kind: ValueKind(3), expires_ms: 0 }))
            .unwrap()
    );
    assert!(matches!(handle.get(b"f", &mut Vec::new()), Err(KvError::OtherKind { .. })));
    let reserved = Form { kind: ValueKind(0xff), expires_ms: 0 };
    let refused = handle.put_entry(b"g", reserved, b"");
    assert!(matches!(refused, Err(KvError::Option { name: "kind", .. })));
    let scanned = |handle: &mut Handle<Arc<Heap>>| {
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            let visit = |key: &[u8], entry: rackpool_kv::Entry<'_>| {
                seen.push((key.to_vec(), entry.value.to_vec()));
            };
            cursor = handle.scan(cursor, 3, visit).unwrap();
            if cursor == 0 {
                seen.sort();
                return seen;
            }
        }
    };
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    let new =
        [pair("a", "new"), pair("c", "now"), pair("d", "new"), pair("e", "newer"), pair("f", "")];
    assert_eq!(scanned(&mut handle), new);
    let mut entries = 0;
    handle.survey(|_| false, |_| entries += 1).unwrap();
    assert_eq!(entries, new.len());
    assert_eq!(scanned(&mut other), [pair("a", "old"), pair("b", "old"), pair("c", "old")]);
    assert_eq!(handle.changed_keys().count(), 6);
    let mut committer = Committer::new(1, 0);
    assert!(committer.commit(&mut [&mut handle]).unwrap() && !handle.has_begun());
    assert_eq!(scanned(&mut other), new);
    handle.begin();
    handle.put(b"a", b"forgotten").unwrap();
    handle.cancel();
    assert_eq!(scanned(&mut handle), new);
}

/// Seen in `rackpool-kv`: a lock was present when a transaction first read it, its next command
/// found nothing, and the transaction committed.
#[test]
fn an_entry_does_not_expire_in_the_middle_of_a_transaction_and_none_commits_on_one_that_has() {
    let heap = Arc::new(watching_heap());
    let tables = tables(&heap);
    let mut access = Access::new(&tables, 1);
    // On a busy machine an entry may expire before the transaction has begun; the next one then
    // lives longer.
    let begun = (5..20).map(|bits| now_ms() + (1 << bits)).find_map(|expires_ms| {
        access
            .of(0)
            .put_entry(&[0], Form { kind: ValueKind::STRING, expires_ms }, b"token")
            .unwrap();
        access.begin();
        let version = access.of(0).version(&[0]).unwrap();
        if version.is_none() {
            access.of(0).cancel();
            access.of(KEYS - 1).cancel();
        }
        version.map(|version| (expires_ms, Some(version)))
    });
    let (expires_ms, version) = begun.unwrap();
    while now_ms() <= expires_ms {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(access.of(0).version(&[0]).unwrap(), version);
    assert_eq!(access.of(0).read(&[0]).unwrap().map(|entry| entry.value), Some(&b"token"[..]));
    assert!(access.of(0).delete(&[0]).unwrap());
    assert_eq!(access.commit(), Some(false));

    access.begin();
    assert_eq!(access.of(0).version(&[0]).unwrap(), None);
    assert!(!access.of(0).delete(&[0]).unwrap());
    // An entry that is stored with a past expiry is absent, also within the transaction.
    let over = Form { kind: ValueKind::STRING, expires_ms: 1 };
    access.of(1).put_entry(&[1], over, b"over").unwrap();
    assert_eq!(access.of(1).read(&[1]).unwrap(), None);
    assert_eq!(access.commit(), Some(true));
}

/// Seen in `rackpool-kv`: a transaction read an entry's version but an empty value.
#[test]
fn an_entry_that_expires_while_it_is_read_is_there_or_not() {
    const ROUNDS: u64 = 1500;
    /// The longest time before its expiry at which the entry is read.
    const BEFORE_NS: u64 = 5000;

    let since_1970_ns = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(since.as_nanos()).unwrap()
    };
    let heap = Arc::new(Heap::new(16 << 20));
    let tables = tables(&heap);
    let mut access = Access::new(&tables, 1);
    let mut looks = [0, 0];
    for round in 0..ROUNDS {
        let expires_ms = now_ms() + 2;
        access
            .of(0)
            .put_entry(&[0], Form { kind: ValueKind::STRING, expires_ms }, b"token")
            .unwrap();
        let time = expires_ms * 1_000_000 - round * 997 % BEFORE_NS;
        while since_1970_ns() < time {
            std::hint::spin_loop();
        }
        access.begin();
        let has_version = access.of(0).version(&[0]).unwrap().is_some();
        let is_there = access.of(0).read(&[0]).unwrap().is_some();
        assert_eq!(has_version, is_there, "round {round}");
        looks[usize::from(is_there)] += 1;
        access.of(0).cancel();
        access.of(KEYS - 1).cancel();
    }
    assert!(looks.iter().all(|count| *count > 0), "{looks:?} were not there, and there");
}

#[test]
fn values_that_do_not_fit_into_a_page_together_are_refused_and_nothing_is_changed() {
    let heap = Arc::new(Heap::new(16 << 20));
    let tables = tables(&heap);
    let mut access = Access::new(&tables, 0);
    let large = vec![1; 1_200_000];
    access.of(0).put(&[0], &large).unwrap();
    // A single change needs no lock.
    access.begin();
    access.of(0).put(&[0], &large).unwrap();
    assert_eq!(access.commit(), Some(true));
    access.begin();
    access.of(0).put(&[0], &large).unwrap();
    access.write(1, 5);
    let [first, second] = &mut access.handles;
    let refused = access.committer.commit(&mut [first, second]);
    assert!(matches!(refused, Err(KvError::TooLarge { .. })), "{refused:?}");
    assert_eq!(access.read(1), 0);
    assert_eq!(access.of(0).read(&[0]).unwrap().unwrap().value, large);
    assert_eq!(access.of(0).count().unwrap(), 2, "the entry and the record");
}
