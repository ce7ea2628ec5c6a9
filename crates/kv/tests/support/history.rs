//! A history of operations, and the check that one register per key explains it.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use rackpool_kv::{Handle, KvError};

use super::heap::{Heap, HeapError};
use super::scheduler::Scheduler;

/// An operation. All values of a test are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Get,
    /// With another key.
    GetMany,
    Put(u64),
    Insert(u64),
    Update(u64),
    Delete,
    Swap(Option<u64>, u64),
}

/// The answer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Value(Option<u64>),
    Bool(bool),
    /// Unknown: the operation may have been made.
    None,
    /// There was no memory, and nothing was changed.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    op: Op,
    answer: Answer,
    begin: u64,
    end: u64,
}

/// The operations on all keys.
#[derive(Debug, Default)]
pub struct History {
    events: Mutex<BTreeMap<u64, Vec<Event>>>,
}

impl History {
    /// Runs an operation and records it, even if the client is killed during it.
    pub fn run(
        &self,
        time: &Scheduler,
        handle: &mut Handle<Arc<Heap>>,
        key: u64,
        op: Op,
    ) -> Answer {
        self.note(time, key, op, || perform(handle, key, op))
    }

    /// Records an operation on any map of keys to values.
    pub fn note(
        &self,
        time: &Scheduler,
        key: u64,
        op: Op,
        perform: impl FnOnce() -> Answer,
    ) -> Answer {
        let event = Event { op, answer: Answer::None, begin: time.now(), end: u64::MAX };
        let at = {
            let mut events = self.events.lock().unwrap();
            let events = events.entry(key).or_default();
            events.push(event);
            events.len() - 1
        };
        let answer = perform();
        let mut events = self.events.lock().unwrap();
        let event = &mut events.get_mut(&key).unwrap()[at];
        event.answer = answer;
        event.end = time.now();
        answer
    }

    /// Panics unless, for every key, some order of the operations agrees with their times and their
    /// answers.
    pub fn check(&self, label: &str) {
        for (key, events) in &*self.events.lock().unwrap() {
            assert!(events.len() <= 64, "too many operations to check");
            let explained = explain(events, 0, None, &mut HashSet::new());
            assert!(explained, "{label}: key {key} is not linearizable: {events:#?}");
        }
    }
}

/// Performs an operation.
pub fn perform(handle: &mut Handle<Arc<Heap>>, key: u64, op: Op) -> Answer {
    let key = key.to_le_bytes();
    let result = match op {
        Op::Get => {
            let mut value = Vec::new();
            let found = handle.get(&key, &mut value);
            return match found {
                Ok(found) => Answer::Value(found.then(|| super::number(&value))),
                Err(error) => panic!("{op:?}: {error}"),
            };
        }
        Op::GetMany => {
            // The others are there all the time.
            let others: Vec<[u8; 8]> = (100..108u64).map(u64::to_le_bytes).collect();
            let all = std::iter::once(&key).chain(&others).map(|key| &key[..]);
            let (all, mut found, mut others) = (all.collect::<Vec<_>>(), None, 0);
            let visit = |index, value: Option<&[u8]>| {
                let value = value.map(super::number);
                if index == 0 {
                    assert!(found.replace(value).is_none(), "visited twice");
                } else {
                    assert_eq!(value, Some(0), "the key {}", 99 + index);
                    others += 1;
                }
            };
            let done = handle.get_many(&all, visit);
            assert!(done.is_err() || others == 8, "{others} of 8 keys are visited");
            return match done {
                Ok(()) => Answer::Value(found.expect("each key is visited")),
                Err(error) => panic!("{op:?}: {error}"),
            };
        }
        Op::Put(value) => handle.put(&key, &value.to_le_bytes()),
        Op::Insert(value) => handle.insert(&key, &value.to_le_bytes()),
        Op::Update(value) => handle.update(&key, &value.to_le_bytes()),
        Op::Delete => handle.delete(&key),
        Op::Swap(expected, value) => {
            let expected = expected.map(u64::to_le_bytes);
            let expected = expected.as_ref().map(|bytes| &bytes[..]);
            handle.compare_and_put(&key, expected, &value.to_le_bytes())
        }
    };
    match result {
        Ok(done) => Answer::Bool(done),
        Err(KvError::OutcomeUnknown) => Answer::None,
        Err(KvError::Memory(HeapError::Full)) => Answer::Refused,
        Err(error) => panic!("{op:?}: {error}"),
    }
}

/// The answer of `op`, and the value afterwards, if the key's value is `value`.
fn apply(op: Op, value: Option<u64>) -> (Answer, Option<u64>) {
    let stored = |done: bool, new| (Answer::Bool(done), if done { Some(new) } else { value });
    match op {
        Op::Get | Op::GetMany => (Answer::Value(value), value),
        Op::Put(new) => (Answer::Bool(value.is_some()), Some(new)),
        Op::Insert(new) => stored(value.is_none(), new),
        Op::Update(new) => stored(value.is_some(), new),
        Op::Delete => (Answer::Bool(value.is_some()), None),
        Op::Swap(expected, new) => stored(value == expected, new),
    }
}

/// Whether some order of the events not in `done` explains their answers, starting from `value`.
fn explain(
    events: &[Event],
    done: u64,
    value: Option<u64>,
    seen: &mut HashSet<(u64, Option<u64>)>,
) -> bool {
    let open = |at: usize| done & (1 << at) == 0;
    let rest = (0..events.len()).filter(|at| open(*at));
    let is_open = |answer| matches!(answer, Answer::None | Answer::Refused);
    if rest.clone().all(|at| is_open(events[at].answer)) {
        return true;
    }
    if !seen.insert((done, value)) {
        return false;
    }
    let first_end = rest.clone().map(|at| events[at].end).min().unwrap_or(u64::MAX);
    rest.filter(|at| events[*at].begin <= first_end).any(|at| {
        let event = events[at];
        let (answer, next) = apply(event.op, value);
        let skipped = is_open(event.answer) && explain(events, done | 1 << at, value, seen);
        let fits = event.answer == Answer::None || event.answer == answer;
        skipped || (fits && explain(events, done | 1 << at, next, seen))
    })
}

#[test]
fn the_checker_sees_a_lost_update() {
    let event = |op, answer, begin, end| Event { op, answer, begin, end };
    let yes = Answer::Bool(true);
    let lost = [
        event(Op::Insert(1), yes, 1, 2),
        event(Op::Swap(Some(1), 2), yes, 3, 6),
        event(Op::Swap(Some(1), 3), yes, 4, 5),
    ];
    assert!(!explain(&lost, 0, None, &mut HashSet::new()));
    assert!(explain(&lost[..2], 0, None, &mut HashSet::new()));
    let stale = [
        event(Op::Put(1), Answer::Bool(false), 1, 2),
        event(Op::Put(2), yes, 3, 4),
        event(Op::Get, Answer::Value(Some(1)), 5, 6),
    ];
    assert!(!explain(&stale, 0, None, &mut HashSet::new()));
}
