//! Several daemons serve one rack: its clients use all of its memory with loads and stores, and go
//! on when one of the daemons is killed.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rackpool_client::{
    AccessError, ClientOptions, CompareAndSwap, FreeError, GlobalAddr, LockError, OpenError, Pool,
    RackId, ReadRequest, within,
};
use rackpool_cluster::ClusterOptions;
use rackpool_objects::{CreateOptions, Store};
use rackpool_shm::memory::MemoryKind;
use rackpool_testing::StopAtEnd;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

/// Bytes of each object.
const BYTES: u64 = 64;

/// Two racks with two daemons each: 0 and 1, 2 and 3.
fn two_by_two(change: impl FnOnce(&mut ClusterOptions)) -> TestPool {
    let pool = TestPool::with(|options| {
        (options.daemons, options.memory, options.lease_ms) = (2, 32 << 20, 20_000);
        change(options);
    });
    let all: Vec<Pool> = (0..4).map(|daemon| pool.open(daemon)).collect();
    let addrs: Vec<GlobalAddr> = all.iter().map(|own| own.alloc(BYTES).unwrap()).collect();
    for (own, addr) in all.iter().flat_map(|own| addrs.iter().map(move |addr| (own, *addr))) {
        wait_for("the daemons meet", TIMEOUT, || own.is_local(addr).ok());
    }
    all.iter().zip(addrs).for_each(|(own, addr)| own.free(addr).unwrap());
    pool
}

/// Options of a client of a rack, whichever of its daemons it gets.
fn any_of(pool: &TestPool, daemon: u16) -> ClientOptions {
    pool.options(daemon).exact_daemon(false)
}

fn read(pool: &Pool, addr: GlobalAddr) -> Result<u64, AccessError> {
    let mut bytes = [0; 8];
    pool.read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
}

fn write(pool: &Pool, addr: GlobalAddr, value: u64) {
    pool.write(addr, &value.to_le_bytes()).unwrap();
}

/// The requests of clients to a daemon so far, and the operations in other racks among them.
fn requests(pool: &TestPool, daemon: u16) -> [u64; 2] {
    let status = pool.status(daemon);
    [status.requests, status.remote_operations]
}

#[test]
fn a_client_uses_the_memory_of_all_daemons_with_loads_and_stores() {
    let pool = two_by_two(|_| {});
    let [own, sibling] = [pool.open(0), pool.open(1)];
    let addrs = [own.alloc(BYTES).unwrap(), sibling.alloc(BYTES).unwrap()];
    // The places of the pages are asked for once.
    for addr in addrs {
        write(&own, addr, 0);
        write(&sibling, addr, 0);
    }
    let before = [0, 1].map(|daemon| requests(&pool, daemon));
    for client in [&own, &sibling] {
        for addr in addrs {
            let seen = read(client, addr).unwrap();
            assert!(client.is_local(addr).unwrap());
            assert_eq!(client.fetch_and_add(addr, 5).unwrap(), seen);
            let request = CompareAndSwap { addr, expected: seen + 5, new: seen + 7 };
            assert_eq!(client.compare_and_swap_batch(&[request]).unwrap(), [seen + 5]);
            let guard = client.write_lock(addr, 8).unwrap();
            guard.write(addr, &(seen + 9).to_le_bytes()).unwrap();
            guard.unlock().unwrap();
            let mut found = [[0; 8]; 2];
            let [first, second] = &mut found;
            let other = addrs[usize::from(addr == addrs[0])];
            client
                .read_batch(&mut [
                    ReadRequest { addr, into: first },
                    ReadRequest { addr: other, into: second },
                ])
                .unwrap();
            assert_eq!(u64::from_le_bytes(found[0]), seen + 9);
        }
    }
    assert_eq!([0, 1].map(|daemon| requests(&pool, daemon)), before, "no daemon took part");
    assert_eq!(addrs.map(|addr| read(&own, addr).unwrap()), [18, 18]);
    assert_eq!(pool.status(0).siblings, [RackId(1)]);
    assert_eq!(pool.status(3).siblings, [RackId(2)]);
}

