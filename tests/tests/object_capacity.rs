//! Capacity, eviction and time to live of object stores, and waits for objects.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rackpool_kv::now_ms;
use rackpool_objects::{CreateOptions, EvictionPolicy, Store, StoreError, StoreOptions};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::TestClient;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const NAME: &str = "cache";
/// The length of most objects, which take this and the next power of two of their heads.
const LEN: u64 = 2 * PAGE;
const MEMORY: u64 = LEN + 256;

fn store(pool: &TestPool, rack: u16, options: &StoreOptions) -> Store {
    Store::open_or_create_with(Arc::new(pool.open(rack)), NAME, options).unwrap()
}

fn cache(capacity: u64) -> StoreOptions {
    let policy = EvictionPolicy::Lru;
    StoreOptions { capacity: Some(capacity), policy, ..StoreOptions::default() }
}

fn put(store: &Store, id: &str, tag: u64, len: u64) -> Result<(), StoreError> {
    let bytes = contents::of(tag, usize::try_from(len).unwrap());
    store.put(id.as_bytes(), &bytes, &CreateOptions::default())
}

fn has(store: &Store, id: &str) -> bool {
    store.contains(id.as_bytes()).unwrap()
}

/// Gets the object until the use is recorded, which happens at most once a second.
fn use_now(store: &Store, id: &str) {
    let last_use = || store.stat(id.as_bytes()).unwrap().unwrap().last_use_ms;
    let before = last_use();
    wait_until("the use is recorded", TIMEOUT, || {
        drop(store.get(id.as_bytes()).unwrap().unwrap());
        last_use() > before
    });
}

fn wait_until_nothing_is_left(pool: &TestPool) {
    wait_until("nothing of any object is left", TIMEOUT, || census::fixed(pool).is_empty());
}

#[test]
fn what_was_unused_for_longest_makes_room() {
    let pool = TestPool::small();
    let store = store(&pool, 0, &cache(8 * MEMORY));
    for number in 0..8 {
        put(&store, &number.to_string(), number, LEN).unwrap();
    }
    let viewed = store.get(b"1").unwrap().unwrap();
    use_now(&store, "0");
    for number in 8..14 {
        put(&store, &number.to_string(), number, LEN).unwrap();
    }
    let left: Vec<_> = (0..14_u64).filter(|number| has(&store, &number.to_string())).collect();
    assert_eq!(left, [0, 1, 8, 9, 10, 11, 12, 13], "0 was used, 1 is viewed");
    assert_eq!(contents::difference(1, &viewed), None);
    drop(viewed);
    // Enough for all but one of them, one object or many.
    put(&store, "large", 50, 7 * LEN).unwrap();
    assert_eq!(store.list(b"").unwrap().len(), 2);
    assert!(store.evict(1).unwrap() > 0);
    assert!(store.evict(u64::MAX).unwrap() > 0);
    assert_eq!((store.list(b"").unwrap().len(), store.evict(u64::MAX).unwrap()), (0, 0));
    drop(store);
    wait_until_nothing_is_left(&pool);
}

/// Objects whose last use was in another rack were never evicted.
#[test]
fn objects_that_other_racks_use_make_room_too() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let store = store(&pool, 0, &cache(8 * MEMORY));
    let far = Store::open(Arc::new(pool.open(1)), NAME).unwrap().unwrap();
    for number in 0..8 {
        put(&store, &number.to_string(), number, LEN).unwrap();
    }
    for number in 0..8 {
        assert!(far.get(number.to_string().as_bytes()).unwrap().is_some());
        let used_ms = now_ms();
        wait_until("the next use is later, to a millisecond", TIMEOUT, || now_ms() > used_ms);
    }
    for number in 8..12 {
        put(&store, &number.to_string(), number, LEN).unwrap();
    }
    let left: Vec<_> = (0..12_u64).filter(|number| has(&store, &number.to_string())).collect();
    assert_eq!(left, [4, 5, 6, 7, 8, 9, 10, 11], "0 to 3 were used first");
}

#[test]
fn a_store_that_keeps_its_objects_refuses_more_and_says_the_way_out() {
    let pool = TestPool::small();
    let options = StoreOptions { capacity: Some(4 * MEMORY), ..StoreOptions::default() };
    let store = store(&pool, 0, &options);
    for number in 0..4 {
        put(&store, &number.to_string(), number, LEN).unwrap();
    }
    let told = put(&store, "more", 5, 1).unwrap_err();
    assert!(matches!(told, StoreError::StoreFull { used, .. } if used == 4 * MEMORY), "{told:?}");
    assert!(told.to_string().contains("raise the capacity"), "{told}");
    assert!(store.delete(b"2").unwrap());
    put(&store, "more", 5, LEN).unwrap();
    assert!(put(&store, "even more", 6, 1).is_err());
    // Another program raises the capacity.
    let other = Store::open(Arc::new(pool.open(0)), NAME).unwrap().unwrap();
    assert_eq!(other.options().unwrap(), options);
    let raised = StoreOptions { capacity: Some(6 * MEMORY), ..options };
    other.set_options(&raised).unwrap();
    wait_until("the new capacity counts", TIMEOUT, || put(&store, "even more", 6, LEN).is_ok());
    assert_eq!(store.options().unwrap(), raised);
    let told = put(&store, "never", 7, 7 * LEN).unwrap_err();
    assert!(matches!(told, StoreError::StoreFull { .. }), "{told:?}");
    for (capacity, time_to_live) in [(Some(0), None), (None, Some(Duration::ZERO))] {
        let told = store.set_options(&StoreOptions { capacity, time_to_live, ..options });
        assert!(matches!(told, Err(StoreError::Option { .. })), "{told:?}");
    }
    assert_eq!(store.list(b"").unwrap().len(), 5);
}

