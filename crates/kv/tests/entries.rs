//! Entries with kinds and expiry, changed atomically, and walks in steps.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use rackpool_kv::{
    Entry, EntryChange, Form, GlobalAddr, Handle, KvError, Lookahead, Memory, ReservedObject,
    Table, TablePart, ValueKind, now_ms,
};
use support::heap::Heap;
use support::small_table;

const OTHER: Form = Form { kind: ValueKind(7), expires_ms: 0 };
const OVER: Form = Form { kind: ValueKind::STRING, expires_ms: 1 };

#[test]
fn a_change_sees_what_it_replaces() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    for number in 1..=100_u8 {
        let changed = handle.modify(b"key", |entry, made| {
            assert_eq!(entry.map_or(0, |entry| entry.value.len()), usize::from(number) - 1);
            made.resize(usize::from(number), number);
            EntryChange::Put(OTHER)
        });
        assert!(changed.unwrap());
    }
    let entry = handle.read(b"key").unwrap();
    assert_eq!(entry, Some(Entry { form: OTHER, value: &[100; 100] }));
    assert!(!handle.modify(b"key", |_, _| EntryChange::Keep).unwrap());
    assert!(handle.modify(b"key", |_, _| EntryChange::Delete).unwrap());
    assert!(!handle.modify(b"key", |_, _| EntryChange::Delete).unwrap());
    assert_eq!(handle.read(b"key").unwrap(), None);
}

#[test]
fn looking_ahead_changes_nothing() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    let mut lookahead = Lookahead::default();
    for number in 0..2000_u32 {
        let key = number.to_le_bytes();
        // The next key, a present one, an absent one, and the empty key.
        for other in [number, number / 2, number + 1_000_000] {
            handle.look_ahead(&other.to_le_bytes(), &mut lookahead);
        }
        handle.look_ahead(b"", &mut lookahead);
        handle.prefetch(&mut lookahead);
        assert!(lookahead.is_empty());
        assert!(!handle.put(&key, &key).unwrap());
    }
    let mut value = Vec::new();
    for number in 0..2000_u32 {
        assert!(handle.get(&number.to_le_bytes(), &mut value).unwrap());
        assert_eq!(value, number.to_le_bytes());
    }
}

#[test]
fn no_raise_is_lost_among_threads() {
    let heap = Arc::new(Heap::new(16 << 20));
    let table = small_table(&heap);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut handle = table.handle();
            scope.spawn(move || {
                for _ in 0..500 {
                    let raised = handle.modify(b"count", |entry, made| {
                        let old =
                            entry.map_or(0, |e| u64::from_le_bytes(e.value.try_into().unwrap()));
                        made.extend_from_slice(&(old + 1).to_le_bytes());
                        EntryChange::Put(OTHER)
                    });
                    assert!(raised.unwrap());
                }
            });
        }
    });
    let mut handle = table.handle();
    assert_eq!(handle.read(b"count").unwrap().unwrap().value, 2000_u64.to_le_bytes());
}

#[test]
fn an_entry_whose_time_is_over_is_absent() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    let mut value = Vec::new();
    assert!(!handle.put_entry(b"a", OVER, b"old").unwrap());
    assert!(!handle.get(b"a", &mut value).unwrap());
    assert_eq!(handle.read(b"a").unwrap(), None);
    assert_eq!(handle.version(b"a").unwrap(), None);
    assert!(!handle.update(b"a", b"x").unwrap());
    assert!(!handle.compare_and_put(b"a", Some(b"old"), b"x").unwrap());
    assert_eq!(handle.count().unwrap(), 1);
    assert!(handle.insert(b"a", b"new").unwrap());
    assert!(handle.get(b"a", &mut value).unwrap());
    assert_eq!(value, b"new");
    handle.put_entry(b"b", OVER, b"old").unwrap();
    assert!(!handle.delete(b"b").unwrap());
    let later = Form { expires_ms: now_ms() + 3_600_000, ..Form::PLAIN };
    handle.put_entry(b"c", later, b"there").unwrap();
    assert!(handle.get(b"c", &mut value).unwrap());
    assert_eq!(handle.count().unwrap(), 2);
}

#[test]
fn strings_are_told_from_other_kinds() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    handle.put_entry(b"key", OTHER, b"value").unwrap();
    let other = Err(ValueKind(7));
    let mut value = Vec::new();
    let kind = |error| match error {
        KvError::OtherKind { found } => found,
        error => panic!("{error}"),
    };
    assert_eq!(handle.get(b"key", &mut value).map_err(kind), other);
    assert_eq!(handle.compare_and_put(b"key", Some(b"value"), b"x").map_err(kind), other);
    handle.for_each(|key, _| panic!("{key:?} is no string")).unwrap();
    assert!(handle.put(b"key", b"string").unwrap());
    assert!(handle.get(b"key", &mut value).unwrap());
}

