//! Locks exclude each other in all racks, pass on when their holder is killed or stands still, and
//! move with their page.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rackpool_client::{AccessError, ClientOptions, GlobalAddr, LockError, Pool, RackId};
use rackpool_testing::StopAtEnd;
use rackpool_tests::lock_rounds::{self, PAIR, counters, pair, read};
use rackpool_tests::pool::{PAGE, TestPool};

const THREADS: usize = 8;
const TURNS: u64 = 200;
/// The most time until the lock of a killed holder is passed on: less than a process may stand
/// still, and more than it takes on busy cores.
const PASSED_ON: Duration = Duration::from_secs(3);
/// The least and the most time until the lock of a process that stands still is passed on.
const LEASE: std::ops::Range<Duration> = Duration::from_secs(3)..Duration::from_secs(30);
/// A time that no test reaches.
const LONG: Duration = Duration::from_secs(60);

/// Adds 1 to both counters under their lock; they are equal before.
fn add(pool: &Pool, addr: GlobalAddr) {
    let guard = pool.write_lock(addr, PAIR).unwrap();
    let mut bytes = [0; PAIR];
    guard.read(addr, &mut bytes).unwrap();
    let [first, second] = counters(&bytes);
    assert_eq!(first, second, "another holder is writing");
    guard.write(addr, &(first + 1).to_le_bytes()).unwrap();
    guard.write(addr.add(8).unwrap(), &(first + 1).to_le_bytes()).unwrap();
    guard.unlock().unwrap();
}

/// Adds in many threads of both racks, after this many rounds of the same.
fn add_in_both_racks(pool: &TestPool, addrs: &[GlobalAddr], rounds: u64) {
    let racks = [pool.open(0), pool.open(1)];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let racks = &racks;
            scope.spawn(move || {
                (0..TURNS).for_each(|_| addrs.iter().for_each(|a| add(&racks[thread % 2], *a)));
            });
        }
    });
    let total = (rounds + 1) * TURNS * THREADS as u64;
    for addr in addrs {
        assert_eq!(read(&racks[0], *addr), [total; 2]);
    }
}

#[test]
fn no_update_under_a_lock_is_lost() {
    let pool = TestPool::start(16 << 20, PAGE);
    let addrs = [pair(&pool.open(0)), pair(&pool.open(1))];
    add_in_both_racks(&pool, &addrs, 0);
}

#[test]
fn no_update_under_a_lock_is_lost_while_pages_move() {
    let pool = TestPool::restless(16 << 20, PAGE);
    let addrs = [pair(&pool.open(0)), pair(&pool.open(1))];
    let (began, stop, mut rounds) = (Instant::now(), AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let stop = StopAtEnd(&stop);
        // A page moves only while none of its locks is held: these readers ask for it then too.
        for (rack, addr) in [(1, addrs[0]), (0, addrs[1])] {
            let (reader, stop) = (pool.open(rack), stop.0);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _found = read(&reader, addr);
                }
            });
        }
        while !pool.has_moved() {
            assert!(began.elapsed() < LONG, "no page has moved");
            add_in_both_racks(&pool, &addrs, rounds);
            rounds += 1;
        }
        add_in_both_racks(&pool, &addrs, rounds);
    });
}

#[test]
fn readers_share_a_lock_and_writers_do_not() {
    let pool = TestPool::small();
    let (here, there) = (pool.open(0), pool.open(1));
    let addr = pair(&here);
    let readers = [here.read_lock(addr, 1).unwrap(), there.read_lock(addr, 64).unwrap()];
    let other = pool.open(0);
    assert!(other.try_write_lock(addr, 1).unwrap().is_none());
    let third = other.try_read_lock(addr, 1).unwrap();
    assert!(third.is_some());
    drop((readers, third));
    let writer = other.try_write_lock(addr, 1).unwrap();
    assert!(writer.is_some_and(|writer| !writer.recovered()));
    let writer = there.write_lock(addr, 1).unwrap();
    assert!(here.try_read_lock(addr, 64).unwrap().is_none(), "bytes of a line share a lock");
    let began = Instant::now();
    let limit = Duration::from_millis(50);
    let refused = here.write_lock_within(addr, 1, limit);
    assert_eq!(refused.err(), Some(LockError::TimedOut(addr)));
    assert!(began.elapsed() >= limit);
    drop(writer);
    here.write_lock(addr, 1).unwrap().unlock().unwrap();
}