#[test]
fn an_object_of_a_sibling_is_freed_once() {
    let pool = two_by_two(|_| {});
    for checked in [false, true] {
        let open = |daemon| Pool::open(pool.options(daemon).checked(checked)).unwrap();
        let [own, sibling] = [open(0), open(1)];
        let addr = sibling.alloc(BYTES).unwrap();
        write(&own, addr, 1);
        own.free(addr).unwrap();
        assert_eq!(own.free(addr), Err(FreeError::NotAllocated(addr)));
        assert_eq!(sibling.free(addr), Err(FreeError::NotAllocated(addr)));
        if checked {
            assert_eq!(read(&own, addr), Err(AccessError::NotAllocated(addr)));
        }
    }
    pool.wait_allocated("all was freed", TIMEOUT, [0, 0]);
}

#[test]
fn a_store_has_its_objects_in_all_parts() {
    let pool = two_by_two(|_| {});
    let stores = [0, 1, 2]
        .map(|daemon| Store::open_or_create(Arc::new(pool.open(daemon)), "objects").unwrap());
    for (tag, len) in [(1, 100), (2, 3 * 65_536)] {
        let bytes = contents::of(tag, len);
        for (creator, store) in stores.iter().enumerate() {
            let id = format!("{tag} of {creator}");
            store.put(id.as_bytes(), &bytes, &CreateOptions::default()).unwrap();
            for reader in &stores {
                for _ in 0..2 {
                    let view = reader.get(id.as_bytes()).unwrap().unwrap();
                    assert!(view[..] == bytes, "{id}");
                }
            }
            assert!(stores[(creator + 1) % 3].delete(id.as_bytes()).unwrap());
            assert!(stores.iter().all(|reader| reader.get(id.as_bytes()).unwrap().is_none()));
        }
    }
}

#[test]
fn a_guard_of_a_daemon_that_lost_its_memory_gives_up_no_other_lock() {
    let mut pool = two_by_two(|options| options.memory_kind = MemoryKind::Memfd);
    let [own, other] = [pool.open(0), pool.open(2)];
    let lost = pool.open(1).alloc(BYTES).unwrap();
    let first = own.write_lock(lost, 8).unwrap();
    pool.kill_daemon(1);
    pool.restart_daemon(1);
    let why = wait_for("the loss is noticed", TIMEOUT, || first.write(lost, &[1; 8]).err());
    assert!(matches!(why, AccessError::LockLost(_)), "{why:?}");
    let sibling = pool.open(1);
    let addr = wait_for("the part is used again", TIMEOUT, || {
        let addr = sibling.alloc(BYTES).ok()?;
        own.write_lock(addr, 8).ok().filter(|_| own.is_local(addr) == Ok(true)).map(|_| addr)
    });
    let second = own.write_lock(addr, 8).unwrap();
    assert!(matches!(first.write(lost, &[1; 8]), Err(AccessError::LockLost(_))));
    assert!(matches!(first.unlock(), Err(AccessError::LockLost(_))));
    assert!(other.try_write_lock(addr, 8).unwrap().is_none(), "the second lock is held");
    second.unlock().unwrap();
    assert!(other.try_write_lock(addr, 8).unwrap().is_some());
}

#[test]
fn a_thread_does_not_wait_for_a_lock_that_it_has_at_another_daemon() {
    let pool = two_by_two(|_| {});
    let [own, sibling] = [pool.open(0), pool.open(1)];
    let addrs = [own.alloc(BYTES).unwrap(), sibling.alloc(BYTES).unwrap()];
    for addr in addrs {
        let guard = own.write_lock(addr, 8).unwrap();
        assert!(matches!(own.read_lock(addr, 8), Err(LockError::AlreadyHeld(_))));
        guard.unlock().unwrap();
    }
}

