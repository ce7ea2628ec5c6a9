//! The metadata server killed at any point: memory stays usable meanwhile, and no acknowledged
//! change is lost.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_admin::MetadataServer;
use rackpool_client::{DaemonError, GlobalAddr, Pool, RootError};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn check(pool: &Pool, addr: GlobalAddr, tag: u64, len: usize) {
    let mut found = vec![0; len];
    pool.read(addr, &mut found).unwrap();
    assert_eq!(contents::difference(tag, &found), None, "{addr}");
}

/// Local and remote accesses and allocations until told to stop; returns the number of turns.
fn work_on(pool: &Pool, objects: &[GlobalAddr], stop: &AtomicBool) -> u64 {
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) {
        turns += 1;
        for addr in objects {
            pool.write(*addr, &contents::of(turns, 300)).unwrap();
            check(pool, *addr, turns, 300);
        }
        let addr = pool.alloc(30_000).unwrap();
        pool.free(addr).unwrap();
    }
    turns
}

#[test]
fn memory_and_roots_survive_the_metadata_server() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let objects = [0, 1]
        .map(|user: usize| [0, 1].map(|home: usize| (racks[home].alloc(300).unwrap(), user).0));
    let mut random = SmallRng::seed_from_u64(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|rack| {
                let (racks, objects, stop) = (&racks, &objects, &stop);
                scope.spawn(move || work_on(&racks[rack], &objects[rack], stop))
            })
            .collect();
        let mut last = None;
        for round in 0..15 {
            std::thread::sleep(Duration::from_micros(random.random_range(0..10_000)));
            // An acknowledged change is durable, however soon the server is killed.
            let next = Some(GlobalAddr::from_raw(PAGE + round * 16));
            wait_until("a name is changed", TIMEOUT, || match racks[0].set_root("n", last, next) {
                Ok(root) => root.addr == next,
                Err(RootError::Daemon(DaemonError::MetadataUnreachable)) => false,
                Err(error) => panic!("{error}"),
            });
            last = next;
            pool.cluster.metadata().kill().unwrap();
            // New clients are served.
            let newcomer = pool.open(u16::try_from(round % 2).unwrap());
            let addr = newcomer.alloc(PAGE).unwrap();
            newcomer.write(addr, &contents::of(round, 300)).unwrap();
            assert_eq!(
                racks[1].root("n"),
                Err(RootError::Daemon(DaemonError::MetadataUnreachable))
            );
            check(&newcomer, addr, round, 300);
            newcomer.free(addr).unwrap();
            pool.cluster.restart_metadata().unwrap();
            wait_until("the name is there", TIMEOUT, || match racks[1].root("n") {
                Ok(found) => {
                    assert_eq!(found, last, "round {round}");
                    true
                }
                Err(RootError::Daemon(DaemonError::MetadataUnreachable)) => false,
                Err(error) => panic!("{error}"),
            });
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| assert!(worker.join().unwrap() > 0));
    });
    let members = MetadataServer::at(pool.cluster.metadata_address()).status().unwrap().members;
    assert!(members.len() == 2 && members.iter().all(|member| member.alive), "{members:?}");
}

#[test]
fn a_metadata_server_that_stands_still_for_less_than_a_lease_is_waited_for() {
    // The leases last longer than the server is stopped.
    let mut pool = TestPool::start(64 << 20, PAGE);
    let client = pool.open(0);
    let addr = Some(GlobalAddr::from_raw(PAGE));
    client.set_root("n", None, addr).unwrap();
    pool.cluster.metadata().signal(Signal::SIGSTOP).unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.root("n"));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!asked.is_finished(), "nobody can have answered");
        pool.cluster.metadata().signal(Signal::SIGCONT).unwrap();
        assert_eq!(asked.join().unwrap(), Ok(addr));
    });
}

#[test]
fn a_pool_that_has_stood_still_for_longer_than_a_lease_takes_no_rack_for_dead() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let lease = Duration::from_millis(pool.cluster.options().lease_ms);
    let (near, far) = (pool.open(0), pool.open(1));
    let addr = far.alloc(PAGE).unwrap();
    near.write(addr, &contents::of(1, 300)).unwrap();
    let address = pool.cluster.metadata_address().to_owned();
    let version = MetadataServer::at(&address).status().unwrap().version;
    // As on a host that gives none of these processes time to run.
    pool.cluster.metadata().signal(Signal::SIGSTOP).unwrap();
    (0..2).for_each(|rack| pool.stop_daemon(rack));
    std::thread::sleep(lease * 5 / 2);
    pool.cluster.metadata().signal(Signal::SIGCONT).unwrap();
    (0..2).for_each(|rack| pool.resume_daemon(rack));
    check(&near, addr, 1, 300);
    near.write(addr, &contents::of(2, 300)).unwrap();
    check(&far, addr, 2, 300);
    // As long as a rack could still be taken for dead.
    std::thread::sleep(lease);
    let status = MetadataServer::at(&address).status().unwrap();
    assert!(status.members.iter().all(|member| member.alive), "{:?}", status.members);
    assert_eq!(status.version, version, "a rack was dead for a while");
}

#[test]
fn racks_that_know_each_other_need_no_metadata_server_to_work_together() {
    let mut pool = TestPool::small();
    let lease = Duration::from_millis(pool.cluster.options().lease_ms);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let unseen: Vec<GlobalAddr> = (0..20).map(|_| racks[1].alloc(PAGE).unwrap()).collect();
    pool.cluster.metadata().kill().unwrap();
    let began = Instant::now();
    let mut turns = 0;
    // For longer than a lease, also on pages that this client has not used before.
    while began.elapsed() < 2 * lease || turns < unseen.len() {
        let addr = unseen[turns % unseen.len()];
        racks[0].write(addr, &contents::of(7, 300)).unwrap();
        check(&racks[1], addr, 7, 300);
        turns += 1;
    }
    pool.cluster.restart_metadata().unwrap();
    let address = pool.cluster.metadata_address().to_owned();
    wait_until("both racks are members again", TIMEOUT, || {
        MetadataServer::at(&address)
            .status()
            .is_ok_and(|pool| pool.members.iter().filter(|member| member.alive).count() == 2)
    });
    unseen.iter().for_each(|addr| racks[0].free(*addr).unwrap());
}

#[test]
fn a_rack_daemon_starts_again_without_the_metadata_server() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let addr = racks[0].alloc(300).unwrap();
    racks[0].write(addr, &contents::of(1, 300)).unwrap();
    pool.cluster.metadata().kill().unwrap();
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    check(&racks[0], addr, 1, 300);
    let more = racks[0].alloc(PAGE).unwrap();
    racks[0].write(more, &contents::of(2, 300)).unwrap();
    check(&pool.open(0), more, 2, 300);
    pool.cluster.restart_metadata().unwrap();
    wait_until("the other rack is reached again", TIMEOUT, || racks[1].is_local(more).is_ok());
    check(&racks[1], more, 2, 300);
    [addr, more].iter().for_each(|addr| racks[0].free(*addr).unwrap());
}
