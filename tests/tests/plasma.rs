//! The service that speaks Plasma's protocol: kills of it and of its clients, two racks, and bytes
//! that no client sends.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::io::Read;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_plasma::protocol::{MessageKind, ObjectId, PlasmaError, Reply, Request, frame};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::TestClient;
use rackpool_tests::contents;
use rackpool_tests::plasma::{PlasmaClient, PlasmaService, id, notification};
use rackpool_tests::pool::{PAGE, TestPool};

const CAPACITY: u64 = 4 << 20;
const ONE: ObjectId = id(1);
const TWO: ObjectId = id(2);
const THREE: ObjectId = id(3);

/// An object that takes pages of its own.
fn large(tag: u64) -> Vec<u8> {
    contents::of(tag, usize::try_from(3 * PAGE + 100).unwrap())
}

#[test]
fn sealed_objects_outlive_a_kill_of_the_service_and_unsealed_ones_are_freed() {
    let pool = TestPool::small();
    let mut service = PlasmaService::start(&pool, 0, CAPACITY);
    let mut client = service.client();
    let small = contents::of(1, 100);
    client.put(ONE, &small);
    client.put(TWO, &large(2));
    let place = client.create(THREE, CAPACITY / 2).unwrap();
    client.write(place, &large(3));
    service.kill();
    assert!(client.try_ask(&Request::Contains { id: ONE }).is_err());
    // The heads of the two sealed objects, and of no other.
    wait_until("the unsealed object is freed", TIMEOUT, || census::fixed(&pool).len() == 2);

    service.restart();
    let mut client = service.client();
    assert!(!client.contains(THREE));
    assert_eq!(client.get(ONE, 0), Some(small));
    assert_eq!(client.get(TWO, 0), Some(large(2)));
    assert_eq!(client.create(TWO, 1), Err(PlasmaError::ObjectExists));
    // The successor knows which objects count, and evicts them when they are released.
    assert_eq!(client.create(THREE, CAPACITY), Err(PlasmaError::OutOfMemory));
    for id in [TWO, ONE] {
        client.tell(&Request::Release { id }).unwrap();
    }
    let mut evicted = client.subscribe().unwrap();
    let replayed: Vec<_> = (0..2).map(|_| notification(&mut evicted).unwrap().id).collect();
    assert_eq!(replayed, [ONE, TWO]);
    client.create(THREE, CAPACITY).unwrap();
    for id in [TWO, ONE] {
        let told = notification(&mut evicted).unwrap();
        assert_eq!((told.id, told.is_deletion), (id, true));
    }
}

#[test]
fn a_killed_client_s_unsealed_objects_are_freed_and_its_references_dropped() {
    let pool = TestPool::small();
    let service = PlasmaService::start(&pool, 0, CAPACITY);
    let mut client = service.client();
    client.put(TWO, &large(2));
    client.tell(&Request::Release { id: TWO }).unwrap();
    let socket = service.socket.display().to_string();
    let mut other = TestClient::start(pool.dir(), 0, &["plasma", &socket]);
    let bytes = CAPACITY - large(2).len() as u64;
    assert_eq!(other.ask(&format!("create 1 {bytes}")), "true");
    assert_eq!(other.ask("get 2"), format!("{:?}", Some(large(2).len())));
    assert_eq!(client.evict(1), 0);
    assert_eq!(client.create(ONE, 1), Err(PlasmaError::ObjectExists));
    assert_eq!(client.create(THREE, 1), Err(PlasmaError::OutOfMemory));
    other.kill();
    let mut evicted = 0;
    wait_until("the reference is dropped", TIMEOUT, || {
        evicted += client.evict(1);
        evicted > 0
    });
    assert_eq!(evicted, large(2).len() as u64);
    client.create(ONE, CAPACITY).unwrap();
    drop((client, service));
    wait_until("nothing is left", TIMEOUT, || census::fixed(&pool).is_empty());
}

#[test]
fn a_client_that_waits_gets_what_a_client_of_another_rack_seals() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let services = [0, 1].map(|rack| PlasmaService::start(&pool, rack, CAPACITY));
    let [mut here, mut there] = [&services[0], &services[1]].map(PlasmaService::client);
    here.put(ONE, &large(1));
    assert_eq!(there.get(ONE, 10_000), Some(large(1)));
    let waiting = thread::spawn(move || (there.get(TWO, -1), there));
    here.put(TWO, &large(2));
    let (got, mut there) = waiting.join().unwrap();
    assert_eq!(got, Some(large(2)));
    // The other rack's objects are guests: they are not evicted here.
    for id in [ONE, TWO] {
        there.tell(&Request::Release { id }).unwrap();
    }
    assert_eq!(there.evict(CAPACITY), 0);
    assert!(here.contains(ONE));
}

#[test]
fn bytes_that_no_client_sends_end_that_connection_alone() {
    let pool = TestPool::small();
    let service = PlasmaService::start(&pool, 0, CAPACITY);
    let mut client = service.client();
    let place = client.create(ONE, 10).unwrap();
    let abort = Request::Abort { id: ONE }.encode().unwrap();
    let words = |words: [i64; 3]| words.map(i64::to_le_bytes).concat();
    let unknown = MessageKind::DataRequest.code();
    for bytes in [
        words([1, 0, 0]),
        words([0, 99, 0]),
        words([0, 1, i64::MAX]),
        words([0, 1, -1]),
        frame::encode(MessageKind::CreateRequest.code(), &[0xff; 100]),
        frame::encode(MessageKind::GetRequest.code(), &[]),
        frame::encode(unknown, &[0; 8]),
        // Of the other client's object.
        abort,
        // A byte without a descriptor.
        [Request::Subscribe.encode().unwrap(), vec![0]].concat(),
    ] {
        let mut other = PlasmaClient::connect(&service.socket).unwrap();
        other.send(&bytes).unwrap();
        assert!(other.reply().is_err(), "{bytes:?}");
    }
    client.write(place, &[7; 10]);
    assert_eq!(client.seal(ONE), PlasmaError::Ok);
    assert_eq!(client.get(ONE, 0), Some(vec![7; 10]));
}

#[test]
fn a_service_without_a_pool_has_its_own_and_leaves_nothing() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = folder.path().display().to_string();
    let socket = folder.path().join("plasma.sock");
    let mut service = PlasmaService::start_with(socket, CAPACITY, &["-d", &dir]);
    let mut client = service.client();
    client.put(ONE, &large(1));
    assert_eq!(client.get(ONE, 0), Some(large(1)));
    let capacity = client.ask(&Request::Connect);
    assert_eq!(capacity, Reply::Connect { capacity: CAPACITY });
    let process = Pid::from_raw(i32::try_from(service.process().id()).unwrap());
    kill(process, Signal::SIGTERM).unwrap();
    assert!(service.process().wait().unwrap().success());
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_subscriber_that_goes_away_disturbs_nobody() {
    let pool = TestPool::small();
    let service = PlasmaService::start(&pool, 0, CAPACITY);
    let mut client = service.client();
    let mut told = client.subscribe().unwrap();
    client.put(ONE, &[1; 10]);
    assert_eq!(notification(&mut told).unwrap().data, 10);
    drop(told);
    client.put(TWO, &[1; 10]);
    let mut told = client.subscribe().unwrap();
    let replayed: Vec<_> = (0..2).map(|_| notification(&mut told).unwrap().id).collect();
    assert_eq!(replayed, [ONE, TWO]);
    drop(service);
    assert_eq!(told.read(&mut [0]).unwrap(), 0);
}
