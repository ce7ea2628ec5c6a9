//! A daemon that is unavailable for some time: errors come in time, and after its return nothing is
//! lost or done twice.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_admin::MetadataServer;
use rackpool_client::{
    AccessError, AllocError, DaemonError, FreeError, GlobalAddr, Pool, RackId, ReadRequest,
};
use rackpool_model::FabricKind;
use rackpool_ring::client_file::CELLS_PER_THREAD;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_tests::{census, contents};

/// The lease, and the delay of a busy machine: less than a call waits for its daemon.
const LEASE: Duration = Duration::from_millis(2000 + 2500);

/// The limit for operations that need not wait, on a busy machine: less than a client waits for a
/// daemon to return.
const SOON: Duration = Duration::from_secs(8);

fn check(pool: &Pool, addr: GlobalAddr, tag: u64) {
    let mut found = [0; 64];
    pool.read(addr, &mut found).unwrap();
    assert_eq!(contents::difference(tag, &found), None, "{addr}");
}

fn fill_rack(pool: &TestPool, own: &Pool, rack: u16) -> Vec<GlobalAddr> {
    let frames = pool.status(rack).frames;
    // While the lease of the last page is being revoked from the other rack, allocations get pages
    // of that rack.
    let (mut pages, mut elsewhere) = (Vec::new(), Vec::new());
    while pages.len() < frames as usize {
        let page = own.alloc(PAGE).unwrap();
        if own.is_local(page).unwrap() { &mut pages } else { &mut elsewhere }.push(page);
    }
    elsewhere.into_iter().for_each(|page| own.free(page).unwrap());
    wait_until("the rack is full", TIMEOUT, || pool.status(rack).free_frames == 0);
    pages
}

/// Regression: a rack that had just returned was taken for down. Seen in the lab, where heartbeats
/// are 5 s apart.
#[test]
fn a_rack_that_has_come_back_is_used_at_once() {
    // Heartbeats are 2 s apart.
    let mut pool = TestPool::with(|options| options.lease_ms = 8000);
    pool.wait_until_racks_meet();
    let (user, home) = (pool.open(0), pool.open(1));
    let addr = home.alloc(300).unwrap();
    contents::write(&home, addr, 300);
    contents::check(&user, addr, 300);
    home.close();
    // On SIGTERM the daemon returns its lease, so it counts as down at once.
    pool.cluster.daemon(RackId(1)).unwrap().signal(Signal::SIGTERM).unwrap();
    let mut bytes = [0; 300];
    wait_until("it is known to be down", TIMEOUT, || {
        user.read(addr, &mut bytes) == Err(AccessError::RackUnavailable(RackId(1)))
    });
    pool.restart_daemon(1);
    contents::check(&user, addr, 300);
}

#[test]
fn a_dead_rack_is_reported_within_its_lease() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let used = racks[1].alloc(64).unwrap();
    let unused = racks[1].alloc(PAGE).unwrap();
    racks[0].write(used, &contents::of(1, 64)).unwrap();
    pool.kill_daemon(1);
    let dead = AccessError::RackUnavailable(RackId(1));
    for addr in [used, unused] {
        // Its memory may be reachable for an instant after its death.
        let began = Instant::now();
        let read = || racks[0].read(addr, &mut [0; 64]).err();
        assert_eq!(wait_for("its death is noticed", TIMEOUT, read), dead);
        assert_eq!(racks[0].fetch_and_add(addr, 1), Err(dead.clone()));
        assert!(began.elapsed() < 2 * LEASE, "after {:?}", began.elapsed());
    }
    // Once it is known to be dead no operation waits for it.
    let address = pool.cluster.metadata_address().to_owned();
    wait_until("the lease runs out", TIMEOUT, || {
        MetadataServer::at(&address)
            .status()
            .is_ok_and(|pool| pool.members.iter().any(|m| !m.alive))
    });
    wait_until("errors come at once", TIMEOUT, || {
        let began = Instant::now();
        assert_eq!(racks[0].read(used, &mut [0; 64]), Err(dead.clone()));
        began.elapsed() < Duration::from_millis(100)
    });
    // The client's own rack is not affected, and the other one is used again when it returns.
    let own = racks[0].alloc(64).unwrap();
    racks[0].write(own, &contents::of(2, 64)).unwrap();
    pool.restart_daemon(1);
    wait_until("the rack is back", TIMEOUT, || racks[0].read(used, &mut [0; 64]).is_ok());
    check(&racks[0], used, 1);
    check(&racks[1], own, 2);
}

