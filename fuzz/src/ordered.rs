//! Ordered maps and sorted sets whose nodes another client damages.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use rackpool_kv::ordered::{Direction, KeyRange, MapEntry, MapId, OrderedError, OrderedMaps};
use rackpool_kv::sorted_set::{Score, ScoreRange, ScoreRule, SmallSet, SortedSet};
use rackpool_kv::{KvError, Table, TableOptions};

use crate::Input;
use crate::table::{Heap, HeapError};

const MAP: MapId = MapId::from_bytes([1; 16]);
const SET: MapId = MapId::from_bytes([2; 16]);

type Error = OrderedError<HeapError>;

/// The expected contents of the map, until a node is damaged. From then on any contents may be
/// found, but no operation panics or loops.
#[derive(Default)]
struct Model {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    is_damaged: bool,
}

impl Model {
    /// Without damage an operation fails only because all memory is in use.
    fn checked<T>(&self, result: Result<T, Error>) -> Option<T> {
        let is_full = |error: &Error| match error {
            OrderedError::Table(KvError::Memory(error)) => matches!(error, HeapError::Full),
            OrderedError::Table(KvError::TableFull { .. }) => true,
            _ => false,
        };
        result.inspect_err(|error| assert!(self.is_damaged || is_full(error), "{error}")).ok()
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, found: T, expected: T) {
        assert!(self.is_damaged || found == expected, "{found:?} instead of {expected:?}");
    }
}

/// Operations on a map and a set in one small node table, whose nodes are damaged in between; the
/// rest of the bytes is parsed as a small set.
pub fn ordered(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let heap = Arc::new(Heap::new());
    let options = TableOptions { max_depth: 4, segment_bytes: 256 };
    let Ok(table) = Table::create(Arc::clone(&heap), &options) else { panic!("no table") };
    let table = table.with_lock_wait(Duration::ZERO);
    let mut maps = OrderedMaps::new(table.handle());
    let mut model = Model::default();
    for id in [MAP, SET] {
        assert!(maps.create(id, b"owner").unwrap());
    }
    while !input.is_empty() {
        heap.start_anew();
        match input.below(16) {
            0..=6 => change(&mut input, &mut maps, &mut model),
            7 | 8 => look(&mut input, &mut maps, &model),
            9 | 10 => rank(&mut input, &mut maps, &model),
            11 => maps = OrderedMaps::new(table.handle()),
            12 => small(input.bytes(40)),
            _ => poke(&mut input, &table, &mut model),
        }
    }
    heap.start_anew();
    let swept = maps.sweep(|_, id| Ok::<_, Error>(id == MAP));
    model.checked(swept);
    let destroyed = maps.map(MAP).destroy();
    model.checked(destroyed);
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.byte();
    vec![number; usize::from(number % 4) * 60]
}

fn change(input: &mut Input<'_>, maps: &mut OrderedMaps<Arc<Heap>>, model: &mut Model) {
    let key = key(input);
    let kind = input.byte();
    if kind % 8 == 7 {
        let removed = maps.map(MAP).remove(&key);
        if let Some(old) = model.checked(removed) {
            let expected = model.pairs.remove(&key);
            model.same(old, expected);
        }
        return;
    }
    let value = vec![kind; usize::from(kind) * 4];
    let inserted = maps.map(MAP).insert(&key, &value);
    if let Some(old) = model.checked(inserted) {
        let expected = model.pairs.insert(key, value);
        model.same(old, expected);
    }
}

fn look(input: &mut Input<'_>, maps: &mut OrderedMaps<Arc<Heap>>, model: &Model) {
    let (key, kind) = (key(input), input.byte());
    let mut map = maps.map(MAP);
    if kind % 2 == 0 {
        let mut value = Vec::new();
        let found = map.get(&key, &mut value);
        let found = model.checked(found).map(|found| found.then_some(value));
        found.inspect(|found| model.same(found.as_ref(), model.pairs.get(&key)));
        return;
    }
    let range = KeyRange { from: Bound::Excluded(&key), to: Bound::Unbounded };
    let backward = kind % 4 == 1;
    let direction = if backward { Direction::Backward } else { Direction::Forward };
    let found = map.range(&range, direction, 50);
    if let Some(found) = model.checked(found) {
        let within = model.pairs.range::<[u8], _>((range.from, range.to));
        let within = within.map(|(key, value)| MapEntry { key: key.clone(), value: value.clone() });
        let expected: Vec<_> =
            if backward { within.rev().take(50).collect() } else { within.take(50).collect() };
        model.same(found, expected);
    }
}

fn rank(input: &mut Input<'_>, maps: &mut OrderedMaps<Arc<Heap>>, model: &Model) {
    let (member, kind) = (key(input), input.byte());
    let mut set = SortedSet::new(maps.map(SET));
    let score = Score::new(f64::from(kind / 8)).unwrap();
    match kind % 8 {
        0..=3 => drop(model.checked(set.add(&member, score, ScoreRule::default()))),
        4 => drop(model.checked(set.increment(&member, score, ScoreRule::default()))),
        5 => drop(model.checked(set.remove(&member))),
        6 => drop(model.checked(set.rank(&member, kind > 99))),
        _ => drop(model.checked(set.by_score(&ScoreRange::ALL, kind > 99, 0, 50))),
    }
}

fn small(bytes: &[u8]) {
    if let Some(set) = SmallSet::decode(bytes) {
        let mut again = Vec::new();
        set.encode(&mut again);
        assert!(SmallSet::decode(&again).is_some_and(|read| read == set), "another set");
    }
}

/// Damages a node: changes a byte or its length, or replaces it with another node's bytes.
fn poke(input: &mut Input<'_>, table: &Table<Arc<Heap>>, model: &mut Model) {
    let mut handle = table.handle();
    let mut nodes = Vec::new();
    if handle.for_each(|key, value| nodes.push((key.to_vec(), value.to_vec()))).is_err() {
        return;
    }
    nodes.sort();
    let at = usize::from(input.byte()) % nodes.len().max(1);
    let (how, where_, xor) = (input.below(8), usize::from(input.short()), input.byte());
    let other = nodes.get(usize::from(xor) % nodes.len().max(1)).cloned();
    let (Some((key, mut bytes)), Some((_, other))) = (nodes.get(at).cloned(), other) else {
        return;
    };
    match how {
        0..=3 => bytes.iter_mut().skip(where_ % 64).take(1).for_each(|byte| *byte ^= xor),
        4 | 5 => bytes.iter_mut().skip(where_).take(1).for_each(|byte| *byte ^= xor),
        6 => bytes.truncate(where_ % 200),
        _ => bytes = other,
    }
    model.is_damaged = true;
    // There may be no memory for it.
    let _ = handle.put(&key, &bytes);
}