#[test]
fn a_version_tells_that_something_was_stored() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    assert_eq!(handle.version(b"key").unwrap(), None);
    handle.put(b"key", b"same").unwrap();
    let first = handle.version(b"key").unwrap();
    assert!(first.is_some());
    assert_eq!(handle.version(b"key").unwrap(), first);
    handle.put(b"key", b"same").unwrap();
    assert_ne!(handle.version(b"key").unwrap(), first);
}

#[test]
fn a_walk_in_steps_sees_every_key_though_the_table_grows() {
    let heap = Arc::new(Heap::new(64 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    for number in 0..300_u32 {
        handle.put(&number.to_le_bytes(), b"old").unwrap();
    }
    let (mut cursor, mut seen, mut steps) = (0, BTreeSet::new(), 0_u32);
    loop {
        let visit = |key: &[u8], _: Entry<'_>| seen.extend([key.to_vec()]);
        cursor = handle.scan(cursor, 10, visit).unwrap();
        steps += 1;
        for number in 0..2_u32 {
            handle.put(&(1000 + steps * 2 + number).to_le_bytes(), b"new").unwrap();
        }
        if cursor == 0 {
            break;
        }
    }
    assert!((0..300_u32).all(|number| seen.contains(&number.to_le_bytes()[..])));
    assert!(steps > 10, "{steps} steps");
}

#[test]
fn a_survey_visits_every_entry_once_and_reads_the_values_that_are_wanted() {
    let heap = Arc::new(Heap::new(8 << 20));
    let mut handle = small_table(&heap).handle();
    let later = Form { expires_ms: now_ms() + 3_600_000, ..Form::PLAIN };
    let long = vec![b'v'; 20_000];
    for number in 0..600_u32 {
        let key = number.to_le_bytes();
        match number % 4 {
            0 => handle.put_entry(&key, Form::PLAIN, &long[..100]).unwrap(),
            1 => handle
                .put_entry(&key, later, &long[..if number < 40 { 20_000 } else { 10 }])
                .unwrap(),
            2 => handle.put_entry(&key, OTHER, &key).unwrap(),
            _ => handle.put_entry(&key, OVER, b"old").unwrap(),
        };
    }
    for number in (0..600_u32).step_by(8) {
        handle.delete(&number.to_le_bytes()).unwrap();
    }
    let (mut plain, mut expiring, mut over, mut others) = (0, 0, 0, Vec::new());
    handle
        .survey(
            |kind| kind == OTHER.kind,
            |entry| match entry.form {
                form if form.kind == OTHER.kind => others.push(entry.value.to_vec()),
                form if form.is_over() => over += 1,
                form if form == later => expiring += 1,
                form => {
                    assert_eq!((form, entry.value), (Form::PLAIN, &b""[..]));
                    plain += 1;
                }
            },
        )
        .unwrap();
    assert_eq!((plain, expiring, over), (75, 150, 150));
    others.sort();
    others.dedup();
    assert_eq!(others.len(), 150);
}

#[test]
fn an_entry_begins_an_object_of_its_caller() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    let place = |value: &[u8]| {
        let object = heap.reserve(512).unwrap();
        let addr = object.addr();
        let mut handle = table.handle();
        handle.insert_reserved(b"key", value, object).unwrap().then_some(addr)
    };
    let first = place(b"first").unwrap();
    assert_eq!(place(b"second"), None, "the key is present");
    let mut value = vec![7; 3];
    let found = handle.get_placed(b"key", &mut value).unwrap().unwrap();
    assert_eq!((found.addr, &value[..]), (first, &b"first"[..]));
    // What lies behind the entry is its caller's.
    let behind = GlobalAddr::from_raw(first.raw() + Handle::<Arc<Heap>>::entry_bytes(3, 5) as u64);
    heap.write(behind, &[9; 100]).unwrap();
    assert_eq!(handle.get_placed(b"key", &mut value).unwrap(), Some(found));
    // Another entry of the key is not deleted in its place, whatever its value.
    assert!(handle.delete(b"key").unwrap());
    let second = place(b"first").unwrap();
    assert!(!handle.delete_placed(b"key", &found).unwrap());
    let found = handle.get_placed(b"key", &mut value).unwrap().unwrap();
    assert_eq!(found.addr, second);
    assert!(handle.delete_placed(b"key", &found).unwrap());
    assert_eq!(handle.get_placed(b"key", &mut value).unwrap(), None);
    assert!(value.is_empty() && !handle.delete_placed(b"key", &found).unwrap());
    let too_long = vec![0; 1 << 17];
    let object = heap.reserve(64).unwrap();
    let told = handle.insert_reserved(&too_long, b"", object);
    assert!(matches!(told, Err(KvError::KeyLength { .. })), "{told:?}");
}

#[test]
fn an_entry_is_replaced_only_if_it_is_the_one_at_its_place() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    let mut value = Vec::new();
    assert!(handle.insert_reserved(b"key", b"first", heap.reserve(512).unwrap()).unwrap());
    let first = handle.get_placed(b"key", &mut value).unwrap().unwrap();
    // By an entry of its own, and by one that begins an object of the caller.
    assert!(handle.replace_placed(b"key", &first, b"stub", None).unwrap());
    let stub = handle.get_placed(b"key", &mut value).unwrap().unwrap();
    assert_eq!(value, b"stub");
    let object = heap.reserve(512).unwrap();
    let addr = object.addr();
    assert!(handle.replace_placed(b"key", &stub, b"second", Some(object)).unwrap());
    let second = handle.get_placed(b"key", &mut value).unwrap().unwrap();
    assert_eq!((second.addr, &value[..]), (addr, &b"second"[..]));
    for gone in [first, stub] {
        let object = heap.reserve(512).unwrap();
        assert!(!handle.replace_placed(b"key", &gone, b"third", Some(object)).unwrap());
        assert!(!handle.replace_placed(b"key", &gone, b"third", None).unwrap());
    }
    assert_eq!(handle.get_placed(b"key", &mut value).unwrap(), Some(second));
    assert!(!handle.replace_placed(b"absent", &second, b"", None).unwrap());
    assert!(handle.delete_placed(b"key", &second).unwrap());
    // What was not published, and what was replaced, is free again.
    assert!(!handle.replace_placed(b"key", &second, b"", None).unwrap());
}