#[test]
fn replicas_make_room_and_their_objects_stay() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let options = StoreOptions { capacity: Some(40 * MEMORY), ..StoreOptions::default() };
    let own = store(&pool, 0, &options);
    for number in 0..40 {
        put(&own, &number.to_string(), number, LEN).unwrap();
    }
    let small = StoreOptions { capacity: Some(8 * MEMORY), ..options };
    own.set_options(&small).unwrap();
    let reader = store(&pool, 1, &small);
    let viewed = reader.get(b"3").unwrap().unwrap();
    for number in 0..40_u64 {
        let view = reader.get(number.to_string().as_bytes()).unwrap().unwrap();
        assert_eq!(contents::difference(number, &view), None, "{number}");
    }
    // All replicas would take 80 of 256 pages.
    wait_until("replicas have made room", TIMEOUT, || pool.status(1).free_frames > 200);
    let again = reader.get(b"3").unwrap().unwrap();
    assert_eq!(again.head(), viewed.head(), "a replica that is viewed stays");
    // A program that has brought nothing itself evicts the replicas of others too.
    assert!(store(&pool, 1, &small).evict(MEMORY).unwrap() >= MEMORY);
    // Objects of this store are kept, so there is room for no more of them than for replicas.
    let views: Vec<_> = (10..17).map(|n| reader.get(n.to_string().as_bytes()).unwrap()).collect();
    let told = put(&reader, "own", 1, LEN).unwrap_err();
    assert!(matches!(told, StoreError::StoreFull { .. }), "{told:?}");
    drop(views);
    put(&reader, "own", 1, LEN).unwrap();
    drop((viewed, again));
    for object in own.list(b"").unwrap() {
        assert!(own.delete(&object.id).unwrap());
    }
    drop((own, reader));
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_cache_without_a_capacity_takes_what_the_rack_has() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let options = StoreOptions { policy: EvictionPolicy::Lru, ..StoreOptions::default() };
    let stores = [store(&pool, 0, &options), store(&pool, 1, &options)];
    for number in 0..400 {
        let store = &stores[usize::try_from(number % 2).unwrap()];
        put(store, &number.to_string(), number, (number % 7) * PAGE + 100).unwrap();
        let other = &stores[usize::try_from((number + 1) % 2).unwrap()];
        let view = other.get(number.to_string().as_bytes()).unwrap().unwrap();
        assert_eq!(contents::difference(number, &view), None, "{number}");
    }
    let left = stores[0].list(b"").unwrap();
    assert!((20..400).contains(&left.len()), "{} objects", left.len());
    assert!(has(&stores[0], "399"));
    for object in left {
        assert!(stores[1].delete(&object.id).unwrap());
    }
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

/// Regression: the head of a replica was refused where each page of the rack was in use.
#[test]
fn a_get_evicts_replicas_for_the_head_of_another_one() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let [own, reader] = [0, 1].map(|rack| store(&pool, rack, &StoreOptions::default()));
    // Each fills its head, which takes a page.
    let len = PAGE - 300;
    // More than a program allocates ahead.
    let count = 60_u64;
    for number in 0..count {
        put(&own, &number.to_string(), number, len).unwrap();
    }
    drop(reader.get(b"0").unwrap().unwrap());
    let other = pool.open(1);
    let mut rest: Vec<_> = std::iter::from_fn(|| other.alloc_fixed(PAGE).ok()).collect();
    let room = rest.split_off(rest.len() - 5);
    room.into_iter().for_each(|addr| other.free(addr).unwrap());
    wait_until("there is some room", TIMEOUT, || pool.status(1).free_frames >= 5);
    for number in 0..count {
        let view = reader.get(number.to_string().as_bytes()).unwrap().unwrap();
        assert_eq!(contents::difference(number, &view), None, "{number}");
    }
    rest.into_iter().for_each(|addr| other.free(addr).unwrap());
}

#[test]
fn an_object_that_another_rack_uses_is_not_evicted_before_one_that_nobody_uses() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = store(&pool, 0, &cache(4 * MEMORY));
    for number in 0..4 {
        put(&own, &number.to_string(), number, LEN).unwrap();
    }
    let far = store(&pool, 1, &cache(4 * MEMORY));
    let view = far.get(b"0").unwrap().unwrap();
    for number in 4..7 {
        put(&own, &number.to_string(), number, LEN).unwrap();
    }
    let left: Vec<_> = (0..7_u64).filter(|number| has(&own, &number.to_string())).collect();
    assert_eq!(left, [0, 4, 5, 6]);
    assert_eq!(contents::difference(0, &view), None);
}

