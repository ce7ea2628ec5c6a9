//! One client's ordered map against a model, through many splits; its limits, and damage.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rackpool_kv::Table;
use rackpool_kv::ordered::{
    Direction, KeyRange, MapChange, MapEntry, MapId, MapSweep, OrderedError, OrderedMaps,
};
use support::heap::Heap;
use support::small_table;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u16),
    Remove(u16),
    Update(u16, u16),
    Get(u16),
    Range(u16, u16, u8, bool),
    OtherHandle,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..400u16;
    prop_oneof![
        10 => (key(), 0..500u16).prop_map(|(key, len)| Step::Insert(key, len)),
        3 => key().prop_map(Step::Remove),
        2 => (key(), 0..500u16).prop_map(|(key, len)| Step::Update(key, len)),
        3 => key().prop_map(Step::Get),
        2 => (key(), key(), any::<u8>(), any::<bool>())
            .prop_map(|(from, to, kind, back)| Step::Range(from, to, kind, back)),
        1 => Just(Step::OtherHandle),
    ]
}

/// Keys of different lengths with long common prefixes, so that separators are long.
fn key_bytes(key: u16) -> Vec<u8> {
    let mut bytes = vec![b'k'; if key.is_multiple_of(3) { 3 } else { 250 }];
    bytes.extend_from_slice(&key.to_be_bytes());
    bytes.resize(bytes.len() + usize::from(key % 5) * 9, 0);
    if key == 0 { Vec::new() } else { bytes }
}

fn new_maps(heap: &Arc<Heap>) -> (Table<Arc<Heap>>, OrderedMaps<Arc<Heap>>, MapId) {
    let table = small_table(heap);
    let mut maps = OrderedMaps::new(table.handle());
    let id = MapId::from_bytes([7; 16]);
    assert!(maps.create(id, b"owner").unwrap());
    (table, maps, id)
}

