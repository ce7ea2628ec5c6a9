//! Objects that several racks get at the same time: each rack reads the replica of the one before
//! it.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::{Arc, Barrier};
use std::thread;

use nix::sys::signal::Signal;
use rackpool_client::RackId;
use rackpool_objects::{CreateOptions, Store};
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::TestClient;
use rackpool_tests::contents;
use rackpool_tests::pool::{TestPool, wait_until_stopped};

const NAME: &str = "chain";
const LEN: u64 = 64 << 20;

fn store(pool: &TestPool, rack: u16) -> Store {
    Store::open_or_create(Arc::new(pool.open(rack)), NAME).unwrap()
}

/// A pool whose racks know each other, with the store of each rack. A card moves an object in a
/// quarter of a second.
fn racks(count: u16, memory: u64) -> (TestPool, Vec<Store>) {
    let pool = TestPool::with(|options| {
        options.racks = count;
        options.memory = memory;
        options.page_size = 1 << 20;
        options.bandwidth_gbps = 2.0;
    });
    let stores: Vec<Store> = (0..count).map(|rack| store(&pool, rack)).collect();
    for owner in &stores {
        put(owner, "small", 0, 100);
        for reader in &stores {
            wait_for("the racks meet", TIMEOUT, || reader.get(b"small").ok()?.map(drop));
        }
        assert!(owner.delete(b"small").unwrap());
    }
    (pool, stores)
}

fn put(store: &Store, id: &str, tag: u64, len: u64) {
    let bytes = contents::of(tag, usize::try_from(len).unwrap());
    store.put(id.as_bytes(), &bytes, &CreateOptions::default()).unwrap();
}

/// How many bytes of the object the replica of a rack has; 0 if there is none.
fn filled(store: &Store, id: &str, rack: u16) -> u64 {
    let replicas = store.explain(id.as_bytes()).unwrap().replicas;
    replicas.iter().find(|one| one.rack == RackId(rack)).map_or(0, |one| one.filled_bytes)
}

/// How many bytes the program has read of objects themselves instead of replicas.
fn from_home(store: &Store) -> u64 {
    store.stats().transferred_bytes - store.stats().chained_bytes
}

/// Gets the object in each of these racks at the same time, and checks its bytes.
#[track_caller]
fn get_at_once(stores: &[Store], id: &str, tag: u64) {
    let begin = Barrier::new(stores.len());
    thread::scope(|scope| {
        let gets: Vec<_> = stores
            .iter()
            .map(|store| {
                scope.spawn(|| {
                    begin.wait();
                    store.get(id.as_bytes()).unwrap().unwrap()
                })
            })
            .collect();
        for get in gets {
            assert_eq!(contents::difference(tag, &get.join().unwrap()), None);
        }
    });
}

/// Has a program of a rack get the object, and stops it while it brings the bytes.
fn stop_while_it_brings(pool: &TestPool, own: &Store, id: &str, rack: u16) -> TestClient {
    let mut client = pool.client(rack, &["objects", NAME]);
    client.say(&format!("get {id} 1"));
    wait_until("it brings the object", TIMEOUT, || filled(own, id, rack) > LEN / 8);
    client.signal(Signal::SIGSTOP);
    wait_until_stopped(client.id());
    let there = filled(own, id, rack);
    assert!(there < LEN, "the program was stopped too late");
    client
}

fn wait_until_nothing_is_left(pool: &TestPool) {
    wait_until("nothing of any object is left", TIMEOUT, || census::fixed(pool).is_empty());
}