#[test]
fn what_cannot_be_locked_is_refused() {
    let pool = TestPool::small();
    let one = pool.open(0);
    let addr = one.alloc(16 << 10).unwrap();
    for home in [one.alloc(16 << 10).unwrap(), pool.open(1).alloc(16 << 10).unwrap()] {
        let guard = one.write_lock(home, 4096).unwrap();
        assert_eq!(one.read_lock(home.add(4095).unwrap(), 1).err(), {
            Some(LockError::AlreadyHeld(home.add(4095).unwrap()))
        });
        let outside = home.add(4096).unwrap();
        assert_eq!(guard.write(outside, &[1]), Err(AccessError::NotLocked(outside)));
        assert_eq!(guard.read(home, &mut [0; 4097]), Err(AccessError::NotLocked(home)));
        guard.unlock().unwrap();
        let too_large = one.write_lock(home, 4097).err();
        assert_eq!(too_large, Some(LockError::TooLarge { addr: home, len: 4097 }));
        assert!(matches!(one.read_lock(home, 0), Err(LockError::TooLarge { .. })));
    }
    let line = |index: u64| addr.add(64 * index).unwrap();
    let guards: Vec<_> = (0..32).map(|index| one.write_lock(line(index), 1).unwrap()).collect();
    assert_eq!(one.write_lock(line(32), 1).err(), Some(LockError::TooMany));
    drop(guards);
    one.write_lock(line(32), 1).unwrap().unlock().unwrap();
    one.free(addr).unwrap();
}

#[test]
fn a_killed_writers_lock_passes_on_and_says_so() {
    for home in [0, 1] {
        let pool = TestPool::small();
        let (owner, next) = (pool.open(home), pool.open(1));
        let addr = pair(&owner);
        for rack in [0, 1] {
            let mut killed = pool.client(rack, &["serve"]);
            let request = format!("write-lock {:x} 1000", addr.raw());
            assert_eq!(killed.ask(&request), "locked");
            assert!(next.try_read_lock(addr, 1).unwrap().is_none());
            killed.kill();
            let began = Instant::now();
            let guard = next.read_lock_within(addr, 1, LONG).unwrap();
            assert!(began.elapsed() < PASSED_ON, "{:?}", began.elapsed());
            assert!(guard.recovered());
            drop(guard);
            let guard = owner.write_lock(addr, 1).unwrap();
            assert!(guard.recovered(), "no writer has unlocked since");
            guard.unlock().unwrap();
            assert!(!next.write_lock(addr, 1).unwrap().recovered());
        }
    }
}

#[test]
fn killed_readers_and_waiting_clients_leave_no_lock() {
    let pool = TestPool::small();
    let (owner, next) = (pool.open(0), pool.open(1));
    let addr = pair(&owner);
    for rack in [0, 1] {
        let mut readers = [pool.client(rack, &["serve"]), pool.client(rack, &["serve"])];
        for reader in &mut readers {
            assert_eq!(reader.ask(&format!("read-lock {:x} 1000", addr.raw())), "locked");
        }
        let mut waiting = pool.client(rack, &["serve"]);
        waiting.say(&format!("write-lock {:x} 60000", addr.raw()));
        // It waits: a reader that comes later does not get in.
        while next.try_read_lock(addr, 1).unwrap().is_some() {}
        readers.iter_mut().for_each(|reader| reader.kill());
        waiting.kill();
        let began = Instant::now();
        next.write_lock_within(addr, 1, LONG).unwrap().unlock().unwrap();
        assert!(began.elapsed() < PASSED_ON, "{:?}", began.elapsed());
    }
}

#[test]
fn a_process_that_stands_still_loses_its_lock() {
    for home in [0, 1] {
        let pool = TestPool::small();
        let owner = pool.open(home);
        let addr = pair(&owner);
        let mut stopped = pool.client(0, &["serve"]);
        assert_eq!(stopped.ask(&format!("write-lock {:x} 1000", addr.raw())), "locked");
        assert_eq!(stopped.ask(&format!("write-locked {:x} 1", addr.raw())), "ok");
        stopped.signal(Signal::SIGSTOP);
        let began = Instant::now();
        let guard = owner.write_lock_within(addr, 1, LONG).unwrap();
        assert!(LEASE.contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(guard.recovered());
        let mut found = [0; 8];
        guard.read(addr, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), 1, "an accepted write is lost");
        guard.write(addr, &2_u64.to_le_bytes()).unwrap();
        stopped.signal(Signal::SIGCONT);
        let answer = stopped.ask(&format!("write-locked {:x} 3", addr.raw()));
        assert!(answer.contains("is lost"), "{answer}");
        assert!(stopped.ask("unlock").contains("is lost"));
        guard.read(addr, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), 2, "a write landed after the lock was passed on");
        guard.unlock().unwrap();
        assert_eq!(stopped.ask(&format!("write-lock {:x} 1000", addr.raw())), "locked");
        assert_eq!(stopped.ask("unlock"), "ok");
    }
}

