//! More threads than a client has slots, and operations with a time limit.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Barrier;
use std::time::Duration;

use rackpool_client::{
    AllocError, DaemonError, GlobalAddr, Pool, PublishCas, PublishMode, RootError, within,
};
use rackpool_testing::wait::TIMEOUT;
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;

/// Slots that a client has beside those of its threads: docs of `ClientOptions::threads`.
const SPARE: u16 = 4;
const CLIENTS: usize = 40;
/// The least time that a client waits for a daemon by itself.
const CLIENTS_OWN: Duration = Duration::from_secs(10);
const LENGTHS: [usize; 3] = [64, 5000, 200_000];

/// A client whose two thread slots are taken: by the calling thread, and by one that lives as long
/// as the call.
fn with_all_slots_taken(pool: &TestPool, work: impl FnOnce(&Pool)) {
    let own = Pool::open(pool.options(0).threads(2)).unwrap();
    let (taken, done) = (Barrier::new(2), Barrier::new(2));
    own.ping().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            own.ping().unwrap();
            taken.wait();
            done.wait();
        });
        taken.wait();
        work(&own);
        done.wait();
    });
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// Pushes a new first element onto a list; the second word of an element holds the address of the
/// next one.
fn push(pool: &Pool, head: GlobalAddr) {
    let mut reservation = pool.reserve(64).unwrap();
    loop {
        let mut next = [0; 8];
        pool.read(head, &mut next).unwrap();
        pool.write(reservation.addr(), &[reservation.token().to_le_bytes(), next].concat())
            .unwrap();
        let (expected, new) = (u64::from_le_bytes(next), reservation.addr().raw());
        let (mask, replaced, mode) = (u64::MAX, None, PublishMode::Plain);
        let link = PublishCas { addr: head, expected, new, mask, replaced, mode };
        if pool.publish(&mut reservation, &link).unwrap() == expected {
            return pool.finish(reservation).unwrap();
        }
    }
}

#[test]
fn threads_beyond_the_slots_borrow_one_for_each_operation() {
    let pool = TestPool::small();
    let remote = pool.open(1);
    let counters = [pool.open(0).alloc(8).unwrap(), remote.alloc(8).unwrap()];
    let head = remote.alloc(8).unwrap();
    [counters[0], counters[1], head].iter().for_each(|word| remote.write(*word, &[0; 8]).unwrap());
    with_all_slots_taken(&pool, |own| {
        let all_live = Barrier::new(CLIENTS);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    for len in LENGTHS {
                        let addr = own.alloc(len as u64).unwrap();
                        contents::write(own, addr, len as u64);
                        contents::check(own, addr, len as u64);
                        own.free(addr).unwrap();
                    }
                    for word in counters {
                        own.fetch_and_add(word, 1).unwrap();
                    }
                    push(own, head);
                    all_live.wait();
                });
            }
        });
        for word in counters {
            assert_eq!(remote.fetch_and_add(word, 0).unwrap(), CLIENTS as u64);
        }
        let mut bytes = [0; 8];
        remote.read(head, &mut bytes).unwrap();
        let (mut at, mut elements) = (u64::from_le_bytes(bytes), 0);
        while at != 0 {
            let (addr, mut element) = (GlobalAddr::from_raw(at), [0; 16]);
            remote.read(addr, &mut element).unwrap();
            assert_eq!(element[..8], [0; 8], "it is published");
            at = u64::from_le_bytes(element[8..].try_into().unwrap());
            remote.free(addr).unwrap();
            elements += 1;
        }
        assert_eq!(elements, CLIENTS);
        counters.into_iter().chain([head]).for_each(|addr| remote.free(addr).unwrap());
        remote.close();
    });
}

/// A reservation stays with the slot in which it was made, however many operations follow.
#[test]
fn a_borrowed_slot_is_kept_while_there_are_reservations_in_it() {
    let pool = TestPool::small();
    with_all_slots_taken(&pool, |own| {
        let holders = usize::from(SPARE);
        let (made, refused) = (Barrier::new(holders + 1), Barrier::new(holders + 1));
        std::thread::scope(|scope| {
            for _ in 0..SPARE {
                scope.spawn(|| {
                    let reservations = [own.reserve(64).unwrap(), own.reserve(5000).unwrap()];
                    made.wait();
                    refused.wait();
                    let [first, second] = reservations;
                    own.finish(first).unwrap();
                    own.ping().unwrap();
                    own.finish(second).unwrap();
                });
            }
            scope.spawn(|| {
                made.wait();
                let too_many = DaemonError::TooManyThreads(2 + SPARE);
                let ping = || own.ping();
                assert_eq!(within(Duration::from_millis(50), ping), Err(too_many));
                refused.wait();
                // Other threads finish their reservations meanwhile.
                own.ping().unwrap();
            });
        });
    });
}

#[test]
fn an_operation_ends_when_its_caller_wants_though_the_daemon_has_stopped() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let (own, remote) = (pool.open(0), pool.open(1));
    let (near, far) = (own.alloc(64).unwrap(), remote.alloc(64).unwrap());
    [near, far].iter().for_each(|addr| contents::write(&own, *addr, 64));
    pool.stop_daemon(0);
    let began = std::time::Instant::now();
    let unavailable = DaemonError::Unavailable;
    within(Duration::from_millis(20), || {
        contents::check(&own, near, 64);
        assert_eq!(own.read(far, &mut [0; 64]).unwrap_err(), unavailable.clone().into());
        assert_eq!(own.write(far, &[0; 64]).unwrap_err(), unavailable.clone().into());
        assert_eq!(own.alloc(300_000), Err(AllocError::Daemon(unavailable.clone())));
        assert_eq!(own.root("name"), Err(RootError::Daemon(unavailable.clone())));
        assert_eq!(own.rack_status().unwrap_err(), unavailable);
        contents::check(&own, near, 64);
    });
    assert!(began.elapsed() < CLIENTS_OWN, "it ended when the client's own time was up");
    pool.resume_daemon(0);
    // The rest of the program has the usual time limit.
    own.write(far, &contents::of(far.raw(), 64)).unwrap();
    contents::check(&own, far, 64);
    assert_eq!(own.root("name").unwrap(), None);
    [near, far].iter().for_each(|addr| own.free(*addr).unwrap());
    own.close();
    remote.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}
