//! One client against a hash map, through many splits and compactions; and the limits of what can
//! be stored.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rackpool_kv::{GlobalAddr, KvError, Memory, Table, TableOptions};
use support::heap::Heap;
use support::small_table;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u16),
    Insert(u8, u16),
    Update(u8, u16),
    Delete(u8),
    Swap(u8, bool, u16),
    Get(u8),
    GetMany,
    Scan,
    OtherHandle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<u8>(), 0..3000u16).prop_map(|(key, len)| Step::Put(key, len)),
        2 => (any::<u8>(), 0..300u16).prop_map(|(key, len)| Step::Insert(key, len)),
        2 => (any::<u8>(), 0..300u16).prop_map(|(key, len)| Step::Update(key, len)),
        4 => any::<u8>().prop_map(Step::Delete),
        3 => (any::<u8>(), any::<bool>(), 0..300u16).prop_map(|(k, right, l)| Step::Swap(k, right, l)),
        4 => any::<u8>().prop_map(Step::Get),
        1 => Just(Step::GetMany),
        1 => Just(Step::Scan),
        1 => Just(Step::OtherHandle),
    ]
}

fn key_bytes(key: u8) -> Vec<u8> {
    vec![key; usize::from(key) % 41]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_like_a_hash_map(steps in vec(step(), 1..500), far in any::<bool>()) {
        let mut heap = Heap::new(16 << 20);
        heap.far = far;
        let heap = Arc::new(heap);
        let table = small_table(&heap);
        let (mut handle, mut other) = (table.handle(), table.handle());
        let mut model: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        let mut value = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            let filled = |len: u16| {
                let mut value = vec![at as u8; usize::from(len)];
                value.extend_from_slice(&(at as u64).to_le_bytes());
                value
            };
            match step {
                Step::Put(key, len) => {
                    let replaced = handle.put(&key_bytes(key), &filled(len)).unwrap();
                    prop_assert_eq!(replaced, model.insert(key_bytes(key), filled(len)).is_some());
                }
                Step::Insert(key, len) => {
                    let key = key_bytes(key);
                    let done = handle.insert(&key, &filled(len)).unwrap();
                    prop_assert_eq!(done, !model.contains_key(&key));
                    model.entry(key).or_insert_with(|| filled(len));
                }
                Step::Update(key, len) => {
                    let key = key_bytes(key);
                    let done = handle.update(&key, &filled(len)).unwrap();
                    prop_assert_eq!(done, model.contains_key(&key));
                    model.entry(key).and_modify(|value| *value = filled(len));
                }
                Step::Delete(key) => {
                    let key = key_bytes(key);
                    prop_assert_eq!(handle.delete(&key).unwrap(), model.remove(&key).is_some());
                }
                Step::Swap(key, right, len) => {
                    let key = key_bytes(key);
                    let old = model.get(&key).cloned();
                    let expected = if right { old.clone() } else { Some(b"wrong".to_vec()) };
                    let new = filled(len);
                    let done = handle.compare_and_put(&key, expected.as_deref(), &new).unwrap();
                    prop_assert_eq!(done, expected == old);
                    if done {
                        model.insert(key, new);
                    }
                }
                Step::Get(key) => {
                    let found = handle.get(&key_bytes(key), &mut value).unwrap();
                    let found = found.then_some(&value);
                    prop_assert_eq!(found, model.get(&key_bytes(key)));
                }
                Step::GetMany => {
                    let keys: Vec<Vec<u8>> = (0..=u8::MAX).map(key_bytes).collect();
                    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                    let mut found = vec![None; keys.len()];
                    handle.get_many(&keys, |index, value| {
                        let value = value.map(<[u8]>::to_vec);
                        assert!(found[index].replace(value).is_none(), "{index} is visited twice");
                    }).unwrap();
                    for (key, found) in keys.iter().zip(found) {
                        prop_assert_eq!(found, Some(model.get(*key).cloned()));
                    }
                }
                Step::Scan => {
                    let mut seen = HashMap::new();
                    handle.for_each(|key, value| {
                        assert!(seen.insert(key.to_vec(), value.to_vec()).is_none());
                    }).unwrap();
                    prop_assert_eq!(&seen, &model);
                }
                // The other handle's directory is stale.
                Step::OtherHandle => std::mem::swap(&mut handle, &mut other),
            }
        }
        prop_assert_eq!(handle.unreclaimed() + other.unreclaimed(), 0);
        table.destroy().unwrap();
        prop_assert_eq!(heap.live(), Vec::<u64>::new());
    }
}

