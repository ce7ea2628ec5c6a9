//! The basic operations of a pool.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, ReadRequest, WriteRequest};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

/// Sizes at and around the limits of every size class, and runs of up to 3 pages.
fn sizes() -> Vec<u64> {
    let powers = (0..=16).map(|bits| 1 << bits);
    let around = powers.flat_map(|size: u64| [size - 1, size, size + 1]);
    let runs = [PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE];
    around.chain(runs).filter(|size| *size > 0).collect::<BTreeSet<u64>>().into_iter().collect()
}

#[test]
fn objects_of_every_size_hold_their_bytes_in_both_racks() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let mut objects = Vec::new();
    for rack in &racks {
        for size in sizes() {
            let addr = rack.alloc(size).unwrap();
            assert!(rack.is_local(addr).unwrap(), "{size} B of an empty rack are local");
            let alignment = size.next_power_of_two().clamp(16, PAGE);
            assert!(addr.raw().is_multiple_of(alignment), "{size} B at {addr}");
            contents::write(rack, addr, size);
            objects.push((addr, size));
        }
    }
    for rack in &racks {
        for (addr, size) in &objects {
            contents::check(rack, *addr, *size);
        }
    }
    // Each object is freed by the rack that did not allocate it.
    let half = objects.len() / 2;
    for (index, (addr, _)) in objects.iter().enumerate() {
        racks[usize::from(index < half)].free(*addr).unwrap();
    }
    for rack in racks {
        rack.close();
    }
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn an_address_means_the_same_in_every_rack() {
    let pool = TestPool::small();
    let mut clients = [pool.client(0, &["serve"]), pool.client(1, &["serve"])];
    let own = pool.open(0);
    for size in [1, 100, 4096, PAGE, 3 * PAGE] {
        for writer in 0..2 {
            let addr = clients[writer].alloc(size);
            let raw = addr.raw();
            assert_eq!(clients[writer].ask(&format!("write {raw:x} {size} {raw}")), "ok");
            contents::check(&own, addr, size);
            let reader = &mut clients[1 - writer];
            assert_eq!(reader.ask(&format!("check {raw:x} {size} {raw}")), "ok");
            assert_eq!(reader.ask(&format!("write {raw:x} {size} 5")), "ok");
            assert_eq!(clients[writer].ask(&format!("check {raw:x} {size} 5")), "ok");
            assert_eq!(clients[1 - writer].ask(&format!("free {raw:x}")), "ok");
        }
    }
    assert!(clients.iter_mut().all(rackpool_tests::client::TestClient::finish));
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn batches_mix_racks_sizes_and_pages() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    // Local and remote objects, shorter and longer than one piece of a transfer, up to runs of
    // pages that a transfer crosses.
    let lens = [8, 64, 16 << 10, (16 << 10) + 1, 100_000, 300_000, 7, 2 * PAGE, 16];
    let objects: Vec<(GlobalAddr, u64)> = lens
        .iter()
        .enumerate()
        .flat_map(|(index, len)| {
            let homes = if index % 2 == 0 { [0, 1] } else { [1, 0] };
            homes.map(|home: usize| (racks[home].alloc(*len).unwrap(), *len))
        })
        .collect();
    let bytes = |tag: u64| -> Vec<Vec<u8>> {
        let of = |(addr, len): &(GlobalAddr, u64)| {
            contents::of(addr.raw() ^ tag, usize::try_from(*len).unwrap())
        };
        objects.iter().map(of).collect()
    };
    for (tag, rack) in [(1, &racks[0]), (2, &racks[1])] {
        let wanted = bytes(tag);
        let writes: Vec<WriteRequest<'_>> = objects
            .iter()
            .zip(&wanted)
            .map(|((addr, _), from)| WriteRequest { addr: *addr, from })
            .collect();
        rack.write_batch(&writes).unwrap();
        for reader in &racks {
            let mut found: Vec<Vec<u8>> = wanted.iter().map(|b| vec![0; b.len()]).collect();
            let mut reads: Vec<ReadRequest<'_>> = objects
                .iter()
                .zip(&mut found)
                .map(|((addr, _), into)| ReadRequest { addr: *addr, into })
                .collect();
            reader.read_batch(&mut reads).unwrap();
            assert!(found == wanted, "a batch read something else than was written");
        }
    }
}

#[test]
fn batches_are_done_in_their_order() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let cells = [racks[0].alloc(8).unwrap(), racks[1].alloc(8).unwrap()];
    let numbers: Vec<[u8; 8]> = (0_u64..200).map(u64::to_le_bytes).collect();
    let writes: Vec<WriteRequest<'_>> = numbers
        .iter()
        .flat_map(|number| cells.map(|addr| WriteRequest { addr, from: number }))
        .collect();
    racks[0].write_batch(&writes).unwrap();
    for addr in cells {
        let mut found = [0; 8];
        racks[0].read(addr, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), 199, "{addr}");
    }
}