#[test]
fn a_stopped_sibling_delays_only_what_needs_it() {
    let mut pool = two_by_two(|_| {});
    let [own, other] = [pool.open(0), pool.open(2)];
    let [near, far] = [own.alloc(BYTES).unwrap(), other.alloc(BYTES).unwrap()];
    let sibling = pool.open(1);
    let beside = sibling.alloc(BYTES).unwrap();
    write(&sibling, beside, 4);
    pool.stop_daemon(1);
    let began = Instant::now();
    // The card of the stopped daemon may serve it, or its processor is needed.
    let found = within(Duration::from_secs(1), || read(&own, beside));
    assert!(found == Ok(4) || matches!(found, Err(AccessError::Daemon(_))), "{found:?}");
    for addr in [near, far] {
        write(&own, addr, 5);
        assert_eq!(read(&own, addr), Ok(5));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    pool.resume_daemon(1);
    write(&own, beside, 6);
    assert_eq!(read(&own, beside), Ok(6));
}

/// Regression: locks and frees waited for the daemon of the part, as if it were the own one.
#[test]
fn what_needs_a_dead_sibling_is_told_so_as_for_another_rack() {
    let mut pool = two_by_two(|options| options.lease_ms = 2000);
    let [own, sibling] = [pool.open(0), pool.open(1)];
    let addrs = [(); 3].map(|()| sibling.alloc(PAGE).unwrap());
    // The client knows where the pages are, and has not used them.
    assert!(addrs.iter().all(|addr| own.is_local(*addr).unwrap()));
    pool.kill_daemon(1);
    wait_until("the client notices", TIMEOUT, || sibling.check_served().is_err());
    // This client has a connection of its own to the daemon. Until that ends, it reads the memory,
    // which stays.
    let read = wait_for("this client notices, too", TIMEOUT, || {
        Some(read(&own, addrs[0])).filter(|found| *found != Ok(0))
    });
    assert_eq!(read, Err(AccessError::RackUnavailable(RackId(1))));
    let began = Instant::now();
    let lock = own.write_lock_within(addrs[1], 8, TIMEOUT).map(drop);
    assert!(matches!(lock, Err(LockError::Access(_))), "{lock:?}");
    // The own daemon may keep it, and give it back when the other one is there.
    let gone = FreeError::Access(AccessError::RackUnavailable(RackId(1)));
    let free = own.free(addrs[2]);
    assert!(free == Ok(()) || free == Err(gone), "{free:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    pool.restart_daemon(1);
    let left = if free == Ok(()) { &addrs[..2] } else { &addrs[..] };
    for addr in left {
        wait_for("the page can be freed", TIMEOUT, || own.free(*addr).ok());
    }
    drop([own, sibling]);
    pool.wait_allocated("all was freed", TIMEOUT, [0, 0]);
}

#[test]
fn clients_are_spread_over_the_daemons_of_their_rack() {
    let pool = two_by_two(|_| {});
    let clients: Vec<Pool> = (0..4).map(|_| Pool::open(any_of(&pool, 2)).unwrap()).collect();
    let daemons: Vec<u16> = clients.iter().map(|client| client.rack().0).collect();
    assert_eq!(daemons.iter().filter(|daemon| **daemon == 2).count(), 2, "{daemons:?}");
    assert_eq!(daemons.iter().filter(|daemon| **daemon == 3).count(), 2, "{daemons:?}");
}

#[test]
fn a_full_part_takes_memory_of_its_sibling_first() {
    let pool = two_by_two(|_| {});
    let own = pool.open(0);
    wait_until("the free memory of all is known", TIMEOUT, || {
        let status = pool.status(0);
        // A daemon keeps a page or two for small objects.
        status.other_free_frames + 16 > status.other_frames
    });
    let mut objects = Vec::new();
    while pool.status(1).allocated_bytes == 0 {
        objects.push(own.alloc(PAGE).unwrap());
        assert!(objects.len() < 1000, "the sibling is never asked");
    }
    assert_eq!([2, 3].map(|daemon| pool.status(daemon).allocated_bytes), [0, 0]);
    assert!(own.is_local(*objects.last().unwrap()).unwrap());
    objects.into_iter().for_each(|object| own.free(object).unwrap());
    own.close();
    pool.wait_allocated("all was freed", TIMEOUT, [0, 0]);
}

#[test]
fn no_update_is_lost_while_pages_move_between_racks_with_several_daemons() {
    const TURNS: u64 = 400;
    let pool = two_by_two(|options| {
        options.daemon_arguments =
            [("--hot", "1.5"), ("--read-hot", "0.9"), ("--rest-ms", "0"), ("--swap-pause-ms", "1")]
                .map(|(name, value)| (name, value.to_owned()))
                .into();
    });
    let clients = [0, 1, 2, 3].map(|daemon| pool.open(daemon));
    let addrs: Vec<GlobalAddr> = clients.iter().map(|own| own.alloc(BYTES).unwrap()).collect();
    for (own, addr) in clients.iter().zip(&addrs) {
        own.write(*addr, &[0; 64]).unwrap();
    }
    let (began, mut rounds) = (Instant::now(), 0);
    let has_moved = || (0..4).any(|daemon| pool.status(daemon).swaps.arrived > 0);
    while rounds < 2 || !has_moved() {
        assert!(began.elapsed() < TIMEOUT, "no page has moved");
        std::thread::scope(|scope| {
            for (index, client) in clients.iter().enumerate() {
                let addrs = &addrs;
                scope.spawn(move || {
                    for turn in 1..=TURNS {
                        for addr in addrs {
                            client.fetch_and_add(*addr, 1).unwrap();
                            let own = addr.add(16 + 8 * index as u64).unwrap();
                            write(client, own, rounds * TURNS + turn);
                            assert_eq!(read(client, own).unwrap(), rounds * TURNS + turn);
                            let guard = client.write_lock(addr.add(8).unwrap(), 8).unwrap();
                            let mut bytes = [0; 8];
                            guard.read(addr.add(8).unwrap(), &mut bytes).unwrap();
                            let next = u64::from_le_bytes(bytes) + 1;
                            guard.write(addr.add(8).unwrap(), &next.to_le_bytes()).unwrap();
                            guard.unlock().unwrap();
                        }
                    }
                });
            }
        });
        rounds += 1;
    }
    let total = rounds * TURNS * clients.len() as u64;
    for (client, addr) in clients.iter().flat_map(|client| addrs.iter().map(move |a| (client, *a)))
    {
        assert_eq!(read(client, addr).unwrap(), total);
        assert_eq!(read(client, addr.add(8).unwrap()).unwrap(), total);
    }
}

#[test]
fn the_kill_of_one_daemon_leaves_the_others_serving() {
    let mut pool = two_by_two(|_| {});
    let [own, sibling, other] = [0, 1, 2].map(|daemon| pool.open(daemon));
    let known = [&own, &sibling, &other].map(|client| client.alloc(BYTES).unwrap());
    for (value, addr) in known.into_iter().enumerate() {
        write(&own, addr, value as u64);
    }
    // Pages whose place the client has not asked for before the kill.
    let unknown = [&sibling, &other].map(|client| client.alloc(2 * PAGE).unwrap());
    pool.kill_daemon(0);
    wait_until("the client notices", TIMEOUT, || own.check_served().is_err());

    let began = Instant::now();
    for (value, addr) in known.into_iter().enumerate() {
        assert_eq!(read(&own, addr).unwrap(), value as u64);
        write(&own, addr, 10 + value as u64);
        assert_eq!(own.fetch_and_add(addr, 10).unwrap(), 10 + value as u64);
    }
    for addr in unknown {
        write(&own, addr, 7);
        assert_eq!(read(&sibling, addr).unwrap(), 7);
    }
    let made = std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let made = own.alloc(BYTES).unwrap();
            write(&own, made, 3);
            own.read_batch(&mut [
                ReadRequest { addr: known[2], into: &mut [0; 8] },
                ReadRequest { addr: known[1], into: &mut [0; 8] },
            ])
            .unwrap();
            made
        });
        made.join().unwrap()
    });
    assert_eq!(read(&sibling, made).unwrap(), 3);
    own.free(made).unwrap();
    let new = Pool::open(any_of(&pool, 0)).unwrap();
    assert_eq!(new.rack(), RackId(1), "a new client takes the one that serves");
    let refused = Pool::open(pool.options(0));
    assert!(matches!(refused, Err(OpenError::Connect { .. })), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "nothing waited for the killed daemon");

    pool.restart_daemon(0);
    wait_until("the daemon serves again", TIMEOUT, || own.check_served().is_ok());
    let before = pool.status(0).remote_operations;
    for (value, addr) in known.into_iter().enumerate() {
        assert_eq!(read(&own, addr).unwrap(), 20 + value as u64);
    }
    write(&own, unknown[1], 8);
    assert!(pool.status(0).remote_operations > before, "it uses its own daemon again");
    assert_eq!(read(&other, unknown[1]).unwrap(), 8);
}

