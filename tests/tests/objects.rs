//! The object store: objects of any size in both racks, and kills of their creators and readers.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use rackpool_client::RackId;
use rackpool_objects::{CreateOptions, Store, StoreError, StoreEvent, Subscription};
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::TestClient;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const NAME: &str = "objects";

fn store(pool: &TestPool, rack: u16) -> Store {
    Store::open_or_create(Arc::new(pool.open(rack)), NAME).unwrap()
}

fn plain() -> CreateOptions<'static> {
    CreateOptions::default()
}

fn bytes(tag: u64, len: u64) -> Vec<u8> {
    contents::of(tag, usize::try_from(len).unwrap())
}

/// Waits until nothing of any object is left. No program may have the pool open.
fn wait_until_nothing_is_left(pool: &TestPool) {
    if try_wait_until(TIMEOUT, || census::fixed(pool).is_empty()) {
        return;
    }
    let reader = pool.open(0);
    for (rack, addr) in census::fixed(pool) {
        let mut head = [0; 128];
        let read = reader.read(addr, &mut head);
        eprintln!("{rack}, {addr}: {read:?} {}", head.escape_ascii());
    }
    panic!("memory of objects is left: {} are retired", census::retired(pool));
}

#[test]
fn objects_of_any_size_are_the_same_in_both_racks() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stores = [store(&pool, 0), store(&pool, 1)];
    // The last one is put past the caches.
    let sizes = [0, 1, 64, 4096, PAGE - 200, PAGE, PAGE + 1, 5 * PAGE + 7, (4 << 20) + 7];
    for (tag, size) in (0..).zip(sizes) {
        for creator in [0, 1] {
            let id = format!("{size}-{creator}");
            let metadata = bytes(tag + 100, size % 11);
            let options = CreateOptions { metadata: &metadata, layout_tag: tag, ..plain() };
            let expected = bytes(tag, size);
            stores[creator].put(id.as_bytes(), &expected, &options).unwrap();
            for reader in &stores {
                // The second get of the other rack finds the replica.
                for _ in 0..2 {
                    let view = reader.get_as(id.as_bytes(), tag).unwrap().unwrap();
                    assert!(view[..] == expected, "{id}");
                    assert_eq!((view.metadata(), view.layout_tag()), (&metadata[..], tag));
                    view.verify().unwrap();
                }
                let stat = reader.stat(id.as_bytes()).unwrap().unwrap();
                assert_eq!((stat.info.bytes, usize::from(stat.info.rack.0)), (size, creator));
            }
            let other = RackId(u16::try_from(1 - creator).unwrap());
            let stat = stores[0].stat(id.as_bytes()).unwrap().unwrap();
            assert_eq!(stat.replicas, [other]);
        }
    }
    assert_eq!(stores[1].list(b"").unwrap().len(), 2 * sizes.len());
    assert_eq!(stores[0].list(b"64-").unwrap().len(), 2);
    // Each is deleted by the rack that did not create it.
    for size in sizes {
        for (deleter, store) in stores.iter().enumerate() {
            let id = format!("{size}-{}", 1 - deleter);
            assert!(store.delete(id.as_bytes()).unwrap());
            assert!(!store.delete(id.as_bytes()).unwrap());
            for store in &stores {
                assert!(store.get(id.as_bytes()).unwrap().is_none());
                assert!(!store.contains(id.as_bytes()).unwrap());
            }
        }
    }
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_replica_is_read_again_without_a_transfer() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stores = [store(&pool, 0), store(&pool, 1)];
    stores[0].put(b"far", &bytes(3, 3 * PAGE), &plain()).unwrap();
    let first = stores[1].get(b"far").unwrap().unwrap();
    let second = stores[1].get(b"far").unwrap().unwrap();
    assert_eq!(first.head(), second.head());
    // So does another program of the rack.
    let other = store(&pool, 1).get(b"far").unwrap().unwrap();
    assert_eq!(other.head(), first.head());
    let stat = stores[0].stat(b"far").unwrap().unwrap();
    assert_ne!(stat.addr, first.head());
    assert_eq!(stat.replicas, [RackId(1)]);
}