#[test]
fn grows_and_shrinks_and_gives_everything_back() {
    let heap = Arc::new(Heap::new(64 << 20));
    let options = TableOptions { max_depth: 12, segment_bytes: 4096 };
    let table = Table::create(Arc::clone(&heap), &options).unwrap();
    let mut handle = table.handle();
    for round in 0..3u64 {
        for key in 0..20_000u64 {
            assert!(!handle.put(&key.to_le_bytes(), &round.to_le_bytes()).unwrap());
        }
        let segments = heap.live().iter().filter(|size| **size == 4096).count();
        assert!(segments < 250, "round {round}: {segments} segments for 20000 entries");
        for key in 0..20_000u64 {
            assert!(handle.delete(&key.to_le_bytes()).unwrap());
        }
        let objects = heap.live().iter().filter(|size| **size == 64).count();
        assert_eq!(objects, 0, "round {round}");
    }
    let mut left = 0;
    handle.for_each(|_, _| left += 1).unwrap();
    assert_eq!(left, 0);
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn keys_that_come_and_go_do_not_make_the_table_grow() {
    let heap = Arc::new(Heap::new(64 << 20));
    let table = Table::create(Arc::clone(&heap), &TableOptions::default()).unwrap();
    let mut handle = table.handle();
    for number in 0..100_u32 {
        handle.put(&number.to_le_bytes(), b"stays").unwrap();
    }
    for round in 0..20_000_u32 {
        let key = [b'k', (round % 7) as u8];
        handle.put(&key, b"goes").unwrap();
        assert!(handle.delete(&key).unwrap());
    }
    assert_eq!(handle.segments().unwrap().current, 1);
    assert_eq!(handle.count().unwrap(), 100);
}

#[test]
fn a_handle_that_slept_through_many_splits_finds_every_key() {
    let heap = Arc::new(support::watching_heap());
    let table = small_table(&heap);
    support::watch_table(&heap, &table);
    let mut handle = table.handle();
    let mut sleepers: Vec<_> = (0..400).map(|_| table.handle()).collect();
    for sleeper in &mut sleepers {
        assert_eq!(support::value_of(sleeper, 0), None);
    }
    for (key, mut sleeper) in (0..400u64).zip(sleepers) {
        handle.put(&key.to_le_bytes(), &key.to_le_bytes()).unwrap();
        for known in (0..=key).rev() {
            assert_eq!(support::value_of(&mut sleeper, known), Some(known), "after {key}");
        }
    }
}

#[test]
fn a_table_at_its_maximum_depth_is_full_and_stays_usable() {
    let heap = Arc::new(Heap::new(1 << 20));
    let options = TableOptions { max_depth: 1, segment_bytes: 256 };
    let table = Table::create(Arc::clone(&heap), &options).unwrap();
    let mut handle = table.handle();
    let full = (0u64..100).find(|key| {
        let put = handle.put(&key.to_le_bytes(), b"value");
        assert!(matches!(put, Ok(false) | Err(KvError::TableFull { max_depth: 1 })), "{put:?}");
        put.is_err()
    });
    let full = full.expect("48 slots hold less than 100 keys");
    assert!(handle.update(&0u64.to_le_bytes(), b"new").unwrap());
    for key in 0..full {
        assert!(handle.delete(&key.to_le_bytes()).unwrap());
    }
    assert!(!handle.put(&full.to_le_bytes(), b"value").unwrap());
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn sizes_at_the_edges() {
    let heap = Arc::new(Heap::new(16 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    let mut value = Vec::new();
    let page = usize::try_from(heap.page_bytes()).unwrap();
    for (key_len, value_len) in [
        (0, 0),
        (0, 9),
        (0, page - 32),
        (1, 0),
        (65535, 0),
        (1, page - 33),
        (65535, 100),
        (7, 2009),
        (7, 2010),
    ] {
        let (key, stored) = (vec![9; key_len], vec![7; value_len]);
        handle.put(&key, &stored).unwrap();
        assert!(handle.get(&key, &mut value).unwrap());
        assert_eq!(value, stored);
        assert!(handle.compare_and_put(&key, Some(&stored), b"x").unwrap());
        assert!(handle.delete(&key).unwrap());
    }
    assert!(matches!(handle.put(&[0; 65536], b""), Err(KvError::KeyLength { bytes: 65536 })));
    assert!(matches!(handle.get(&[0; 65536], &mut value), Err(KvError::KeyLength { .. })));
    assert!(matches!(handle.put(b"k", &vec![0; page]), Err(KvError::TooLarge { .. })));
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}

#[test]
fn only_tables_are_opened() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let opened = Table::open(Arc::clone(&heap), table.addr()).unwrap();
    assert!(!opened.handle().get(b"key", &mut Vec::new()).unwrap());
    let addr = heap.allocate(128).unwrap();
    let other = Table::open(Arc::clone(&heap), addr);
    assert!(matches!(other, Err(KvError::NotATable { .. })));
    heap.write(GlobalAddr::from_raw(table.addr().raw() + 8), &[9, 0, 0, 0, 8, 8, 0, 0]).unwrap();
    let newer = Table::open(Arc::clone(&heap), table.addr());
    assert!(matches!(newer, Err(KvError::Version { found: 9, .. })));
    for options in [
        TableOptions { max_depth: 19, ..Default::default() },
        TableOptions { segment_bytes: 1000, ..Default::default() },
        TableOptions { segment_bytes: 4 << 20, ..Default::default() },
    ] {
        assert!(matches!(Table::create(Arc::clone(&heap), &options), Err(KvError::Option { .. })));
    }
}

#[test]
fn damage_is_an_error_and_no_endless_search() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    handle.put(b"key", b"value").unwrap();
    for line in heap.live_lines() {
        let addr = GlobalAddr::from_raw(line);
        let mut kept = [0; 64];
        heap.read(addr, &mut kept).unwrap();
        for junk in [[0; 64], [0x5a; 64], [0xff; 64], kept.map(|byte| byte ^ 1)] {
            heap.write(addr, &junk).unwrap();
            for handle in [&mut handle, &mut table.handle()] {
                // Any answer and any error is allowed, but the call must return.
                let _ = handle.get(b"key", &mut Vec::new());
                let _ = handle.get(b"other", &mut Vec::new());
                let _ = handle.for_each(|_, _| {});
            }
        }
        heap.write(addr, &kept).unwrap();
    }
}

#[test]
fn a_spare_segment_block_that_leads_back_into_itself_is_damage() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    for key in 0..100u64 {
        handle.put(&key.to_le_bytes(), b"value").unwrap();
    }
    let spare_segments = table.addr().raw() + 64;
    heap.write(GlobalAddr::from_raw(spare_segments + 504), &spare_segments.to_le_bytes()).unwrap();
    let error = (1000_u64..).find_map(|key| handle.put(&key.to_le_bytes(), b"value").err());
    assert!(matches!(error, Some(KvError::Corrupt { what: "spare segments", .. })), "{error:?}");
    let destroyed = table.destroy();
    assert!(
        matches!(destroyed, Err(KvError::Corrupt { what: "spare segments", .. })),
        "{destroyed:?}"
    );
}

#[test]
fn a_spare_segment_block_of_which_all_places_are_taken_is_lengthened() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    let places = (1..63).map(|word| GlobalAddr::from_raw(table.addr().raw() + 64 + word * 8));
    let taken = 1_u64 << 48;
    for place in places.clone() {
        let mut word = [0; 8];
        heap.read(place, &mut word).unwrap();
        if word == [0; 8] {
            heap.write(place, &taken.to_le_bytes()).unwrap();
        }
    }
    for key in 0..100u64 {
        handle.put(&key.to_le_bytes(), b"value").unwrap();
    }
    let destroyed = table.clone().destroy();
    assert!(matches!(destroyed, Err(KvError::InUse { .. })), "{destroyed:?}");
    for place in places {
        heap.compare_and_swap(place, taken, 0).unwrap();
    }
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new());
}