#[test]
fn no_acknowledged_write_is_lost_while_daemons_of_a_rack_are_killed() {
    const ROUNDS: u16 = 8;
    let mut pool = two_by_two(|options| options.lease_ms = 2000);
    let clients = [0, 1, 2].map(|daemon| pool.open(daemon));
    let addrs: Vec<GlobalAddr> =
        [&clients[0], &clients[1], &clients[2]].map(|own| own.alloc(BYTES).unwrap()).into();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stop = StopAtEnd(&stop);
        for (index, client) in clients[..2].iter().enumerate() {
            let (addrs, done, stop) = (&addrs, &done, stop.0);
            scope.spawn(move || {
                let mut value = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    value += 1;
                    for addr in addrs {
                        let own = addr.add(8 * index as u64).unwrap();
                        if client.write(own, &value.to_le_bytes()).is_ok() {
                            let found = read(client, own);
                            assert!(found.is_err() || found == Ok(value), "{found:?}, not {value}");
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            let before = done.load(Ordering::Relaxed);
            wait_until("work is done", TIMEOUT, || done.load(Ordering::Relaxed) > before + 100);
            pool.kill_daemon(round % 2);
            let before = done.load(Ordering::Relaxed);
            wait_until("work goes on", TIMEOUT, || done.load(Ordering::Relaxed) > before + 100);
            pool.restart_daemon(round % 2);
            // What goes through a sibling meanwhile would wait for that one after its kill.
            let are_served = || clients.iter().all(|client| client.check_served().is_ok());
            wait_until("both are served", TIMEOUT, are_served);
        }
    });
    for addr in addrs {
        let seen: BTreeSet<_> = clients.iter().map(|client| read(client, addr).unwrap()).collect();
        assert_eq!(seen.len(), 1, "all clients see the same");
    }
}

#[test]
fn what_a_killed_client_held_in_each_part_comes_back() {
    let pool = two_by_two(|_| {});
    let own = pool.open(1);
    let mut client = pool.client(0, &["serve"]);
    let addrs: Vec<GlobalAddr> = (0..100).map(|_| own.alloc(BYTES).unwrap()).collect();
    for addr in &addrs {
        assert_eq!(client.ask(&format!("free {:x}", addr.raw())), "ok");
    }
    // What it has allocated itself stays allocated; what it holds free goes back.
    let made = client.alloc(BYTES);
    client.kill();
    own.free(made).unwrap();
    own.close();
    pool.wait_allocated("all was given back", TIMEOUT, [0, 0]);
}