#[test]
fn an_object_with_extents_counts_whole() {
    const TOTAL: i64 = 300 << 20;
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    let object = heap.reserve(256).unwrap();
    let value = [&TOTAL.to_le_bytes()[..], b"rest"].concat();
    assert!(handle.insert_extended(b"key", &value, object).unwrap());
    assert_eq!(handle.take_growth(), TOTAL);
    let sizes = || {
        let mut sizes = Vec::new();
        Table::walk(Arc::clone(&heap), table.addr(), |part, _, size| {
            if part == TablePart::Entry {
                sizes.push(size.unwrap());
            }
        })
        .unwrap();
        sizes
    };
    assert_eq!(sizes(), [TOTAL.cast_unsigned()]);
    // It is found and scanned like any entry, and is no string.
    let mut found = Vec::new();
    let place = handle.get_placed(b"key", &mut found).unwrap().unwrap();
    assert_eq!(found, value);
    let told = handle.get(b"key", &mut found);
    let kind = ValueKind::EXTENDED;
    assert!(matches!(told, Err(KvError::OtherKind { found }) if found == kind), "{told:?}");
    let mut seen = 0;
    assert_eq!(handle.scan(0, 10, |key, entry| seen += key.len() + entry.value.len()).unwrap(), 0);
    assert_eq!(seen, 3 + value.len());
    // Nobody else stores such an entry.
    let told = handle.put_entry(b"other", Form { kind, expires_ms: 0 }, &value);
    assert!(matches!(told, Err(KvError::Option { .. })), "{told:?}");
    assert!(handle.delete_placed(b"key", &place).unwrap());
    assert_eq!((handle.take_growth(), sizes().len()), (-TOTAL, 0));
}

#[test]
fn a_put_tells_what_it_replaced() {
    let heap = Arc::new(Heap::new(4 << 20));
    let mut handle = small_table(&heap).handle();
    handle.put(b"key", b"first").unwrap();
    assert_eq!(handle.replaced(), None);
    handle.put_entry(b"key", Form { expires_ms: 1, ..OTHER }, b"second").unwrap();
    let replaced = handle.replaced().unwrap();
    assert_eq!((replaced.form, replaced.value), (Form::PLAIN, &b"first"[..]));
    // Also an entry that has expired, which is still there for `read_stored`.
    assert_eq!(handle.read(b"key").unwrap(), None);
    assert_eq!(handle.read_stored(b"key").unwrap().unwrap().value, b"second");
    assert!(!handle.put(b"key", b"third").unwrap());
    let replaced = handle.replaced().unwrap();
    assert_eq!((replaced.form.kind, replaced.value), (OTHER.kind, &b"second"[..]));
    handle.put(b"another", b"").unwrap();
    assert_eq!(handle.replaced(), None);
}

#[test]
fn work_outside_of_a_transaction_is_done_at_once() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut handle = table.handle();
    handle.begin();
    handle.put(b"inside", b"1").unwrap();
    assert!(handle.outside(|handle| handle.insert(b"outside", b"2")).unwrap());
    assert!(handle.has_begun());
    let mut other = table.handle();
    let mut value = Vec::new();
    assert!(other.get(b"outside", &mut value).unwrap());
    assert!(!other.get(b"inside", &mut value).unwrap());
    handle.cancel();
}
