//! Objects that move to files of their rack when there is no room, and come back.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rackpool_admin::MetadataServer;
use rackpool_objects::{
    CastAgent, CreateOptions, EvictionPolicy, Store, StoreError, StoreEvent, StoreOptions,
};
use rackpool_testing::StopAtEnd;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const NAME: &str = "spilled";
const METADATA: &[u8] = b"more";
/// The length of most objects, without metadata: together they take two pages.
const LEN: u64 = 2 * PAGE - METADATA.len() as u64;
/// The memory of such an object with its head.
const MEMORY: u64 = 2 * PAGE + 256;

/// A pool whose racks have a folder for files, on a disk.
struct Spilling {
    pool: TestPool,
    disk: tempfile::TempDir,
}

impl Spilling {
    fn start() -> Self {
        let disk = tempfile::tempdir().unwrap();
        let dir = disk.path().to_str().unwrap().to_owned();
        let pool = TestPool::with(|options| options.daemon_arguments.push(("--spill-dir", dir)));
        pool.wait_until_racks_meet();
        Self { pool, disk }
    }

    fn store(&self, rack: u16) -> Store {
        store(&self.pool, rack, NAME)
    }

    /// The files of objects in a rack.
    fn files(&self, rack: u16) -> Vec<PathBuf> {
        let in_folder = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
        let memories = in_folder(self.disk.path().join(format!("rack-{rack}")));
        let stores = memories.flat_map(|memory| in_folder(memory.path()));
        stores.flat_map(|store| in_folder(store.path())).map(|file| file.path()).collect()
    }

    fn wait_until_nothing_is_left(&self) {
        census::wait_until_no_object_is_left(&self.pool);
        assert_eq!(self.files(0), Vec::<PathBuf>::new());
    }
}

fn store(pool: &TestPool, rack: u16, name: &str) -> Store {
    let policy = EvictionPolicy::Spill;
    let options = StoreOptions { capacity: Some(8 * MEMORY), policy, ..StoreOptions::default() };
    Store::open_or_create_with(Arc::new(pool.open(rack)), name, &options).unwrap()
}

fn put(store: &Store, number: u64) -> Result<(), StoreError> {
    let bytes = contents::of(number, usize::try_from(LEN).unwrap());
    let options = CreateOptions { metadata: METADATA, ..CreateOptions::default() };
    store.put(number.to_string().as_bytes(), &bytes, &options)
}

/// Stores as many objects as the store's capacity has room for, and moves all to files.
fn spill(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        put(store, number).unwrap();
    }
    assert!(store.evict(u64::MAX).unwrap() > 0);
    assert!(store.list(b"").unwrap().iter().all(|object| object.is_spilled));
}

#[track_caller]
fn check(store: &Store, number: u64) {
    let view = store.get(number.to_string().as_bytes()).unwrap().unwrap();
    assert_eq!(contents::difference(number, &view), None);
    assert_eq!(view.metadata(), METADATA);
    view.verify().unwrap();
}

#[test]
fn objects_that_make_room_move_to_files_and_come_back() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    for number in 0..14 {
        put(&store, number).unwrap();
    }
    let in_files =
        |store: &Store| store.list(b"").unwrap().iter().filter(|object| object.is_spilled).count();
    assert_eq!((store.list(b"").unwrap().len(), in_files(&store)), (14, 6));
    assert_eq!(spilling.files(0).len(), 6);
    let usage = store.usage(0, rackpool_objects::UsageOrder::Size).unwrap();
    let rack = usage.racks[&store.pool().rack()];
    assert_eq!((rack.objects, rack.spilled, rack.spilled_bytes), (14, 6, 12 * PAGE));
    assert_eq!(rack.object_bytes, 8 * MEMORY);
    // Each get moves others, of which most have a file already.
    for _ in 0..2 {
        for number in 0..14 {
            assert!(store.contains(number.to_string().as_bytes()).unwrap());
            check(&store, number);
        }
    }
    assert_eq!(spilling.files(0).len(), 14);
    let stats = store.stats();
    assert_eq!(stats.spilled_bytes, stats.spills * 2 * PAGE);
    assert_eq!(stats.restores, stats.spills - 6);
    for number in 0..14 {
        assert!(store.delete(number.to_string().as_bytes()).unwrap());
        assert!(!store.contains(number.to_string().as_bytes()).unwrap());
    }
    drop(store);
    spilling.wait_until_nothing_is_left();
}