#[test]
fn racks_that_get_an_object_at_the_same_time_form_a_chain() {
    let (pool, stores) = racks(5, LEN + (16 << 20));
    put(&stores[0], "far", 1, LEN);
    get_at_once(&stores[1..], "far", 1);
    let read: u64 = stores[1..].iter().map(from_home).sum();
    assert!((LEN..2 * LEN).contains(&read), "{read} B came from the object's own rack");
    // A rack that comes later reads the replica of the last one.
    assert!(stores[0].delete(b"far").unwrap());
    put(&stores[0], "again", 2, LEN);
    for store in &stores[1..3] {
        assert!(store.get(b"again").unwrap().is_some());
    }
    assert!(stores[2].stats().chained_bytes >= LEN);
    // An object of less than 4 MiB comes from its own rack.
    let before = stores[2].stats().chained_bytes;
    put(&stores[0], "short", 3, (4 << 20) - 1);
    for store in &stores[1..3] {
        assert!(store.get(b"short").unwrap().is_some());
    }
    assert_eq!(stores[2].stats().chained_bytes, before);
    ["again", "short"].iter().for_each(|id| assert!(stores[0].delete(id.as_bytes()).unwrap()));
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn the_others_go_on_when_the_program_before_them_stops_or_is_killed() {
    let (pool, stores) = racks(4, LEN + (16 << 20));
    for (id, is_killed) in [("stopped", false), ("killed", true)] {
        put(&stores[0], id, 1, LEN);
        let mut first = stop_while_it_brings(&pool, &stores[0], id, 1);
        if is_killed {
            first.kill();
        }
        let read = || stores[2..].iter().map(from_home).sum::<u64>();
        let (before, chained) = (read(), stores[2..].iter().map(|one| one.stats().chained_bytes));
        let chained: u64 = chained.sum();
        get_at_once(&stores[2..], id, 1);
        // What the first program has brought came from its replica, and the rest once from the
        // object's own rack: the two go on as a chain.
        let read = read() - before;
        assert!((1..=LEN).contains(&read), "{id}: {read} B came from the object's own rack");
        let now: u64 = stores[2..].iter().map(|one| one.stats().chained_bytes).sum();
        assert_eq!(now - chained + read, 2 * LEN);
        if !is_killed {
            // The program that was stopped goes on with what it has.
            first.signal(Signal::SIGCONT);
            assert_eq!(first.next_line(TIMEOUT).as_deref(), Some("ok"));
        }
        drop(first);
        assert!(stores[0].delete(id.as_bytes()).unwrap());
    }
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_get_goes_on_when_the_replica_before_it_is_evicted_or_deleted() {
    let (pool, stores) = racks(3, LEN + (16 << 20));
    let [own, first, second] = &stores[..] else { panic!("three racks") };
    for round in 0..6 {
        let (id, is_deleted) = (format!("far-{round}"), round % 2 == 1);
        put(own, &id, round, LEN);
        drop(first.get(id.as_bytes()).unwrap().unwrap());
        let chained = second.stats().chained_bytes;
        thread::scope(|scope| {
            let get = scope.spawn(|| second.get(id.as_bytes()).unwrap());
            wait_until("it brings the object", TIMEOUT, || filled(own, &id, 2) > LEN / 8);
            if is_deleted {
                assert!(own.delete(id.as_bytes()).unwrap());
            } else {
                assert!(first.evict(LEN).unwrap() >= LEN);
                // Its memory is used for something else at once.
                put(first, "other", 99, LEN);
            }
            let view = get.join().unwrap();
            assert!(is_deleted || view.is_some(), "the object is there");
            let differs = view.and_then(|view| contents::difference(round, &view));
            assert_eq!(differs, None, "round {round}");
        });
        if !is_deleted {
            assert!(second.stats().chained_bytes > chained, "it read the replica at first");
            assert!(first.delete(b"other").unwrap() && own.delete(id.as_bytes()).unwrap());
        }
    }
    drop(stores);
    wait_until_nothing_is_left(&pool);
}

#[test]
fn a_get_goes_on_when_the_rack_before_it_goes_away() {
    let (mut pool, stores) = racks(3, LEN + (16 << 20));
    put(&stores[0], "far", 1, LEN);
    drop(stores[1].get(b"far").unwrap().unwrap());
    thread::scope(|scope| {
        let get = scope.spawn(|| stores[2].get(b"far").unwrap().unwrap());
        wait_until("it brings the object", TIMEOUT, || filled(&stores[0], "far", 2) > LEN / 8);
        pool.kill_daemon(1);
        // It goes on when the lease of that rack has ended.
        wait_until("it is brought", TIMEOUT, || get.is_finished());
        assert_eq!(contents::difference(1, &get.join().unwrap()), None);
    });
    let chained = stores[2].stats().chained_bytes;
    assert!((1..LEN).contains(&chained), "{chained} B came from the replica");
}
