//! A daemon that does not empty its clients' rings: requests wait, fail in time, and are not lost.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, CompareAndSwap, DaemonError, GlobalAddr, Pool};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::pool::{PAGE, TestPool};

/// The request timeout of this test.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Entries of a client's ring: docs/design/messages.md.
const ENTRIES: usize = 1024;
/// Requests that a thread posts together.
const BATCH: usize = 15;
/// More threads than the ring has room for.
const CLIENTS: usize = 80;
/// Threads that post when the ring is full.
const LATE: usize = 8;

const _: () = assert!(CLIENTS * BATCH > ENTRIES + BATCH);

/// Bytes of an object with `BATCH` words.
const OBJECT: usize = BATCH * 8;

fn words(pool: &Pool, addr: GlobalAddr) -> [u64; BATCH] {
    let mut bytes = [0; OBJECT];
    pool.read(addr, &mut bytes).unwrap();
    std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap()))
}

/// Swaps every word of an object from 0 to 1, in one batch.
fn swap_all(pool: &Pool, addr: GlobalAddr) -> Result<Vec<u64>, AccessError> {
    let word = |at: u64| GlobalAddr::from_raw(addr.raw() + at * 8);
    let swaps = (0..BATCH as u64).map(|at| CompareAndSwap { addr: word(at), expected: 0, new: 1 });
    pool.compare_and_swap_batch(&swaps.collect::<Vec<_>>())
}

/// `CLIENTS` threads post more requests to a stopped daemon than its ring holds. Each waits for the
/// request timeout, and the error says what to do. The objects show later how many batches found
/// room.
fn ask_a_stopped_daemon(pool: &mut TestPool, near: &Pool, objects: &[GlobalAddr]) {
    let ready = Barrier::new(objects.len() + 1);
    std::thread::scope(|scope| {
        for addr in objects {
            let ready = &ready;
            scope.spawn(move || {
                // After this read the translation is cached, so the thread posts only the swaps.
                assert_eq!(words(near, *addr), [0; BATCH]);
                ready.wait();
                ready.wait();
                let began = Instant::now();
                let refused = swap_all(near, *addr).unwrap_err();
                assert!(began.elapsed() >= REQUEST_TIMEOUT, "given up after {:?}", began.elapsed());
                assert_eq!(refused, AccessError::Daemon(DaemonError::Unavailable));
                let said = DaemonError::Unavailable.to_string();
                assert!(said.contains("raise the request timeout"), "{said}");
            });
        }
        ready.wait();
        pool.stop_daemon(0);
        ready.wait();
    });
}

#[test]
fn clients_of_a_full_ring_wait_are_told_in_time_and_go_on_when_there_is_room() {
    let mut pool = TestPool::start(16 << 20, PAGE);
    pool.wait_until_racks_meet();
    let home = pool.open(1);
    let near = Pool::open(pool.options(0).threads(512).request_timeout(REQUEST_TIMEOUT)).unwrap();
    let object = |_| {
        let addr = home.alloc(OBJECT as u64).unwrap();
        home.write(addr, &[0; OBJECT]).unwrap();
        addr
    };
    let objects: Vec<GlobalAddr> = (0..CLIENTS).map(object).collect();
    let later: Vec<GlobalAddr> = (0..LATE).map(object).collect();
    ask_a_stopped_daemon(&mut pool, &near, &objects);
    assert!(objects.iter().all(|addr| words(&home, *addr) == [0; BATCH]), "somebody served");

    // The ring has no room for a batch, and for few other requests: new requests wait, or are
    // retried, until the daemon goes on.
    let begun = Barrier::new(LATE + 1);
    std::thread::scope(|scope| {
        for (value, addr) in (1_u8..).zip(&later) {
            let (near, begun) = (&near, &begun);
            scope.spawn(move || {
                begun.wait();
                let deadline = Instant::now() + TIMEOUT;
                while near.write(*addr, &[value; OBJECT]).is_err() {
                    assert!(Instant::now() < deadline, "it does not go on");
                }
            });
        }
        begun.wait();
        pool.resume_daemon(0);
    });
    for (value, addr) in (1_u8..).zip(&later) {
        assert_eq!(words(&home, *addr), [u64::from_le_bytes([value; 8]); BATCH]);
    }

    // Batches that found no room are never executed. Batches that did are executed soon, except
    // atomics that were under way when the other rack cut off this one for having been stopped for
    // too long.
    let is_touched = |addr: &&GlobalAddr| words(&home, **addr) != [0; BATCH];
    let touched = || objects.iter().filter(is_touched).count();
    wait_until("some of what was posted is carried out", TIMEOUT, || touched() > 0);
    assert!(touched() <= ENTRIES / BATCH, "{} batches of what was refused", touched());

    // The threads whose requests failed can go on.
    for addr in &objects {
        wait_until("it goes on", TIMEOUT, || swap_all(&near, *addr).is_ok());
        assert_eq!(words(&home, *addr), [1; BATCH]);
    }
    objects.into_iter().chain(later).for_each(|addr| home.free(addr).unwrap());
    near.close();
    home.close();
    pool.wait_allocated("everything is free", TIMEOUT, [0, 0]);
}