/// A transfer is given up when the lease of this pool expires, which is longer than the usual one.
/// A fabric's server that did not run for 2.5 s disconnects by itself; the read is then repeated.
#[test]
fn a_rack_that_is_stopped_for_less_than_a_lease_is_waited_for() {
    const PAUSE: Duration = Duration::from_millis(3500);
    let mut pool = TestPool::with(|options| {
        options.lease_ms = 20_000;
        options.fabric = FabricKind::Tcp;
    });
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let addr = racks[1].alloc(PAGE).unwrap();
    racks[0].write(addr, &contents::of(1, 64)).unwrap();
    pool.stop_daemon(1);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut found = [0; 64];
            (racks[0].read(addr, &mut found), contents::difference(1, &found), began.elapsed())
        });
        std::thread::sleep(PAUSE);
        pool.resume_daemon(1);
        let (result, difference, after) = read.join().unwrap();
        assert_eq!((result, difference), (Ok(()), None));
        assert!(after >= PAUSE, "the rack answered although it was stopped: {after:?}");
    });
}

/// Three racks over TCP with a client in each, and an object of 64 B in rack 1 and in rack 2, both
/// written by rack 0.
fn three_racks() -> (TestPool, [Pool; 3], [GlobalAddr; 2]) {
    let pool = TestPool::with(|options| {
        options.racks = 3;
        options.lease_ms = 20_000;
        options.fabric = FabricKind::Tcp;
    });
    let racks = [0, 1, 2].map(|rack| pool.open(rack));
    let objects = [1, 2].map(|home: usize| {
        let addr = racks[home].alloc(64).unwrap();
        wait_for("the racks meet", TIMEOUT, || racks[0].is_local(addr).ok());
        contents::write(&racks[0], addr, 64);
        addr
    });
    (pool, racks, objects)
}

/// Requests of one client to several racks share its rings: a waiting request delays no other.
#[test]
fn a_rack_that_is_stopped_holds_up_no_request_to_another() {
    let (mut pool, racks, [slow, quick]) = three_racks();
    pool.stop_daemon(1);
    let before = pool.status(0).remote_operations;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| contents::check(&racks[0], slow, 64));
        wait_until("it is on its way", TIMEOUT, || pool.status(0).remote_operations > before);
        for _ in 0..100 {
            contents::check(&racks[0], quick, 64);
            racks[0].ping().unwrap();
            racks[0].free(racks[0].alloc(64).unwrap()).unwrap();
        }
        assert!(!waits.is_finished(), "a stopped rack has answered");
        pool.resume_daemon(1);
        waits.join().unwrap();
    });
}

/// More requests wait for a stopped rack than a queue has room for.
#[test]
fn many_clients_at_a_stopped_rack_hold_up_no_request_to_another() {
    const THREADS: u64 = 60;
    const POOLS: u64 = 2;
    const EACH: usize = CELLS_PER_THREAD;
    /// The queue of TCP has room for 1,024.
    const ALL: u64 = POOLS * THREADS * EACH as u64;
    const { assert!(ALL > 1024 + 512) };
    let (mut pool, racks, [slow, quick]) = three_racks();
    let pools: Vec<Pool> = (0..POOLS).map(|_| pool.open(0)).collect();
    pool.stop_daemon(1);
    let before = pool.status(0).remote_operations;
    std::thread::scope(|scope| {
        for clients in &pools {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut found = [[0; 64]; EACH];
                    let mut reads: Vec<ReadRequest<'_>> =
                        found.iter_mut().map(|into| ReadRequest { addr: slow, into }).collect();
                    clients.read_batch(&mut reads).unwrap();
                    for bytes in found {
                        assert_eq!(contents::difference(slow.raw(), &bytes), None);
                    }
                });
            }
        }
        let under_way = || pool.status(0).remote_operations - before;
        wait_until("all are on their way", TIMEOUT, || under_way() >= ALL);
        for _ in 0..100 {
            contents::check(&racks[0], quick, 64);
        }
        pool.resume_daemon(1);
    });
}