#[test]
fn programs_of_a_rack_that_get_an_object_at_the_same_time_share_one_transfer() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = store(&pool, 0);
    // Many more pieces than searches of the four programs.
    let len = 100 * PAGE;
    for id in ["once", "shared"] {
        own.put(id.as_bytes(), &bytes(6, len), &plain()).unwrap();
    }
    let transfers = |work: &dyn Fn()| {
        let before = pool.status(1).remote_operations;
        work();
        pool.status(1).remote_operations - before
    };
    let stores = [0; 4].map(|_| store(&pool, 1));
    let once = transfers(&|| drop(stores[0].get(b"once").unwrap().unwrap()));
    let shared = transfers(&|| {
        std::thread::scope(|scope| {
            let gets = stores.each_ref().map(|store| scope.spawn(|| store.get(b"shared").unwrap()));
            let views = gets.map(|get| get.join().unwrap().unwrap());
            assert!(views.iter().all(|view| view[..] == bytes(6, len)));
            assert!(views.iter().all(|view| view.head() == views[0].head()));
        });
    });
    assert!(once >= 100, "{once} operations for 100 pages");
    assert!(shared < 2 * once, "{shared} operations by four programs, {once} by one");
}

/// What a subscription tells until it finds nothing for a moment: `+` and `-` before the ids.
fn told(subscription: &mut Subscription) -> Vec<String> {
    let next = || subscription.next(Duration::from_millis(20)).unwrap();
    let named = |sign, id: &[u8]| format!("{sign}{}", id.escape_ascii());
    std::iter::from_fn(next)
        .map(|event| match event {
            StoreEvent::Sealed(info) => named('+', &info.id),
            StoreEvent::Deleted(id) => named('-', &id),
        })
        .collect()
}

#[test]
fn a_subscriber_is_told_of_what_is_there_and_of_each_change() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let (own, other) = (store(&pool, 0), store(&pool, 1));
    own.put(b"x/1", &[1], &plain()).unwrap();
    own.put(b"y", &[1], &plain()).unwrap();
    let (mut some, mut all) = (other.subscribe(b"x/"), other.subscribe(b""));
    assert_eq!(
        (told(&mut some), told(&mut all)),
        (vec!["+x/1".into()], vec!["+x/1".into(), "+y".into()])
    );
    let unsealed = own.create(b"x/0", 10, &plain()).unwrap();
    assert!(told(&mut some).is_empty(), "it is not sealed");
    unsealed.seal().unwrap();
    other.put(b"x/2", &[2], &plain()).unwrap();
    assert_eq!(told(&mut some), ["+x/0", "+x/2"]);
    // Deleted and made again: both are told, although the id was there at each look.
    assert!(own.delete(b"x/1").unwrap() && own.delete(b"y").unwrap());
    own.put(b"x/1", &[3], &plain()).unwrap();
    assert_eq!(told(&mut some), ["-x/1", "+x/1"]);
    assert_eq!(told(&mut all), ["-x/1", "-y", "+x/0", "+x/1", "+x/2"]);
    assert!(told(&mut some).is_empty());
    // What a program has sealed stays when it is killed, and the rest was never there.
    let mut client = pool.client(0, &["objects", NAME]);
    for id in ["x/3", "x/4"] {
        assert_eq!(client.ask(&format!("create {id} 100 7")), "ok");
    }
    assert_eq!(client.ask("seal x/3"), "ok");
    client.kill();
    assert_eq!(told(&mut some), ["+x/3"]);
}

#[test]
fn a_get_goes_on_when_the_program_that_brings_the_object_is_killed() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let (own, reader) = (store(&pool, 0), store(&pool, 1));
    for round in 0..10 {
        own.put(b"far", &bytes(round, 40 * PAGE), &plain()).unwrap();
        let mut first = pool.client(1, &["objects", NAME]);
        let before = pool.status(1).remote_operations;
        first.say(&format!("get far {round}"));
        wait_until("it brings the object", TIMEOUT, || {
            pool.status(1).remote_operations > before + 10
        });
        first.kill();
        let view = reader.get(b"far").unwrap().unwrap();
        assert!(view[..] == bytes(round, 40 * PAGE), "round {round}");
        assert!(own.delete(b"far").unwrap());
    }
    drop((own, reader));
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_view_keeps_its_bytes_when_the_object_is_deleted_and_made_again() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stores = [store(&pool, 0), store(&pool, 1)];
    let mut views = Vec::new();
    for tag in 0..10 {
        stores[0].put(b"key", &bytes(tag, 2 * PAGE), &plain()).unwrap();
        for store in &stores {
            views.push((tag, store.get(b"key").unwrap().unwrap()));
        }
        let deleter = if tag % 2 == 0 { &stores[0] } else { &stores[1] };
        assert!(deleter.delete(b"key").unwrap());
    }
    for (tag, view) in &views {
        assert!(view[..] == bytes(*tag, 2 * PAGE), "{tag}");
        view.verify().unwrap();
    }
}

