//! A rack daemon killed at any point: everything acknowledged is present, nothing leaks, and calls
//! wait and then continue.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rackpool_client::{AccessError, AllocError, FreeError, GlobalAddr, Pool};
use rackpool_model::FabricKind;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::announced::Announced;
use rackpool_tests::census::{self, Census};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Kills and restarts a daemon in many rounds, each at another point of the work of this process's
/// threads.
fn kill_in_rounds(
    pool: &mut TestPool,
    rounds: u32,
    seed: u64,
    victims: &[u16],
    work: impl Fn(u64, &AtomicBool) + Sync,
) {
    let mut random = SmallRng::seed_from_u64(seed);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, work) = (&stop, &work);
        let workers: Vec<_> = (0..4).map(|index| scope.spawn(move || work(index, stop))).collect();
        for round in 0..rounds {
            // At a random point of the work.
            std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
            let victim = victims[usize::try_from(round).unwrap() % victims.len()];
            pool.kill_daemon(victim);
            std::thread::sleep(Duration::from_micros(random.random_range(0..3000)));
            pool.restart_daemon(victim);
            if workers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

/// Repeats an operation while its rack is unavailable: on a busy machine a daemon may take longer
/// than its lease to restart.
#[track_caller]
fn patiently(mut operation: impl FnMut() -> Result<(), AccessError>) {
    wait_for("the rack comes back", TIMEOUT, || match operation() {
        Err(AccessError::RackUnavailable(_)) => None,
        outcome => Some(outcome),
    })
    .unwrap();
}

fn write(pool: &Pool, addr: GlobalAddr, bytes: &[u8]) {
    patiently(|| pool.write(addr, bytes));
}

fn free(pool: &Pool, addr: GlobalAddr) {
    patiently(|| match pool.free(addr) {
        Err(FreeError::Access(error)) => Err(error),
        outcome => {
            outcome.unwrap();
            Ok(())
        }
    });
}

fn check(pool: &Pool, addr: GlobalAddr, tag: u64, len: usize) {
    let mut found = vec![0; len];
    patiently(|| pool.read(addr, &mut found));
    assert_eq!(contents::difference(tag, &found), None, "{len} B of {tag} at {addr}");
}

fn values_survive(fabric: FabricKind, victims: &[u16], seed: u64) {
    let mut pool = TestPool::over(fabric);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let lens = [8, 100, 5000, 40_000, 150_000];
    kill_in_rounds(&mut pool, 25, seed, victims, |worker, stop| {
        let mut random = SmallRng::seed_from_u64(seed * 100 + worker);
        let user = &racks[usize::try_from(worker % 2).unwrap()];
        // Local and remote objects, and the tag of the last successful write to each.
        let mut log: Vec<(GlobalAddr, usize, u64)> = Vec::new();
        for (len, home) in
            lens.iter().zip([0, 1].iter().cycle()).chain(lens.iter().zip([1, 0].iter().cycle()))
        {
            let addr = racks[*home].alloc(u64::try_from(*len).unwrap()).unwrap();
            write(user, addr, &contents::of(worker, *len));
            log.push((addr, *len, worker));
        }
        for number in 1_u64.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (addr, len, tag) = {
                let index = random.random_range(0..log.len());
                &mut log[index]
            };
            check(user, *addr, *tag, *len);
            let next = number * 8 + worker;
            write(user, *addr, &contents::of(next, *len));
            *tag = next;
        }
        for (addr, len, tag) in log {
            racks.iter().for_each(|reader| check(reader, addr, tag, len));
            free(user, addr);
        }
    });
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn every_acknowledged_byte_survives_the_daemon_of_the_own_rack() {
    values_survive(FabricKind::Emulated, &[0], 1);
}

#[test]
fn every_acknowledged_byte_survives_the_daemon_of_the_other_rack() {
    values_survive(FabricKind::Emulated, &[1], 2);
}

#[test]
fn every_acknowledged_byte_survives_the_daemon() {
    values_survive(FabricKind::Emulated, &[0, 1], 3);
}

#[test]
fn every_acknowledged_byte_survives_the_daemon_over_tcp() {
    values_survive(FabricKind::Tcp, &[0, 1], 3);
}

fn additions_are_done_once_or_uncertain(fabric: FabricKind) {
    let mut pool = TestPool::over(fabric);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let counters = [0, 1].map(|home: usize| {
        let addr = racks[home].alloc(8).unwrap();
        racks[home].write(addr, &[0; 8]).unwrap();
        (addr, AtomicU64::new(0), AtomicU64::new(0))
    });
    kill_in_rounds(&mut pool, 25, 4, &[0, 1], |worker, stop| {
        let user = &racks[usize::try_from(worker % 2).unwrap()];
        while !stop.load(Ordering::Relaxed) {
            for (addr, sure, unsure) in &counters {
                match user.fetch_and_add(*addr, 1) {
                    Ok(_) => sure.fetch_add(1, Ordering::Relaxed),
                    Err(AccessError::Indeterminate(_)) => unsure.fetch_add(1, Ordering::Relaxed),
                    // The operation was never sent: on a busy machine a lease may have expired.
                    Err(AccessError::RackUnavailable(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
            }
        }
    });
    for (addr, sure, unsure) in counters {
        let mut bytes = [0; 8];
        patiently(|| racks[0].read(addr, &mut bytes));
        let (found, sure) = (u64::from_le_bytes(bytes), sure.into_inner());
        let range = sure..=sure + unsure.into_inner();
        assert!(sure > 0 && range.contains(&found), "{found} is not in {range:?}");
    }
}

#[test]
fn an_addition_is_done_once_or_reported_as_uncertain() {
    additions_are_done_once_or_uncertain(FabricKind::Emulated);
}

#[test]
fn an_addition_is_done_once_or_reported_as_uncertain_over_tcp() {
    additions_are_done_once_or_uncertain(FabricKind::Tcp);
}

/// Allocates and frees until told to stop, then frees everything.
fn churn(pool: &Pool, seed: u64, sizes: &[u64], stop: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut held: Vec<(GlobalAddr, usize)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if held.len() < 40 && random.random_bool(0.55) {
            let bytes = sizes[random.random_range(0..sizes.len())];
            match pool.alloc(bytes) {
                Ok(addr) => {
                    let len = usize::try_from(bytes).unwrap();
                    write(pool, addr, &contents::of(addr.raw() ^ seed, len));
                    held.push((addr, len));
                }
                // A restarted daemon frees no pages until it can be sure that no other rack uses
                // them.
                Err(AllocError::OutOfMemory { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        } else if !held.is_empty() {
            let (addr, len) = held.swap_remove(random.random_range(0..held.len()));
            check(pool, addr, addr.raw() ^ seed, len);
            free(pool, addr);
        }
    }
    for (addr, len) in held {
        check(pool, addr, addr.raw() ^ seed, len);
        free(pool, addr);
    }
}

#[test]
fn nothing_leaks_and_nothing_is_handed_out_twice_in_the_own_rack() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    kill_in_rounds(&mut pool, 30, 5, &[0], |worker, stop| {
        churn(&own, 5000 + worker, &[16, 100, 3000, 40_000, 100_000], stop);
    });
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

fn nothing_leaks_while_objects_travel(fabric: FabricKind) {
    let mut pool = TestPool::over(fabric);
    pool.wait_until_racks_meet();
    let own = pool.open(0);
    // The client's own rack is full.
    let pages: Vec<GlobalAddr> =
        (0..pool.status(0).frames).map(|_| own.alloc(PAGE).unwrap()).collect();
    kill_in_rounds(&mut pool, 40, 6, &[0, 1], |worker, stop| {
        churn(&own, 6000 + worker, &[16, 100, 3000, 40_000, 100_000], stop);
    });
    pages.iter().for_each(|addr| free(&own, *addr));
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn nothing_leaks_when_a_daemon_dies_while_objects_travel() {
    nothing_leaks_while_objects_travel(FabricKind::Emulated);
}

#[test]
fn nothing_leaks_when_a_daemon_dies_while_objects_travel_over_tcp() {
    nothing_leaks_while_objects_travel(FabricKind::Tcp);
}

#[test]
fn local_memory_stays_usable_while_the_daemon_is_dead() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    let objects: Vec<GlobalAddr> = (0..50).map(|_| own.alloc(4096).unwrap()).collect();
    objects.iter().for_each(|addr| own.write(*addr, &contents::of(1, 4096)).unwrap());
    pool.kill_daemon(0);
    for tag in 2..100 {
        for addr in &objects {
            own.write(*addr, &contents::of(tag, 4096)).unwrap();
            check(&own, *addr, tag, 4096);
        }
        own.fetch_and_add(objects[0], 0).unwrap();
    }
    pool.restart_daemon(0);
    objects.iter().for_each(|addr| check(&own, *addr, 99, 4096));
    objects.iter().for_each(|addr| own.free(*addr).unwrap());
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// Regression: objects that an earlier daemon had requested were counted as in the hand of the
/// client, although the client had ended.
#[test]
fn what_an_earlier_daemon_asked_for_is_on_its_way_until_it_is_home() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let filler = pool.open(0);
    let pages: Vec<GlobalAddr> =
        (0..pool.status(0).frames).map(|_| filler.alloc(PAGE).unwrap()).collect();
    let before = Census::of(&pool);
    assert!(census::exchanges_have_ended(&pool));
    pool.stop_daemon(1);
    let mut client = pool.client(0, &"churn 1 1 4 3000 40000".split(' ').collect::<Vec<_>>());
    wait_until("it asks the other rack", TIMEOUT, || !census::exchanges_have_ended(&pool));
    pool.kill_daemon(0);
    client.kill();
    pool.restart_daemon(0);
    wait_until("the client is gone", TIMEOUT, || before.newcomers_are_gone(&pool));
    assert!(!census::exchanges_have_ended(&pool), "the other rack has not answered");
    pool.resume_daemon(1);
    wait_until("all is home", TIMEOUT, || census::exchanges_have_ended(&pool));
    assert_eq!(census::objects(&pool), before.objects);
    pages.iter().for_each(|addr| filler.free(*addr).unwrap());
}

#[test]
fn a_client_killed_while_its_daemon_is_dead_is_reclaimed_after_the_restart() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let filler = pool.open(0);
    let free = 20;
    let pages: Vec<GlobalAddr> =
        (0..pool.status(0).frames - free).map(|_| filler.alloc(PAGE).unwrap()).collect();
    let before = Census::of(&pool);
    for round in 0..8 {
        let arguments = format!("churn 2 {round} 60 16 100 3000 40000 100000");
        let mut client = pool.client(0, &arguments.split(' ').collect::<Vec<_>>());
        client.wait_for_lines(200);
        pool.kill_daemon(0);
        client.kill();
        pool.restart_daemon(0);
        let announced = Announced::of(&client.said);
        // Requests of the killed daemon may be under way for 2 s.
        let timeout = Duration::from_secs(4);
        let in_hand = announced.wait_until_all_else_is_free(&pool, timeout, &before, 2);
        announced.check_and_free(&pool, 0, &in_hand, &before);
    }
    pages.iter().for_each(|addr| filler.free(*addr).unwrap());
}
