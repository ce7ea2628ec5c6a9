//! A client killed at any point leaves nothing behind and does not affect other clients.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_client::GlobalAddr;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::announced::Announced;
use rackpool_tests::census::Census;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The most time until everything of a killed client is reclaimed.
const RECLAIM: Duration = Duration::from_secs(1);
/// The most time that any turn of another client may take meanwhile.
const SLOWEST: Duration = Duration::from_secs(5);
const ROUNDS: u64 = 30;
/// Sizes that churning clients allocate: small and large objects, and runs of pages.
const SIZES: &str = "16 100 3000 40000 100000";
/// Threads of a churning client.
const THREADS: usize = 2;

/// Kills churning clients in many rounds. In each round the objects in use must be the announced
/// ones within a second.
fn churn_and_kill(pool: &TestPool, rack: u16, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let before = Census::of(pool);
    for round in 0..ROUNDS {
        let arguments = format!("churn {THREADS} {} 40 {SIZES}", seed * 1000 + round);
        let mut client = pool.client(rack, &arguments.split(' ').collect::<Vec<_>>());
        client.wait_for_lines(random.random_range(1..500));
        client.kill();
        let announced = Announced::of(&client.said);
        let in_hand = announced.wait_until_all_else_is_free(pool, RECLAIM, &before, THREADS);
        announced.check_and_free(pool, u16::try_from(round % 2).unwrap(), &in_hand, &before);
    }
}

#[test]
fn what_a_killed_client_held_comes_back_within_a_second() {
    churn_and_kill(&TestPool::small(), 0, 1);
}

#[test]
fn what_a_killed_client_held_of_another_rack_comes_back_within_a_second() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    // The client's own rack is full.
    let filler = pool.open(1);
    let pages: Vec<GlobalAddr> =
        (0..pool.status(1).frames).map(|_| filler.alloc(PAGE).unwrap()).collect();
    churn_and_kill(&pool, 1, 2);
    wait_until("the rack is as full as before", TIMEOUT, || pool.status(1).free_frames == 0);
    pages.iter().for_each(|addr| filler.free(*addr).unwrap());
}

#[test]
fn what_a_killed_client_announced_stays() {
    let pool = TestPool::small();
    let mut client = pool.client(0, &["serve"]);
    let own = [pool.open(0), pool.open(1)];
    let mut objects = Vec::new();
    for size in [1, 500, 40_000, 200_000] {
        let (local, remote) = (client.alloc(size), own[1].alloc(size).unwrap());
        for addr in [local, remote] {
            assert_eq!(client.ask(&format!("write {:x} {size} {}", addr.raw(), addr.raw())), "ok");
            objects.push((addr, size));
        }
    }
    client.kill();
    wait_until("the client is gone", RECLAIM, || pool.status(0).clients == 1);
    for (addr, size) in objects {
        let mut found = vec![0; usize::try_from(size).unwrap()];
        own[0].read(addr, &mut found).unwrap();
        assert_eq!(contents::difference(addr.raw(), &found), None, "{size} B at {addr}");
        own[1].free(addr).unwrap();
    }
    own.into_iter().for_each(rackpool_client::Pool::close);
    pool.wait_allocated("all is freed", RECLAIM, [0, 0]);
}

#[test]
fn other_clients_work_on_while_clients_are_killed() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers = [0, 1].map(|rack| {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || work_on(pool, rack, stop))
        });
        let mut random = SmallRng::seed_from_u64(3);
        for round in 0..ROUNDS {
            let rack = u16::try_from(round % 2).unwrap();
            let mut client = pool.client(rack, &["refill", "200", "100"]);
            client.wait_for_lines(random.random_range(1..100));
            client.kill();
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let slowest = worker.join().unwrap();
            assert!(slowest < SLOWEST, "a client had to wait for {slowest:?}");
        }
    });
}

/// Works with both racks until told to stop; returns the longest duration of a turn.
fn work_on(pool: &TestPool, rack: u16, stop: &AtomicBool) -> Duration {
    let racks = [pool.open(rack), pool.open(1 - rack)];
    let objects = [0, 1].map(|rack: usize| racks[rack].alloc(256).unwrap());
    let (own, mut slowest) = (&racks[0], Duration::ZERO);
    for number in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        for addr in objects {
            own.write(addr, &contents::of(number, 256)).unwrap();
            let mut found = [0; 256];
            own.read(addr, &mut found).unwrap();
            assert_eq!(contents::difference(number, &found), None, "{addr}");
        }
        let addr = own.alloc(64 + number % 5000).unwrap();
        own.free(addr).unwrap();
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

#[test]
fn a_write_that_a_kill_interrupts_changes_nothing_but_its_object() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let len = 300_000_u64;
    let mut random = SmallRng::seed_from_u64(4);
    for round in 0..ROUNDS {
        // Neighbouring objects on both sides, local and remote in turn.
        let home = &racks[usize::try_from(round % 2).unwrap()];
        let objects = [0, 1, 2].map(|_| home.alloc(len).unwrap());
        for addr in objects {
            racks[0].write(addr, &contents::of(0, usize::try_from(len).unwrap())).unwrap();
        }
        let addr = format!("{:x}", objects[1].raw());
        let mut client = pool.client(0, &["write", &addr, &len.to_string()]);
        client.wait_for_lines(random.random_range(1..20));
        client.kill();
        let last: u64 = client.said.last().unwrap().parse().unwrap();
        for (index, addr) in objects.into_iter().enumerate() {
            let mut found = vec![0; usize::try_from(len).unwrap()];
            racks[1].read(addr, &mut found).unwrap();
            let allowed = if index == 1 { &[last, last + 1][..] } else { &[0] };
            assert_eq!(contents::difference_from_all(allowed, &found), None, "round {round}");
            racks[1].free(addr).unwrap();
        }
    }
}

#[test]
fn a_page_that_a_stopped_client_is_in_is_free_once_the_client_is_killed() {
    let pool = TestPool::small();
    let own = pool.open(0);
    let frames = pool.status(0).frames;
    let mut held = 0;
    for _ in 0..20 {
        let len = 16 * PAGE;
        let object = own.alloc(len).unwrap();
        let addr = format!("{:x}", object.raw());
        let mut client = pool.client(0, &["copy", &addr, &len.to_string()]);
        client.wait_for_lines(1);
        client.signal(Signal::SIGSTOP);
        own.free(object).unwrap();
        // All pages except the one in which the client is can be reused at once.
        wait_until("the others are free", RECLAIM, || pool.status(0).free_frames + 1 >= frames);
        let began = Instant::now();
        let large = own.alloc(len - PAGE).unwrap();
        own.write(large, &contents::of(7, usize::try_from(len - PAGE).unwrap())).unwrap();
        assert!(began.elapsed() < SLOWEST, "another client waited for {:?}", began.elapsed());
        own.free(large).unwrap();
        wait_until("the others are free", RECLAIM, || pool.status(0).free_frames + 1 >= frames);
        held += u32::from(pool.status(0).free_frames < frames);
        client.kill();
        wait_until("all pages are free", RECLAIM, || pool.status(0).free_frames == frames);
    }
    assert!(held > 0, "no client was stopped in the middle of a copy");
}
