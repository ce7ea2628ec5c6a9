//! The removal of whole object stores, by programs that are killed meanwhile too.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;
use std::thread;

use rackpool_objects::{CreateOptions, Store, StoreError};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census::{self, Census};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const NAME: &str = "removed";
/// The memory of a store's header and of its seat.
const HEADER: u64 = 4096;
const SEAT: u64 = 64;

fn store(pool: &TestPool, rack: u16, name: &str) -> Store {
    Store::open_or_create(Arc::new(pool.open(rack)), name).unwrap()
}

/// Objects in both racks, some of them with replicas.
fn fill(pool: &TestPool, name: &str) {
    let stores = [store(pool, 0, name), store(pool, 1, name)];
    for number in 0..12_u64 {
        let (own, other) = if number % 2 == 0 { (0, 1) } else { (1, 0) };
        let bytes = contents::of(number, usize::try_from((number % 3) * PAGE + 100).unwrap());
        let id = number.to_string();
        stores[own].put(id.as_bytes(), &bytes, &CreateOptions::default()).unwrap();
        if number % 3 == 0 {
            assert!(stores[other].get(id.as_bytes()).unwrap().is_some());
        }
    }
}

/// Waits until the pool has the objects that it had at the time of a census, and at most the
/// headers of `headers` stores with their seats.
fn wait_until_as_before(pool: &TestPool, before: &Census, headers: usize) {
    wait_until("nothing of any store is left", TIMEOUT, || {
        let mut now = census::objects(pool);
        let are_there = before.objects.iter().all(|(addr, _)| now.remove(addr).is_some());
        let of = |size: u64| now.values().filter(|bytes| **bytes == size).count();
        census::exchanges_have_ended(pool)
            && before.newcomers_are_gone(pool)
            && are_there
            && of(HEADER) <= headers
            && of(SEAT) <= headers
            && of(HEADER) + of(SEAT) == now.len()
    });
}

#[test]
fn a_store_is_removed_with_everything_in_it() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let before = Census::of(&pool);
    fill(&pool, NAME);
    let (used, viewed) = (store(&pool, 0, NAME), store(&pool, 1, NAME));
    let view = viewed.get(b"3").unwrap().unwrap();
    let unsealed = used.create(b"late", 10, &CreateOptions::default()).unwrap();
    let remover = Arc::new(pool.open(1));
    assert!(Store::remove(Arc::clone(&remover), NAME).unwrap());
    assert!(!Store::remove(Arc::clone(&remover), NAME).unwrap());
    // Programs that have the store open are told, also when its memory is used for another one.
    assert!(matches!(unsealed.seal(), Err(StoreError::Removed)));
    let again = store(&pool, 1, NAME);
    again.put(b"new", b"another store", &CreateOptions::default()).unwrap();
    for old in [&used, &viewed] {
        assert!(matches!(old.get(b"new"), Err(StoreError::Removed)));
        assert!(matches!(old.contains(b"3"), Err(StoreError::Removed)));
        assert!(matches!(old.delete(b"3"), Err(StoreError::Removed)));
        assert!(matches!(old.list(b""), Err(StoreError::Removed)));
        assert!(matches!(old.evict(1), Err(StoreError::Removed)));
        assert!(matches!(old.set_options(&again.options().unwrap()), Err(StoreError::Removed)));
        let told = old.put(b"x", b"y", &CreateOptions::default()).unwrap_err();
        assert!(told.to_string().contains("create it anew"), "{told}");
    }
    assert_eq!(again.list(b"").unwrap().len(), 1);
    assert_eq!(contents::difference(3, &view), None, "a view outlives its store");
    drop((view, used, viewed, again));
    assert!(Store::remove(Arc::clone(&remover), NAME).unwrap());
    assert!(Store::open(Arc::clone(&remover), NAME).unwrap().is_none());
    drop(remover);
    wait_until_as_before(&pool, &before, 0);
}

#[test]
fn a_removal_that_was_killed_anywhere_is_completed_and_leaks_nothing() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let before = Census::of(&pool);
    let names: Vec<String> = (0..8).map(|number| format!("{NAME}-{number}")).collect();
    names.iter().for_each(|name| fill(&pool, name));
    let mut removers: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| pool.client(number % 2, &["remove-store", name]))
        .collect();
    removers.iter_mut().for_each(|remover| remover.wait_for_lines(1));
    wait_until("all removals have begun", TIMEOUT, || {
        let reader = Arc::new(pool.open(0));
        let opened = |name: &String| Store::open(Arc::clone(&reader), name);
        names.iter().all(|name| matches!(opened(name), Err(StoreError::Removed)))
    });
    let told = Store::remove(Arc::new(pool.open(0)), &names[7]).unwrap_err();
    assert!(matches!(told, StoreError::RemovalUnderWay), "{told:?}");
    // The first one while it waits, the others while they delete and free: each after something
    // else was freed.
    removers[0].kill();
    let mut left = census::objects(&pool).len();
    for remover in &mut removers[1..] {
        wait_until("something is freed", TIMEOUT, || {
            let before = std::mem::replace(&mut left, census::objects(&pool).len());
            left < before || remover.has_ended()
        });
        remover.kill();
    }
    // Those that were killed between the removal of the root and their end.
    let is_gone = |name: &String| pool.open(0).root(name).unwrap().is_none();
    let cut_off = removers.iter().zip(&names);
    let cut_off = cut_off.filter(|(remover, name)| remover.said.len() < 2 && is_gone(name)).count();
    let finish = |(rack, name): (u16, &String)| {
        let pool = Arc::new(pool.open(rack));
        wait_until("the killed program's seat is free", TIMEOUT, || {
            // A store whose root was gone already is no store.
            match Store::open_or_create(Arc::clone(&pool), name) {
                Ok(store) => store.list(b"").unwrap().is_empty(),
                Err(StoreError::RemovalUnderWay) => false,
                Err(error) => panic!("{name}: {error}"),
            }
        });
        assert!(Store::remove(pool, name).unwrap());
    };
    thread::scope(|scope| {
        for each in (0..2).cycle().zip(&names) {
            scope.spawn(move || finish(each));
        }
    });
    let done = removers.iter().filter(|remover| remover.said.len() == 2).count();
    assert!(done < names.len(), "no removal was killed");
    wait_until_as_before(&pool, &before, cut_off);
}