#[test]
fn a_rack_without_its_memory_has_lost_its_pages() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let addr = racks[1].alloc(64).unwrap();
    racks[0].write(addr, &contents::of(1, 64)).unwrap();
    pool.kill_daemon(1);
    std::fs::remove_dir_all(pool.rack_dir(1)).unwrap();
    let address = pool.cluster.metadata_address().to_owned();
    wait_until("the lease runs out", TIMEOUT, || {
        MetadataServer::at(&address)
            .status()
            .is_ok_and(|pool| pool.members.iter().any(|m| !m.alive))
    });
    pool.restart_daemon(1);
    let lost = wait_for("the loss is known", TIMEOUT, || {
        let error = racks[0].read(addr, &mut [0; 64]).unwrap_err();
        (error != AccessError::RackUnavailable(RackId(1))).then_some(error)
    });
    assert_eq!(lost, AccessError::PageLost(addr));
    assert_eq!(racks[0].fetch_and_add(addr, 1), Err(AccessError::PageLost(addr)));
    // The rack's own client can't go on: the memory it used is gone.
    let forgotten = wait_for("the client is told", TIMEOUT, || {
        let error = racks[1].alloc(1 << 20).err()?;
        (error != AllocError::Daemon(DaemonError::Unavailable)).then_some(error)
    });
    assert_eq!(forgotten, AllocError::Daemon(DaemonError::Forgotten));
    // The new memory is usable.
    let again = pool.open(1);
    let fresh = again.alloc(64).unwrap();
    again.write(fresh, &contents::of(3, 64)).unwrap();
    wait_until("the new memory is reached", TIMEOUT, || racks[0].is_local(fresh).is_ok());
    check(&racks[0], fresh, 3);
}

#[test]
fn objects_freed_while_their_rack_is_away_go_home_once() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let sizes = [64, 64, 8192, 64, 1000, 8192, 100_000].iter().cycle().take(56);
    let objects: Vec<GlobalAddr> = sizes.map(|size| racks[1].alloc(*size).unwrap()).collect();
    objects.iter().for_each(|addr| racks[0].write(*addr, &contents::of(1, 64)).unwrap());
    pool.kill_daemon(1);
    // Only frees that must be sent wait, and they wait together.
    let began = Instant::now();
    let (freed, refused): (Vec<GlobalAddr>, Vec<GlobalAddr>) =
        objects.iter().partition(|addr| match racks[0].free(**addr) {
            Ok(()) => true,
            // On a busy machine the lease may expire before all are freed.
            Err(FreeError::Access(AccessError::RackUnavailable(RackId(1)))) => false,
            Err(error) => panic!("{error}"),
        });
    assert!(began.elapsed() < 2 * LEASE, "{:?}", began.elapsed());
    assert!(!freed.is_empty(), "nothing could be freed while the rack was away");
    pool.restart_daemon(1);
    // The other rack hands the objects out again as they are returned.
    let again: Vec<GlobalAddr> = (0..400)
        .map(|turn| {
            let addr = racks[1].alloc([64, 1000, 8192, 100_000][turn % 4]).unwrap();
            racks[1].write(addr, &contents::of(addr.raw(), 64)).unwrap();
            let late = racks[1].alloc(64).unwrap();
            wait_until("the other rack is known to be back", TIMEOUT, || {
                match racks[0].free(late) {
                    Ok(()) => true,
                    Err(FreeError::Access(AccessError::RackUnavailable(RackId(1)))) => false,
                    Err(error) => panic!("{error}"),
                }
            });
            addr
        })
        .collect();
    let is_back = || racks[0].read(again[0], &mut [0; 64]).is_ok();
    wait_until("the other rack is known to be back", TIMEOUT, is_back);
    again.iter().for_each(|addr| check(&racks[0], *addr, addr.raw()));
    again.iter().chain(&refused).for_each(|addr| racks[1].free(*addr).unwrap());
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed once", TIMEOUT, [0, 0]);
}

#[test]
fn a_client_killed_while_the_other_rack_is_away_gives_everything_back_once() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let filler = pool.open(0);
    let pages = fill_rack(&pool, &filler, 0);
    let other = pool.open(1);
    let mut client = pool.client(0, &["serve"]);
    let objects: Vec<GlobalAddr> = (0..40).map(|_| client.alloc(64)).collect();
    for addr in &objects {
        assert_eq!(client.ask(&format!("write {:x} 64 1", addr.raw())), "ok");
    }
    pool.kill_daemon(1);
    // Freed by the client and under way when it is killed; its cache holds others.
    for addr in &objects {
        assert_eq!(client.ask(&format!("free {:x}", addr.raw())), "ok");
    }
    client.kill();
    pool.restart_daemon(1);
    // A returned object is handed out again, and must not be returned a second time.
    let again: Vec<GlobalAddr> = (0..500)
        .map(|_| {
            let addr = other.alloc(64).unwrap();
            other.write(addr, &contents::of(addr.raw(), 64)).unwrap();
            addr
        })
        .collect();
    let in_use = census::objects(&pool);
    again.iter().for_each(|addr| assert!(in_use.contains_key(addr), "{addr} was freed"));
    pages.iter().for_each(|addr| filler.free(*addr).unwrap());
    again.iter().for_each(|addr| other.free(*addr).unwrap());
    other.close();
    filler.close();
    pool.wait_allocated("all is freed once", TIMEOUT, [0, 0]);
}