#[test]
fn wrong_calls_are_refused_and_keep_nothing() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stores = [store(&pool, 0), store(&pool, 1)];
    for id in [&[][..], &[7; 65]] {
        let told = stores[0].put(id, b"bytes", &plain());
        assert!(matches!(told, Err(StoreError::IdLength { .. })), "{told:?}");
        assert!(matches!(stores[0].get(id), Err(StoreError::IdLength { .. })));
        assert!(matches!(stores[0].delete(id), Err(StoreError::IdLength { .. })));
    }
    let first = stores[0].create(b"twice", 64, &plain()).unwrap();
    let second = stores[1].create(b"twice", 3 * PAGE, &plain()).unwrap();
    assert!(stores[0].get(b"twice").unwrap().is_none(), "it is not sealed");
    first.seal().unwrap();
    assert!(matches!(second.seal(), Err(StoreError::Exists)));
    assert!(matches!(stores[1].create(b"twice", 1, &plain()), Err(StoreError::Exists)));
    assert_eq!(stores[1].get(b"twice").unwrap().unwrap().len(), 64);
    let told = stores[1].get_as(b"twice", 5);
    assert!(matches!(told, Err(StoreError::LayoutTag { expected: 5, found: 0 })), "{told:?}");
    drop(stores[0].create(b"aborted", 5 * PAGE, &plain()).unwrap());
    let told = stores[0].create(b"huge", u64::MAX, &plain());
    assert!(matches!(told, Err(StoreError::TooLarge { .. })), "{told:?}");
    let told = stores[0].create(b"large", 256 * PAGE, &plain());
    assert!(matches!(told, Err(StoreError::Alloc(_))), "{told:?}");
    assert!(stores[0].delete(b"twice").unwrap());
    let other = pool.open(0).alloc(64).unwrap();
    pool.open(0).set_root("no store", None, Some(other)).unwrap();
    let told = Store::open(Arc::new(pool.open(0)), "no store");
    assert!(matches!(told, Err(StoreError::NotAStore { .. })), "{told:?}");
    assert!(Store::open(Arc::new(pool.open(0)), "none").unwrap().is_none());
    pool.open(0).free(other).unwrap();
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_full_rack_says_so_and_has_room_after_deletes() {
    let pool = TestPool::small();
    let store = store(&pool, 0);
    let mut count = 0_u32;
    let told = loop {
        match store.put(&count.to_le_bytes(), &bytes(count.into(), 3 * PAGE), &plain()) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(told, StoreError::Alloc(_)), "{told:?}");
    assert!(count > 50, "{count}");
    for number in (0..count).step_by(2) {
        assert!(store.delete(&number.to_le_bytes()).unwrap());
    }
    // The room lies in pieces of three pages.
    let large = bytes(7, 20 * PAGE);
    wait_until("there is room", TIMEOUT, || store.put(b"large", &large, &plain()).is_ok());
    let view = store.get(b"large").unwrap().unwrap();
    assert!(store.stat(b"large").unwrap().unwrap().pieces > 1 && view.frames_offset().is_none());
    assert!(view[..] == large);
    view.verify().unwrap();
    for number in (1..count).step_by(2) {
        let view = store.get(&number.to_le_bytes()).unwrap().unwrap();
        assert!(view[..] == bytes(number.into(), 3 * PAGE), "{number}");
    }
}

#[test]
fn objects_of_a_pool_without_room_can_be_deleted() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stores = [store(&pool, 0), store(&pool, 1)];
    let mut ids = Vec::new();
    for (rack, store) in stores.iter().enumerate() {
        for (size, number) in [3 * PAGE, PAGE / 2, 64].into_iter().zip(0..) {
            let count = (0..20_000).take_while(|count| {
                let id = format!("{rack}-{number}-{count}");
                let is_stored = store.put(id.as_bytes(), &bytes(1, size), &plain()).is_ok();
                ids.extend(is_stored.then_some(id));
                is_stored
            });
            // The largest may have left no page but the last one.
            assert!(count.count() > 0 || number > 0);
        }
    }
    // No rack has a page left but the last one, which small objects may have.
    wait_until("both racks are full", TIMEOUT, || {
        (0..2).all(|rack| pool.status(rack).free_frames <= 1)
    });
    for (id, store) in ids.iter().zip(stores.iter().cycle()) {
        assert!(store.delete(id.as_bytes()).unwrap(), "{id}");
    }
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_delete_needs_every_rack_with_a_replica() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = store(&pool, 0);
    own.put(b"key", &bytes(3, 2 * PAGE), &plain()).unwrap();
    let mut reader = pool.client(1, &["objects", NAME]);
    assert_eq!(reader.ask("get key 3"), "ok");
    pool.kill_daemon(1);
    let told = own.delete(b"key");
    assert!(told.is_err(), "{told:?}");
    assert_eq!(reader.ask("check key 3"), "ok");
    assert!(own.get(b"key").unwrap().unwrap()[..] == bytes(3, 2 * PAGE));
    pool.restart_daemon(1);
    pool.wait_until_racks_serve();
    assert_eq!(reader.ask("get key 3"), "ok");
    assert!(own.delete(b"key").unwrap());
    assert_eq!(reader.ask("get key 3"), "none");
    assert_eq!(reader.ask("check key 3"), "ok");
}