/// A stub needs memory too.
#[test]
fn a_full_rack_has_room_on_its_disk() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    store.set_options(&StoreOptions { capacity: None, ..store.options().unwrap() }).unwrap();
    let options = spilling.pool.cluster.options();
    let number = 3 * options.memory / (2 * PAGE);
    (0..number).for_each(|number| put(&store, number).unwrap());
    assert_eq!(store.list(b"").unwrap().len() as u64, number);
    (0..number).for_each(|number| check(&store, number));
    // With room for many small ones too.
    for small in 0..2000_u64 {
        store.put(&small.to_le_bytes(), b"small", &CreateOptions::default()).unwrap();
    }
    assert_eq!(store.list(b"").unwrap().len() as u64, number + 2000);
}

#[test]
fn a_viewed_object_stays_in_memory() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    for number in 0..4 {
        put(&store, number).unwrap();
    }
    let view = store.get(b"1").unwrap().unwrap();
    assert_eq!(store.evict(u64::MAX).unwrap(), 3 * MEMORY);
    assert!(!store.stat(b"1").unwrap().unwrap().info.is_spilled);
    assert_eq!(contents::difference(1, &view), None);
    let stat = store.stat(b"2").unwrap().unwrap();
    assert_eq!((stat.info.is_spilled, stat.pieces, stat.last_use_ms), (true, 0, 0));
    let known = store.explain(b"2").unwrap().object.unwrap();
    assert_eq!((known.memory_bytes, known.extents.len(), known.unread), (0, 0, None));
}

#[test]
fn programs_that_want_the_same_object_bring_it_back_once() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    spill(&store, 0..6);
    let restores = store.stats().restores;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..6).for_each(|number| check(&store, number)));
        }
    });
    assert_eq!(store.stats().restores, restores + 6);
}

#[test]
fn the_agent_brings_objects_back_for_other_racks() {
    let spilling = Spilling::start();
    let (near, far) = (spilling.store(0), spilling.store(1));
    spill(&near, 0..6);
    let told = far.get(b"0").unwrap_err();
    assert!(matches!(told, StoreError::NotRestored { rack, .. } if rack == near.pool().rack()));
    assert!(told.to_string().contains("rackpool agent"), "{told}");
    assert!(far.contains(b"0").unwrap());
    let agent = CastAgent::new(Arc::new(spilling.pool.open(0)));
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| agent.serve(&is_stopped, |_| ()));
        let stop = StopAtEnd(&is_stopped);
        wait_until("the agent serves", TIMEOUT, || {
            far.cast_racks().unwrap().contains(&near.pool().rack())
        });
        for number in 0..6 {
            check(&far, number);
        }
        // What the agent can't bring back is told with the reason.
        put(&near, 6).unwrap();
        near.evict(u64::MAX).unwrap();
        assert!(near.stat(b"6").unwrap().unwrap().info.is_spilled);
        spilling.files(0).iter().for_each(|file| fs::write(file, b"short").unwrap());
        let told = far.get(b"6").unwrap_err().to_string();
        assert!(told.contains("failed to fill whole buffer"), "{told}");
        drop(stop);
        served.join().unwrap().unwrap();
    });
}

#[test]
fn objects_move_to_a_rack_with_free_memory_before_they_move_to_files() {
    let spilling = Spilling::start();
    let (near, far) = (spilling.store(0), spilling.store(1));
    let agent = CastAgent::new(Arc::new(spilling.pool.open(1)));
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| agent.serve(&is_stopped, |_| ()));
        let stop = StopAtEnd(&is_stopped);
        wait_until("the agent serves", TIMEOUT, || !far.cast_racks().unwrap().is_empty());
        for number in 0..14 {
            put(&near, number).unwrap();
        }
        let far_rack = far.pool().rack();
        let moved = |store: &Store| {
            let objects = store.list(b"").unwrap();
            let of_far = objects.iter().filter(|object| object.rack == far_rack).count();
            (objects.len(), of_far, objects.iter().filter(|object| object.is_spilled).count())
        };
        // An agent that is kept from its core for long counts as silent.
        let (all, of_far, in_files) = moved(&near);
        assert_eq!((all, of_far + in_files), (14, 6));
        assert!(of_far >= 3, "{of_far} of 6 moved");
        let stats = near.stats();
        assert_eq!((stats.moves, stats.spills), (of_far as u64, in_files as u64));
        assert_eq!(stats.moved_bytes, stats.moves * 2 * PAGE);
        for number in 0..14_u64 {
            let id = number.to_string();
            if near.stat(id.as_bytes()).unwrap().unwrap().info.rack == far_rack {
                check(&far, number);
            }
        }
        // The capacity holds in the other rack too.
        for number in 14..30 {
            put(&near, number).unwrap();
        }
        let (all, of_far, in_files) = moved(&near);
        assert_eq!(all, 30);
        assert!(of_far <= 8 && in_files >= 14, "{of_far} and {in_files}");
        for store in [&near, &far] {
            // Those in files come back by a get in their rack only.
            let numbers = (0..30_u64).filter(|number| {
                let stat = store.stat(number.to_string().as_bytes()).unwrap().unwrap();
                !stat.info.is_spilled || stat.info.rack == store.pool().rack()
            });
            numbers.collect::<Vec<_>>().into_iter().for_each(|number| check(store, number));
        }
        for number in 0..30_u64 {
            assert!(near.delete(number.to_string().as_bytes()).unwrap());
        }
        drop(stop);
        served.join().unwrap().unwrap();
    });
    drop((near, far, agent));
    spilling.wait_until_nothing_is_left();
}