fn bound(kind: u8, key: &[u8]) -> Bound<&[u8]> {
    match kind % 4 {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(key),
        _ => Bound::Included(key),
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs_in(model: &Model, range: &KeyRange<'_>, direction: Direction) -> Vec<MapEntry> {
    let within = |key: &[u8]| {
        let after = match range.from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        after
            && match range.to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            }
    };
    let pairs = model.iter().filter(|(key, _)| within(key));
    let entry =
        |(key, value): (&Vec<u8>, &Vec<u8>)| MapEntry { key: key.clone(), value: value.clone() };
    let mut pairs: Vec<_> = pairs.map(entry).collect();
    if direction == Direction::Backward {
        pairs.reverse();
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_like_an_ordered_map(steps in vec(step(), 1..700)) {
        let heap = Arc::new(Heap::new(16 << 20));
        let (table, mut maps, id) = new_maps(&heap);
        let mut other = OrderedMaps::new(table.handle());
        let mut model = Model::new();
        let mut value = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            let filled = |len: u16| {
                let mut value = vec![at as u8; usize::from(len)];
                value.extend_from_slice(&(at as u64).to_le_bytes());
                value
            };
            let mut map = maps.map(id);
            match step {
                Step::Insert(key, len) => {
                    let old = map.insert(&key_bytes(key), &filled(len)).unwrap();
                    prop_assert_eq!(old, model.insert(key_bytes(key), filled(len)));
                }
                Step::Remove(key) => {
                    let old = map.remove(&key_bytes(key)).unwrap();
                    prop_assert_eq!(old, model.remove(&key_bytes(key)));
                }
                Step::Update(key, len) => {
                    let old = map.update(&key_bytes(key), |old| match old {
                        Some(_) => MapChange::Put(filled(len)),
                        None => MapChange::Keep,
                    }).unwrap();
                    prop_assert_eq!(old.as_ref(), model.get(&key_bytes(key)));
                    model.entry(key_bytes(key)).and_modify(|value| *value = filled(len));
                }
                Step::Get(key) => {
                    let found = map.get(&key_bytes(key), &mut value).unwrap();
                    prop_assert_eq!(found.then_some(&value), model.get(&key_bytes(key)));
                }
                Step::Range(from, to, kind, back) => {
                    let (from, to) = (key_bytes(from), key_bytes(to));
                    let range = KeyRange { from: bound(kind, &from), to: bound(kind / 4, &to) };
                    let direction = if back { Direction::Backward } else { Direction::Forward };
                    let expected = pairs_in(&model, &range, direction);
                    prop_assert_eq!(map.count(&range).unwrap(), expected.len() as u64);
                    let some = map.range(&range, direction, 5).unwrap();
                    prop_assert_eq!(&some[..], &expected[..expected.len().min(5)]);
                    prop_assert_eq!(map.range(&range, direction, usize::MAX).unwrap(), expected);
                }
                // The cached inner nodes of the other access are stale.
                Step::OtherHandle => std::mem::swap(&mut maps, &mut other),
            }
        }
        let mut map = maps.map(id);
        let entry = |(key, value): (&Vec<u8>, &Vec<u8>)| MapEntry {
            key: key.clone(),
            value: value.clone(),
        };
        prop_assert_eq!(map.first().unwrap(), model.first_key_value().map(entry));
        prop_assert_eq!(map.last().unwrap(), model.last_key_value().map(entry));
        map.destroy().unwrap();
        let mut left = 0;
        table.handle().for_each(|_, _| left += 1).unwrap();
        prop_assert_eq!(left, 0, "nodes are left");
        table.destroy().unwrap();
        prop_assert_eq!(heap.live(), Vec::<u64>::new());
    }
}

#[test]
fn ascending_keys_leave_full_leaves() {
    let heap = Arc::new(Heap::new(64 << 20));
    let (table, mut maps, id) = new_maps(&heap);
    let mut map = maps.map(id);
    for key in 0..20_000u64 {
        map.insert(&key.to_be_bytes(), b"12345678").unwrap();
    }
    let mut nodes = 0;
    table.handle().for_each(|_, _| nodes += 1).unwrap();
    // An entry takes 24 B, so a leaf has 80.
    assert!(nodes < 20_000 / 66, "{nodes} nodes");
    assert_eq!(map.count(&KeyRange::ALL).unwrap(), 20_000);
}

#[test]
fn entries_as_large_as_allowed_are_kept_and_larger_ones_refused() {
    let heap = Arc::new(Heap::new(64 << 20));
    let (table, mut maps, id) = new_maps(&heap);
    let mut map = maps.map(id);
    let most = (2 << 20) / 4 - 8;
    for key in 0..12u8 {
        let value = vec![key; most - 65535];
        assert_eq!(map.insert(&[key; 65535], &value).unwrap(), None);
        assert_eq!(map.insert(&[key], &[key]).unwrap(), None);
    }
    for key in 0..12u8 {
        let mut value = Vec::new();
        assert!(map.get(&[key; 65535], &mut value).unwrap());
        assert_eq!(value, vec![key; most - 65535]);
    }
    assert_eq!(map.range(&KeyRange::ALL, Direction::Backward, 100).unwrap().len(), 24);
    for (key, value) in [(65536, 0), (1, most)] {
        let refused = map.insert(&vec![1; key], &vec![1; value]);
        assert!(matches!(refused, Err(OrderedError::TooLarge { .. })), "{refused:?}");
    }
    map.destroy().unwrap();
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn a_map_that_is_gone_says_so_to_who_still_has_copies_of_its_nodes() {
    let heap = Arc::new(Heap::new(16 << 20));
    let (table, mut maps, id) = new_maps(&heap);
    for key in 1..400 {
        maps.map(id).insert(&key_bytes(key), &[1; 100]).unwrap();
    }
    let mut other = OrderedMaps::new(table.handle());
    assert_eq!(other.map(id).count(&KeyRange::ALL).unwrap(), 399);
    assert!(other.map(id).get(&key_bytes(200), &mut Vec::new()).unwrap());
    maps.map(id).destroy().unwrap();
    maps.map(id).destroy().unwrap();
    for key in 1..400 {
        let inserted = other.map(id).insert(&key_bytes(key), b"late");
        assert!(matches!(inserted, Err(OrderedError::Gone { .. })), "{inserted:?}");
    }
    assert!(matches!(other.map(id).first(), Err(OrderedError::Gone { .. })));
    assert_eq!(maps.sweep(|_, _| Ok::<_, OrderedError<_>>(true)).unwrap(), 0);
}

#[test]
fn a_sweep_takes_what_nobody_owns_and_nothing_else() {
    let heap = Arc::new(Heap::new(16 << 20));
    let (table, mut maps, kept) = new_maps(&heap);
    let (dropped, rootless) = (MapId::random(), MapId::random());
    maps.create(dropped, b"another").unwrap();
    maps.create(rootless, b"owner").unwrap();
    for id in [kept, dropped, rootless] {
        for key in 1..300 {
            maps.map(id).insert(&key_bytes(key), &[1; 100]).unwrap();
        }
    }
    // As if the client that destroys the map had been killed.
    let root = [rootless.to_bytes(), [0; 16]].concat();
    assert!(table.handle().delete(&root).unwrap());
    let mut asked = HashSet::new();
    let deleted = maps
        .sweep(|owner, id| {
            asked.insert((owner.to_vec(), id));
            Ok::<_, OrderedError<_>>(owner == b"owner")
        })
        .unwrap();
    assert!(deleted > 30, "{deleted}");
    assert_eq!(asked, [(b"owner".to_vec(), kept), (b"another".to_vec(), dropped)].into());
    for id in [dropped, rootless] {
        assert!(matches!(maps.map(id).first(), Err(OrderedError::Gone { .. })));
    }
    assert_eq!(maps.map(kept).count(&KeyRange::ALL).unwrap(), 299);
    maps.map(kept).destroy().unwrap();
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

/// Each sweep makes one step only, as in instances that are killed all the time.
#[test]
fn sweeps_that_never_come_to_an_end_leave_nothing_together() {
    let heap = Arc::new(Heap::new(16 << 20));
    let (table, mut maps, kept) = new_maps(&heap);
    for _ in 0..1000 {
        maps.create(MapId::random(), b"nobody").unwrap();
    }
    let left = || table.handle().count().unwrap();
    let mut lives = 0;
    while left() > 1 {
        lives += 1;
        assert!(lives < 10_000, "{} nodes are left", left());
        let mut sweep = MapSweep::anywhere(&maps);
        let owns = |owner: &[u8], _| Ok::<_, OrderedError<_>>(owner == b"owner");
        let swept = sweep.step(&mut maps, 4, owns).unwrap();
        assert!(swept.seen < 200, "a step looked at {} nodes", swept.seen);
    }
    assert!(lives > 10, "a step took all");
    maps.map(kept).destroy().unwrap();
}

/// Whatever bytes a node has, each operation returns an answer or an error.
#[test]
fn damaged_nodes_are_errors_and_no_endless_search() {
    let heap = Arc::new(Heap::new(16 << 20));
    let (table, mut maps, id) = new_maps(&heap);
    for key in 1..60 {
        maps.map(id).insert(&key_bytes(key), &[1; 100]).unwrap();
    }
    let mut nodes = Vec::new();
    let mut handle = table.handle();
    handle.for_each(|key, value| nodes.push((key.to_vec(), value.to_vec()))).unwrap();
    let mut refused = 0;
    for (key, kept) in &nodes {
        let flips =
            (0..64).chain((64..kept.len()).step_by(37)).flat_map(|at| [(at, 1), (at, 0x80)]);
        let damaged = flips.map(|(at, bit)| {
            let mut bytes = kept.clone();
            bytes[at] ^= bit;
            bytes
        });
        let others = nodes.iter().map(|(_, other)| other.clone());
        for bytes in damaged.chain(others).chain([Vec::new(), kept[..70].to_vec()]) {
            handle.put(key, &bytes).unwrap();
            let mut maps = OrderedMaps::new(table.handle());
            let mut map = maps.map(id);
            refused += u32::from(map.range(&KeyRange::ALL, Direction::Forward, 1000).is_err());
            refused += u32::from(map.range(&KeyRange::ALL, Direction::Backward, 1000).is_err());
            let _ = map.get(&key_bytes(30), &mut Vec::new());
            let _ = map.update(&key_bytes(31), |_| MapChange::Keep);
        }
        handle.put(key, kept).unwrap();
    }
    assert!(refused > 100, "{refused}");
    assert_eq!(maps.map(id).count(&KeyRange::ALL).unwrap(), 59);
}

/// Found by the fuzz target: the node was split, found changed, read and split again without end.
#[test]
fn a_node_that_is_older_than_its_half_is_damage_and_no_endless_split() {
    let heap = Arc::new(Heap::new(16 << 20));
    let (table, mut maps, id) = new_maps(&heap);
    let key = |number: u16| [&[b'k'; 250][..], &number.to_be_bytes()].concat();
    for number in (1000..1100).rev() {
        maps.map(id).insert(&key(number), &[1; 100]).unwrap();
    }
    let (mut first, mut handle) = (None, table.handle());
    handle
        .for_each(|name, node| {
            // The first leaf: level 0, with a high key, and with an empty low one.
            if node[1] == 0 && node[2] == 1 && node[48..52] == [0; 4] {
                first = Some((name.to_vec(), node.to_vec()));
            }
        })
        .unwrap();
    let (name, mut node) = first.unwrap();
    let splits = u64::from_le_bytes(node[24..32].try_into().unwrap());
    node[8..16].copy_from_slice(&0u64.to_le_bytes());
    node[24..32].copy_from_slice(&(splits - 1).to_le_bytes());
    handle.put(&name, &node).unwrap();
    let refused = (0..100).find_map(|number| maps.map(id).insert(&key(number), &[2; 100]).err());
    assert!(matches!(refused, Some(OrderedError::Damaged { .. })), "{refused:?}");
}