#[test]
fn locks_of_the_own_rack_survive_their_daemon() {
    let mut pool = TestPool::small();
    let (holder, other, next) = (pool.open(0), pool.open(0), pool.open(0));
    let (own, asked) = (pair(&holder), holder.alloc(4096).unwrap());
    let first = holder.write_lock(own, 1).unwrap();
    let reader = other.read_lock(asked, 1).unwrap();
    let second = holder.read_lock(asked, 200).unwrap();
    pool.kill_daemon(0);
    first.write(own, &[1]).unwrap();
    pool.restart_daemon(0);
    for addr in [own, asked] {
        assert!(next.try_write_lock(addr, 1).unwrap().is_none());
    }
    first.unlock().unwrap();
    next.write_lock_within(own, 1, LONG).unwrap().unlock().unwrap();
    second.unlock().unwrap();
    reader.unlock().unwrap();
    next.write_lock_within(asked, 1, LONG).unwrap().unlock().unwrap();
}

/// Regression: the restarted daemon read the claims of the word before it had adopted its clients.
#[test]
fn a_reader_of_the_own_rack_is_known_after_a_restart_though_one_of_another_rack_was_too() {
    let mut pool = TestPool::small();
    let (here, there, next) = (pool.open(0), pool.open(1), pool.open(0));
    let addr = pair(&here);
    let reader = here.read_lock(addr, 1).unwrap();
    let remote = there.read_lock(addr, 1).unwrap();
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    // Locks that the killed daemon had granted to other racks have ended by then.
    let refused = next.write_lock_within(addr, 1, Duration::from_secs(9));
    assert_eq!(refused.err(), Some(LockError::TimedOut(addr)));
    reader.unlock().unwrap();
    next.write_lock_within(addr, 1, LONG).unwrap().unlock().unwrap();
    assert_eq!(remote.unlock(), Err(AccessError::LockLost(addr)));
}

#[test]
fn a_lock_of_another_rack_ends_with_either_daemon() {
    for killed in [0, 1] {
        let mut pool = TestPool::small();
        let (home, holder) = (pool.open(0), pool.open(1));
        let addr = pair(&home);
        let guard = holder.write_lock(addr, PAIR).unwrap();
        pool.kill_daemon(killed);
        pool.restart_daemon(killed);
        let next = home.write_lock_within(addr, PAIR, LONG).unwrap();
        assert!(next.recovered());
        next.write(addr, &7_u64.to_le_bytes()).unwrap();
        assert_eq!(guard.write(addr, &[1; 8]), Err(AccessError::LockLost(addr)));
        assert_eq!(guard.unlock(), Err(AccessError::LockLost(addr)));
        next.unlock().unwrap();
        assert_eq!(read(&holder, addr)[0], 7);
        holder.write_lock_within(addr, PAIR, LONG).unwrap().unlock().unwrap();
    }
}