#[test]
fn an_agent_that_is_killed_while_it_takes_objects_loses_none() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    let agent = || {
        let mut command = Command::new(program("rackpool"));
        command.args(["agent", "--rack", "1", "--dir"]).arg(spilling.pool.dir());
        let mut agent = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(agent.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "serving rack 1\n");
        agent
    };
    // A kill while the board is made would leak its header.
    let mut first = agent();
    wait_until("the agent serves", TIMEOUT, || !store.cast_racks().unwrap().is_empty());
    first.kill().unwrap();
    first.wait().unwrap();
    let mut number = 0;
    for round in 0..12 {
        let mut agent = agent();
        let stored = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                for number in number..number + 12 {
                    put(&store, number).unwrap();
                    stored.fetch_add(1, Ordering::Relaxed);
                }
            });
            let has_begun = || stored.load(Ordering::Relaxed) >= round;
            wait_until("some objects are stored", TIMEOUT, has_begun);
            agent.kill().unwrap();
            agent.wait().unwrap();
            work.join().unwrap();
        });
        number += 12;
    }
    assert_eq!(store.list(b"").unwrap().len() as u64, number);
    let far = spilling.store(1);
    for number in 0..number {
        let id = number.to_string();
        let stat = store.stat(id.as_bytes()).unwrap().unwrap();
        check(if stat.info.rack == far.pool().rack() { &far } else { &store }, number);
        assert!(store.delete(id.as_bytes()).unwrap());
    }
    drop((store, far));
    assert!(spilling.store(0).list(b"").unwrap().is_empty());
    spilling.wait_until_nothing_is_left();
}

#[test]
fn files_survive_the_daemon_and_go_with_the_memory() {
    let mut spilling = Spilling::start();
    spill(&spilling.store(0), 0..6);
    spilling.pool.kill_daemon(0);
    spilling.pool.restart_daemon(0);
    check(&spilling.store(0), 3);
    assert_eq!(spilling.files(0).len(), 6);
    spilling.pool.kill_daemon(0);
    fs::remove_dir_all(spilling.pool.rack_dir(0)).unwrap();
    let address = spilling.pool.cluster.metadata_address().to_owned();
    wait_until("the lease runs out", TIMEOUT, || {
        let status = MetadataServer::at(&address).status();
        status.is_ok_and(|pool| pool.members.iter().any(|member| !member.alive))
    });
    spilling.pool.restart_daemon(0);
    assert_eq!(spilling.files(0).len(), 0);
}

#[test]
fn without_a_folder_the_store_says_how_to_get_one() {
    let pool = TestPool::small();
    let store = store(&pool, 0, NAME);
    let told = (0..20).map(|number| put(&store, number)).find_map(Result::err).unwrap();
    assert!(matches!(told, StoreError::NoSpillFolder { .. }), "{told}");
    assert!(told.to_string().contains("--spill-dir"), "{told}");
    assert_eq!(store.list(b"").unwrap().len(), 8);
    (0..8).for_each(|number| check(&store, number));
}

#[test]
fn a_disk_that_fails_loses_nothing() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    for number in 0..8 {
        put(&store, number).unwrap();
    }
    let rack = store.pool().spill_folder().unwrap();
    fs::remove_dir_all(&rack).unwrap();
    fs::write(&rack, b"no folder").unwrap();
    let told = put(&store, 8).unwrap_err();
    assert!(matches!(told, StoreError::SpillFile { .. }), "{told}");
    assert!(told.to_string().contains("make room on the disk"), "{told}");
    assert_eq!(store.list(b"").unwrap().len(), 8);
    (0..8).for_each(|number| check(&store, number));
    fs::remove_file(&rack).unwrap();
    fs::create_dir(&rack).unwrap();
    put(&store, 8).unwrap();
    (0..9).for_each(|number| check(&store, number));
}