#[test]
fn what_stands_before_a_wrong_request_of_a_batch_is_done() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let remote = racks[1].alloc(8).unwrap();
    racks[0].write(remote, &[0; 8]).unwrap();
    let wrong: [(GlobalAddr, &[u8]); 3] =
        [(remote, &[]), (GlobalAddr::NULL, &[1]), (GlobalAddr::from_raw(u64::MAX), &[1])];
    for (tag, (addr, from)) in (1_u8..).zip(wrong) {
        let writes = [WriteRequest { addr: remote, from: &[tag; 8] }, WriteRequest { addr, from }];
        racks[0].write_batch(&writes).unwrap_err();
        let mut found = [0; 8];
        racks[0].read(remote, &mut found).unwrap();
        assert_eq!(found, [tag; 8], "the write before the wrong one to {addr}");
    }
}

#[test]
fn pages_used_anew_are_known_by_their_new_use() {
    // One rack is so small that its pages must be reused.
    let pool = TestPool::start(4 * PAGE, PAGE);
    let racks = [pool.open(0), pool.open(1)];
    for (home, user) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
        let (home, user) = (&racks[home], &racks[user]);
        // The user caches translations of all pages while they hold small objects.
        let small: Vec<_> = (0..4 * PAGE / 4096).map(|_| home.alloc(4096).unwrap()).collect();
        for addr in &small {
            contents::write(user, *addr, 4096);
        }
        small.iter().for_each(|addr| home.free(*addr).unwrap());
        let run = home.alloc(3 * PAGE).unwrap();
        contents::write(user, run, 3 * PAGE);
        contents::check(home, run, 3 * PAGE);
        user.free(run).unwrap();
        // The same pages again, with smaller objects than before.
        let tiny: Vec<_> = (0..4 * PAGE / 512).map(|_| home.alloc(512).unwrap()).collect();
        tiny.iter().for_each(|addr| contents::write(user, *addr, 512));
        tiny.iter().for_each(|addr| user.free(*addr).unwrap());
        // Frees of another rack's objects are batched; this free sends the last ones.
        let last = home.alloc(4096).unwrap();
        user.free(last).unwrap();
    }
}

/// The value of an atomic is part of its answer, so an answer that reached another thread would
/// show.
#[test]
fn each_thread_of_a_client_gets_its_own_answers() {
    const TURNS: u64 = 300;
    let pool = TestPool::start(16 << 20, PAGE);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    std::thread::scope(|scope| {
        for thread in 1..=32_u64 {
            let racks = &racks;
            scope.spawn(move || {
                let (counter, object) = (racks[1].alloc(8).unwrap(), racks[1].alloc(64).unwrap());
                racks[0].write(counter, &(thread << 32).to_le_bytes()).unwrap();
                contents::write(&racks[0], object, 64);
                for turn in 0..TURNS {
                    assert_eq!(racks[0].fetch_and_add(counter, 1), Ok((thread << 32) + turn));
                    contents::check(&racks[0], object, 64);
                }
            });
        }
    });
}

/// A pool whose data planes poll for `poll_ms` milliseconds after the last request.
fn polling(poll_ms: u32) -> TestPool {
    TestPool::with(|options| {
        options.daemon_arguments.push(("--poll-ms", poll_ms.to_string()));
    })
}

#[test]
fn data_planes_that_poll_have_not_slept_since_they_began() {
    // With a shorter time they would have slept while the pool started.
    let pool = polling(3_600_000);
    let racks = [pool.open(0), pool.open(1)];
    let object = racks[1].alloc(64).unwrap();
    for _ in 0..20 {
        contents::write(&racks[0], object, 64);
        contents::check(&racks[0], object, 64);
    }
    assert_eq!([0, 1].map(|rack| pool.status(rack).sleeps), [0, 0]);
    assert_eq!(pool.status(0).clients, 1, "figures are those of now");
}

#[test]
fn data_planes_that_poll_sleep_when_nobody_has_asked_for_a_while() {
    const POLL: Duration = Duration::from_secs(2);
    let pool = polling(POLL.as_millis().try_into().unwrap());
    let rack = pool.open(0);
    contents::write(&rack, rack.alloc(64).unwrap(), 64);
    let (sleeps, asked) = (pool.status(0).sleeps, Instant::now());
    contents::write(&rack, rack.alloc(64).unwrap(), 64);
    wait_until("its time is over", TIMEOUT, || pool.status(0).sleeps > sleeps);
    assert!(asked.elapsed() >= POLL, "it slept after {:?}", asked.elapsed());
    contents::write(&rack, rack.alloc(64).unwrap(), 64);
}