#[test]
fn objects_that_come_too_late_are_not_taken_for_others() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let filler = pool.open(0);
    let pages = fill_rack(&pool, &filler, 0);
    let own = Pool::open(pool.options(0).request_timeout(Duration::from_millis(200))).unwrap();
    // The exchange is under way when the client gives it up.
    pool.stop_daemon(1);
    assert_eq!(own.alloc(64), Err(AllocError::Daemon(DaemonError::Unavailable)));
    pool.resume_daemon(1);
    let large: Vec<GlobalAddr> = (0..50)
        .map(|_| {
            wait_for("the client can allocate again", TIMEOUT, || match own.alloc(4096) {
                Ok(addr) => Some(addr),
                Err(AllocError::Daemon(DaemonError::Unavailable)) => None,
                Err(error) => panic!("{error}"),
            })
        })
        .collect();
    let in_use = census::objects(&pool);
    for addr in large {
        assert_eq!(in_use.get(&addr), Some(&4096), "{addr} is no object of 4096 B");
        own.free(addr).unwrap();
    }
    pages.iter().for_each(|addr| filler.free(*addr).unwrap());
    own.close();
    filler.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn what_a_thread_left_when_it_ended_without_a_daemon_is_not_lost() {
    let mut pool = TestPool::small();
    let options = pool.options(0).reconnect_timeout(Duration::from_millis(50));
    let own = Pool::open(options).unwrap();
    for size in [16, 1000, 30_000] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The client's cache holds some when it ends.
                let alloc = || wait_for("it is served again", TIMEOUT, || own.alloc(size).ok());
                let objects: Vec<GlobalAddr> = (0..10).map(|_| alloc()).collect();
                objects.iter().for_each(|addr| own.free(*addr).unwrap());
                pool.kill_daemon(0);
                let overdue = AllocError::Daemon(DaemonError::Unavailable);
                assert_eq!(own.alloc(3 * PAGE), Err(overdue));
            });
        });
        pool.restart_daemon(0);
        let addr = wait_for("the client is served again", TIMEOUT, || own.alloc(size).ok());
        own.free(addr).unwrap();
        let all: Vec<GlobalAddr> = (0..100).map(|_| own.alloc(size).unwrap()).collect();
        all.iter().for_each(|addr| own.free(*addr).unwrap());
    }
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn a_long_outage_does_not_make_the_racks_quarrel() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = pool.open(0);
    let pages = fill_rack(&pool, &own, 0);
    let addr = own.alloc(64).unwrap();
    pool.kill_daemon(1);
    // An exchange waits for longer than the rack has to answer.
    let error = own.alloc(100_000).unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
    pool.restart_daemon(1);
    wait_until("the rack is back", TIMEOUT, || own.read(addr, &mut [0; 64]).is_ok());
    // Cutting off the endpoint would make some of these indeterminate.
    for _ in 0..2000 {
        own.fetch_and_add(addr, 1).unwrap();
    }
    own.free(addr).unwrap();
    pages.iter().for_each(|addr| own.free(*addr).unwrap());
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn a_pool_closed_while_its_daemon_is_away_gives_everything_back() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    for round in 0..5 {
        let racks = [pool.open(0), pool.open(1)];
        // Local and remote objects, in caches and on their way home.
        let objects: Vec<GlobalAddr> = (0..60)
            .flat_map(|turn| {
                let size = [16, 300, 5000, 100_000][turn % 4];
                [racks[0].alloc(size).unwrap(), racks[1].alloc(size).unwrap()]
            })
            .collect();
        for addr in &objects {
            racks[0].free(*addr).unwrap();
        }
        pool.kill_daemon(0);
        wait_until("the client knows", TIMEOUT, || racks[0].rack_status().is_err());
        let began = Instant::now();
        racks.into_iter().for_each(Pool::close);
        assert!(began.elapsed() < SOON, "closing took {:?}", began.elapsed());
        pool.restart_daemon(0);
        pool.wait_allocated(&format!("all is free, round {round}"), SOON, [0, 0]);
    }
}