#[test]
fn a_damaged_or_missing_file_is_told_and_its_id_can_be_used_again() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    spill(&store, 0..2);
    let file_of = |id: &str| {
        let prefix = format!("{:02x}.", id.as_bytes()[0]);
        let is_its =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix);
        spilling.files(0).into_iter().find(is_its).unwrap()
    };
    let mut bytes = fs::read(file_of("0")).unwrap();
    bytes[1000] ^= 1;
    fs::write(file_of("0"), bytes).unwrap();
    let told = store.get(b"0").unwrap_err();
    assert!(matches!(&told, StoreError::DamagedFile { path } if *path == file_of("0")), "{told}");
    fs::remove_file(file_of("1")).unwrap();
    let told = store.get(b"1").unwrap_err();
    assert!(matches!(told, StoreError::SpillFile { .. }), "{told}");
    for number in 0..2_u64 {
        assert!(matches!(put(&store, number), Err(StoreError::Exists)));
        assert!(store.delete(number.to_string().as_bytes()).unwrap());
        put(&store, number).unwrap();
        check(&store, number);
    }
}

#[test]
fn files_that_nothing_names_are_removed() {
    let spilling = Spilling::start();
    let (near, far) = (spilling.store(0), spilling.store(1));
    spill(&near, 0..3);
    let files = spilling.files(0);
    let folder = files[0].parent().unwrap();
    // As a program leaves it that was killed before it published the stub.
    fs::write(folder.join("30.00000000000000ff"), b"bytes").unwrap();
    fs::write(folder.join("ff.00000000000000ff"), b"bytes").unwrap();
    assert!(far.delete(b"1").unwrap());
    assert_eq!(spilling.files(0).len(), 5);
    drop(spilling.store(0).list(b"").unwrap());
    let mut left = spilling.files(0);
    left.sort();
    let mut named: Vec<_> =
        files.into_iter().filter(|file| !file.to_str().unwrap().contains("/31.")).collect();
    named.sort();
    assert_eq!(left, named);
    check(&near, 0);
    // The other rack can't remove the files of a store, but any store of this one does.
    drop((near, far));
    assert!(Store::remove(Arc::new(spilling.pool.open(1)), NAME).unwrap());
    assert_eq!(spilling.files(0).len(), 2);
    drop(store(&spilling.pool, 0, "another").list(b"").unwrap());
    spilling.wait_until_nothing_is_left();
}

/// A sweep reads the entry of each file: one that it couldn't read failed the eviction that it ran
/// after.
#[test]
fn an_entry_that_cannot_be_read_stops_no_eviction() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    spill(&store, 0..3);
    let stub = store.stat(b"1").unwrap().unwrap().addr;
    // Behind the owner word: the entry is damaged.
    store.pool().write(stub.add(8).unwrap(), &[0xff; 64]).unwrap();
    assert!(store.get(b"1").is_err());
    // Another program, since each sweeps each ten seconds.
    let other = spilling.store(0);
    let orphan = spilling.files(0)[0].with_file_name("ff.00000000000000ff");
    fs::write(&orphan, b"bytes").unwrap();
    for number in 10..20 {
        put(&other, number).unwrap();
    }
    assert!(!orphan.exists(), "the other files were swept");
    (10..20).for_each(|number| check(&other, number));
    check(&other, 0);
}

#[test]
fn a_move_is_no_event_and_an_expired_object_leaves_no_file() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    let mut events = store.subscribe(b"");
    spill(&store, 0..3);
    for _ in 0..3 {
        let event = events.next(TIMEOUT).unwrap();
        assert!(matches!(event, Some(StoreEvent::Sealed(_))), "{event:?}");
    }
    (0..3).for_each(|number| check(&store, number));
    assert!(store.evict(u64::MAX).unwrap() > 0);
    assert_eq!(events.next(Duration::from_millis(50)).unwrap(), None);
    let live = Some(Duration::from_millis(1));
    store.set_options(&StoreOptions { time_to_live: live, ..store.options().unwrap() }).unwrap();
    // Another program, since each sweeps each ten seconds.
    assert!(spilling.store(0).list(b"").unwrap().is_empty());
    assert!(store.get(b"0").unwrap().is_none());
    drop((store, events));
    spilling.wait_until_nothing_is_left();
}

#[test]
fn objects_of_any_size_come_back() {
    let spilling = Spilling::start();
    let store = spilling.store(0);
    let sizes = [0, 1, 100, PAGE - 1, PAGE, 3 * PAGE + 7, 12 * PAGE];
    for (number, len) in (1_u8..).zip(sizes) {
        let bytes = contents::of(number.into(), usize::try_from(len).unwrap());
        let id = [number; 64];
        let options = CreateOptions { is_contiguous: true, ..CreateOptions::default() };
        store.put(&id, &bytes, &options).unwrap();
        store.evict(u64::MAX).unwrap();
        assert!(store.stat(&id).unwrap().unwrap().info.is_spilled);
        let view = store.get(&id).unwrap().unwrap();
        assert_eq!(*view, bytes[..]);
        assert!(view.frames_offset().is_some(), "it is in one piece again");
    }
}