#[test]
fn what_a_killed_creator_has_not_sealed_comes_back() {
    let pool = TestPool::small();
    let own = store(&pool, 0);
    let mut creator = pool.client(0, &["objects", NAME]);
    for number in 0..20 {
        let request = format!("create {number} {} {number}", number * PAGE / 2);
        assert_eq!(creator.ask(&request), "ok");
    }
    assert_eq!(creator.ask("seal 3"), "ok");
    creator.kill();
    for number in 0..20_u64 {
        let found = own.get(number.to_string().as_bytes()).unwrap();
        match (number, found) {
            (3, Some(view)) => assert!(view[..] == bytes(3, 3 * PAGE / 2)),
            (3, None) => panic!("a sealed object is gone"),
            (_, found) => assert!(found.is_none(), "{number} was not sealed"),
        }
    }
    assert!(own.delete(b"3").unwrap());
    drop(own);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_killed_reader_keeps_nothing_and_a_living_one_its_bytes() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = store(&pool, 0);
    own.put(b"read", &bytes(5, 20 * PAGE), &plain()).unwrap();
    let mut readers = [0, 1].map(|rack| pool.client(rack, &["objects", NAME]));
    for reader in &mut readers {
        assert_eq!(reader.ask("get read 5"), "ok");
    }
    assert!(own.delete(b"read").unwrap());
    for rack in [0, 1] {
        pool.kill_daemon(rack);
        pool.restart_daemon(rack);
    }
    pool.wait_until_racks_serve();
    // All other memory is written.
    let pages: Vec<_> = std::iter::from_fn(|| own.pool().alloc(PAGE).ok()).take(400).collect();
    for page in &pages {
        own.pool().write(*page, &bytes(9, PAGE)).unwrap();
    }
    for reader in &mut readers {
        assert_eq!(reader.ask("get read 5"), "none");
        assert_eq!(reader.ask("check read 5"), "ok");
    }
    pages.iter().for_each(|page| own.pool().free(*page).unwrap());
    readers.into_iter().for_each(|mut reader| reader.kill());
    drop(own);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_store_counts_what_its_program_did() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let (own, other) = (store(&pool, 0), store(&pool, 1));
    own.put(b"id", &bytes(1, 1000), &plain()).unwrap();
    for reader in [&own, &other, &other] {
        assert!(reader.get(b"id").unwrap().is_some());
    }
    assert!(other.clone().get(b"none").unwrap().is_none());
    assert!(own.delete(b"id").unwrap() && !own.delete(b"id").unwrap());
    let (own, other) = (own.stats(), other.stats());
    assert_eq!((own.seals, own.sealed_bytes, own.local_gets, own.deletes), (1, 1000, 1, 1));
    assert_eq!((own.far_gets, own.transfers), (0, 0));
    assert_eq!((other.far_gets, other.local_gets, other.absent_gets), (2, 0, 1));
    assert_eq!((other.transfers, other.transferred_bytes), (1, 1000));
}

#[test]
fn programs_killed_at_any_time_leak_nothing() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    for round in 0..20 {
        let mut clients: Vec<_> = [0, 1, 0]
            .into_iter()
            .map(|rack| {
                let mut client = pool.client(rack, &["objects", NAME]);
                assert_eq!(client.ask("churn shared"), "ok");
                client
            })
            .collect();
        // Each is killed somewhere behind its last line.
        for client in &mut clients {
            client.wait_for_lines(2 + 3 * round);
        }
        clients.iter_mut().for_each(TestClient::kill);
    }
    let own = store(&pool, 0);
    for object in own.list(b"").unwrap() {
        let view = own.get(&object.id).unwrap().unwrap();
        view.verify().unwrap();
        assert!(own.delete(&object.id).unwrap());
    }
    assert_eq!(own.list(b"").unwrap(), []);
    drop(own);
    wait_until_nothing_is_left(&pool);
}