#[test]
fn objects_end_when_their_time_is_over() {
    const LIVE: Duration = Duration::from_millis(1500);
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let options = StoreOptions { time_to_live: Some(LIVE), ..StoreOptions::default() };
    let stores = [store(&pool, 0, &options), store(&pool, 1, &options)];
    let began = Instant::now();
    put(&stores[0], "key", 1, LEN).unwrap();
    put(&stores[0], "other", 2, LEN).unwrap();
    let view = stores[1].get(b"key").unwrap().unwrap();
    assert!(matches!(put(&stores[1], "key", 3, LEN), Err(StoreError::Exists)));
    assert!(began.elapsed() < LIVE, "the machine is too slow for this test");
    wait_until("it has expired", TIMEOUT, || !has(&stores[0], "key") && !has(&stores[0], "other"));
    assert!(began.elapsed() >= LIVE);
    for store in &stores {
        assert!(store.get(b"key").unwrap().is_none() && store.stat(b"key").unwrap().is_none());
        assert_eq!(store.list(b"").unwrap(), []);
    }
    put(&stores[1], "key", 3, LEN).unwrap();
    let new = stores[0].get(b"key").unwrap().unwrap();
    assert_eq!(contents::difference(3, &new), None);
    assert_eq!(contents::difference(1, &view), None, "the view of the old one stays");
    wait_until("it has expired too", TIMEOUT, || !has(&stores[0], "key"));
    assert!(!stores[0].delete(b"key").unwrap(), "there is none");
    drop((view, new, stores));
    // A program that lists the store for the first time sweeps its rack.
    for rack in [0, 1] {
        assert_eq!(store(&pool, rack, &options).list(b"").unwrap(), []);
    }
    wait_until_nothing_is_left(&pool);
}

#[test]
fn programs_killed_while_they_evict_leak_nothing() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    // Each program may have an object of 128 KiB and a view of another.
    let options = cache(1 << 20);
    drop(store(&pool, 0, &options));
    for round in 0..10 {
        let mut clients = [0, 1, 0].map(|rack| {
            let mut client = pool.client(rack, &["objects", NAME]);
            assert_eq!(client.ask("churn shared"), "ok");
            client
        });
        for client in &mut clients {
            client.wait_for_lines(10 + 5 * round);
        }
        clients.iter_mut().for_each(TestClient::kill);
    }
    let own = store(&pool, 0, &options);
    for object in own.list(b"").unwrap() {
        own.get(&object.id).unwrap().unwrap().verify().unwrap();
        assert!(own.delete(&object.id).unwrap());
    }
    drop(own);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn waits_end_with_enough_objects_or_with_the_time() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let options = StoreOptions::default();
    let stores = [store(&pool, 0, &options), store(&pool, 1, &options)];
    let ids: [&[u8]; 4] = [b"0", b"1", b"2", b"3"];
    let none = stores[0].wait(&ids, 1, Duration::ZERO).unwrap();
    assert_eq!(none, [false; 4]);
    assert_eq!(stores[0].wait(&ids, 0, Duration::MAX).unwrap(), [false; 4]);
    assert_eq!(stores[0].wait(&[], 5, Duration::MAX).unwrap(), []);
    let began = Instant::now();
    let limit = Duration::from_millis(50);
    assert_eq!(stores[1].wait(&ids, 1, limit).unwrap(), [false; 4]);
    assert!(began.elapsed() >= limit);
    thread::scope(|scope| {
        let waiting = [0, 1].map(|rack| {
            let store = &stores[rack];
            scope.spawn(move || store.wait(&ids, 2, Duration::MAX).unwrap())
        });
        let all = scope.spawn(|| stores[1].wait(&ids, usize::MAX, Duration::MAX).unwrap());
        put(&stores[0], "2", 2, LEN).unwrap();
        assert_eq!(stores[1].wait(&ids, 2, limit).unwrap(), [false, false, true, false]);
        assert!(waiting.iter().all(|thread| !thread.is_finished()), "one is not two");
        put(&stores[1], "1", 1, 10).unwrap();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), [false, true, true, false]);
        }
        put(&stores[1], "0", 0, 10).unwrap();
        put(&stores[0], "3", 3, 10).unwrap();
        assert_eq!(all.join().unwrap(), [true; 4]);
    });
    let told = stores[0].wait(&[b"0", b""], 2, Duration::ZERO);
    assert!(matches!(told, Err(StoreError::IdLength { .. })), "{told:?}");
    assert_eq!(stores[1].fetch(&[b"2", b"none"]).unwrap(), [true, false]);
    let replica = stores[1].stat(b"2").unwrap().unwrap();
    assert_eq!(replica.replicas.len(), 1, "it was brought into the rack");
    let many = stores[1].get_many(&[b"2", b"none", b"3"]).unwrap();
    assert_eq!(many.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(contents::difference(2, many[0].as_ref().unwrap()), None);
}