/// Bytes of a lock that begins at `addr`, as an operation without its guard finds them.
fn found(pool: &Pool, addr: GlobalAddr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pool.read(addr, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_holder_of_another_racks_lines_sees_what_it_has_written_and_others_see_it_after_the_unlock() {
    const LEN: usize = 4096;
    let pool = TestPool::small();
    let (home, holder) = (pool.open(0), pool.open(1));
    let addr = home.alloc(LEN as u64).unwrap();
    let mut expected: Vec<u8> = (0..=u8::MAX).cycle().take(LEN).collect();
    home.write(addr, &expected).unwrap();
    let guard = holder.write_lock(addr, LEN).unwrap();
    let mut bytes = vec![0; LEN];
    let parts = [(0, 1), (63, 2), (100, 256), (90, 20), (1000, 3000), (4095, 1)];
    for (round, (at, len)) in (200..).zip(parts) {
        let before = expected.clone();
        let new = vec![round; len];
        guard.write(addr.add(at).unwrap(), &new).unwrap();
        let at = usize::try_from(at).unwrap();
        expected[at..at + len].copy_from_slice(&new);
        guard.read(addr, &mut bytes).unwrap();
        assert!(bytes == expected, "round {round}");
        assert!(found(&home, addr, LEN) == before, "round {round}: written back before the flush");
        guard.flush().unwrap();
        assert!(found(&home, addr, LEN) == expected, "round {round}");
    }
    guard.write(addr, &[1; 8]).unwrap();
    guard.unlock().unwrap();
    expected[..8].fill(1);
    assert!(found(&home, addr, LEN) == expected);
    let guard = holder.read_lock(addr, LEN).unwrap();
    guard.read(addr, &mut bytes).unwrap();
    assert!(bytes == expected);
}

/// Bytes beside the written ones belong to others, also in the same line.
#[test]
fn only_written_bytes_are_written_back() {
    let pool = TestPool::small();
    let (home, holder) = (pool.open(0), pool.open(1));
    let addr = pair(&home);
    let guard = holder.write_lock(addr, 8).unwrap();
    guard.read(addr, &mut [0; 8]).unwrap();
    guard.write(addr, &1_u64.to_le_bytes()).unwrap();
    home.fetch_and_add(addr.add(8).unwrap(), 5).unwrap();
    guard.unlock().unwrap();
    assert_eq!(read(&home, addr), [1, 5]);
}

/// Regression: bytes of two objects were checked as those of one.
#[test]
fn a_checked_client_writes_neighbouring_objects_back() {
    let pool = TestPool::small();
    let home = pool.open(0);
    let mut objects: Vec<GlobalAddr> = (0..64).map(|_| home.alloc(64).unwrap()).collect();
    objects.sort_unstable();
    let two = objects.windows(2).find(|two| two[1].raw() - two[0].raw() == 64).unwrap();
    let checked = Pool::open(ClientOptions::new(pool.dir(), RackId(1)).checked(true)).unwrap();
    let guard = checked.write_lock(two[0], 128).unwrap();
    for object in two {
        guard.write(*object, &[3; 64]).unwrap();
    }
    guard.flush().unwrap();
    assert_eq!(found(&home, two[0], 64), [3; 64]);
    assert_eq!(found(&home, two[1], 64), [3; 64]);
    guard.unlock().unwrap();
}

#[test]
fn what_a_killed_holder_has_written_is_there_for_the_next_one() {
    for home in [0, 1] {
        let pool = TestPool::small();
        let owner = pool.open(home);
        let addr = pair(&owner);
        let mut killed = pool.client(0, &["serve"]);
        assert_eq!(killed.ask(&format!("write-lock {:x} 1000", addr.raw())), "locked");
        assert_eq!(killed.ask(&format!("write-locked {:x} 5", addr.raw())), "ok");
        assert_eq!(killed.ask(&format!("write-locked {:x} 6", addr.raw() + 8)), "ok");
        killed.kill();
        let guard = owner.read_lock_within(addr, PAIR, LONG).unwrap();
        assert!(guard.recovered());
        let mut bytes = [0; PAIR];
        guard.read(addr, &mut bytes).unwrap();
        assert_eq!(counters(&bytes), [5, 6]);
    }
}

#[test]
fn cached_lines_are_not_read_after_a_writer_got_in() {
    let mut pool = TestPool::small();
    let (home, holder) = (pool.open(0), pool.open(1));
    let addr = pair(&home);
    let guard = holder.read_lock(addr, 8).unwrap();
    let mut bytes = [0; 8];
    guard.read(addr, &mut bytes).unwrap();
    // Its lock ends with the daemon; the reader is told only by the time that passes.
    pool.kill_daemon(1);
    let is_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let guard = home.write_lock_within(addr, 8, LONG).unwrap();
            guard.write(addr, &7_u64.to_le_bytes()).unwrap();
            guard.unlock().unwrap();
            is_written.store(true, Ordering::SeqCst);
            pool.restart_daemon(1);
        });
        let mut reads = 0;
        loop {
            let was_written = is_written.load(Ordering::SeqCst);
            match guard.read(addr, &mut bytes) {
                Ok(()) => assert!(!was_written, "read {bytes:?} after a writer got in"),
                Err(error) => break assert_eq!(error, AccessError::LockLost(addr)),
            }
            reads += 1;
        }
        assert!(reads > 1, "nothing was read from the cache");
        writer.join().unwrap();
    });
}

#[test]
fn programs_that_are_killed_under_locks_lose_no_acknowledged_update() {
    lock_rounds::run(&mut TestPool::start(16 << 20, PAGE), 30, 1, false);
}

#[test]
fn programs_and_daemons_that_are_killed_under_locks_lose_no_acknowledged_update() {
    lock_rounds::run(&mut TestPool::restless(16 << 20, PAGE), 20, 2, true);
}
