//! Objects that are freed twice, by any threads, programs and racks: one of the frees is refused,
//! and the object is not handed out twice.

use std::collections::BTreeSet;
use std::sync::Barrier;

use rackpool_client::{FreeError, GlobalAddr, Pool};
use rackpool_testing::wait::TIMEOUT;
use rackpool_tests::pool::{PAGE, TestPool};

/// A size of each kind: small, with bits in the header, a whole page, a run of pages.
const SIZES: [u64; 5] = [16, 200, 8000, PAGE, 3 * PAGE];

/// Frees in another thread, which keeps its magazines until `then` is done.
fn while_another_thread_holds(pool: &Pool, addr: GlobalAddr, then: impl FnOnce()) {
    let (freed, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let told = pool.free(addr);
            freed.wait();
            done.wait();
            told
        });
        freed.wait();
        then();
        done.wait();
        assert_eq!(thread.join().expect("a thread that does not panic"), Ok(()));
    });
}

fn refused(addr: GlobalAddr) -> Result<(), FreeError> {
    Err(FreeError::NotAllocated(addr))
}

#[test]
fn an_object_that_two_threads_free_has_one_owner() {
    let pool = TestPool::small();
    let rack = pool.open(0);
    for size in SIZES {
        let addr = rack.alloc(size).unwrap();
        while_another_thread_holds(&rack, addr, || {
            assert_eq!(rack.free(addr), refused(addr), "{size} B");
            assert_eq!(rack.free(addr), refused(addr), "{size} B, once more");
            let program = pool.open(0);
            assert_eq!(program.free(addr), refused(addr), "{size} B, another program");
            let objects: BTreeSet<_> = (0..64).map(|_| rack.alloc(16).unwrap()).collect();
            assert_eq!(objects.len(), 64, "{size} B");
            objects.iter().for_each(|object| rack.free(*object).unwrap());
            program.close();
        });
    }
    // Many objects freed by all threads at once: each is freed by one of them.
    let addrs: Vec<GlobalAddr> = (0..200).map(|_| rack.alloc(64).unwrap()).collect();
    let start = Barrier::new(4);
    let freed = std::thread::scope(|scope| {
        let free_all = || {
            start.wait();
            addrs.iter().filter(|addr| rack.free(**addr).is_ok()).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(free_all)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(freed, addrs.len());
    let again: BTreeSet<_> = (0..400).map(|_| rack.alloc(64).unwrap()).collect();
    assert_eq!(again.len(), 400, "an object has two owners");
    again.iter().for_each(|addr| rack.free(*addr).unwrap());
    rack.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// Bytes of objects whose frees are sent home at once, from another rack as well.
const PROMPT: u64 = 8000;

#[test]
fn what_waits_in_a_magazine_is_freed_by_nobody_else() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let earlier = pool.open(0);
    let known: Vec<GlobalAddr> = (0..16).map(|_| earlier.alloc(PROMPT).unwrap()).collect();
    known.iter().for_each(|addr| earlier.free(*addr).unwrap());
    earlier.close();
    // This thread receives several of the objects at once and hands one out.
    let racks = [pool.open(0), pool.open(1)];
    let own = racks[0].alloc(PROMPT).unwrap();
    assert!(known.contains(&own));
    let program = pool.open(0);
    for addr in known.iter().copied().filter(|addr| *addr != own) {
        assert_eq!(program.free(addr), refused(addr), "by another program");
        assert_eq!(racks[1].free(addr), refused(addr), "by another rack");
        assert_eq!(racks[0].free(addr), refused(addr), "by the thread that keeps it");
    }
    let rest: BTreeSet<_> = (0..40).map(|_| racks[0].alloc(PROMPT).unwrap()).collect();
    assert!(rest.len() == 40 && !rest.contains(&own));
    rest.iter().for_each(|addr| racks[1].free(*addr).unwrap());
    racks[1].free(own).unwrap();
    racks.into_iter().chain([program]).for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn marks_outlive_the_daemon_and_the_client() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    let mut client = pool.client(0, &["serve"]);
    let addr = client.alloc(64);
    assert_eq!(client.ask(&format!("free {:x}", addr.raw())), "ok");
    assert_eq!(own.free(addr), refused(addr), "the client keeps it");
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    assert_eq!(own.free(addr), refused(addr), "the client still keeps it");
    client.kill();
    pool.wait_allocated("what the client kept is back", TIMEOUT, [0, 0]);
    assert_eq!(own.free(addr), refused(addr), "it is free");
    let objects: BTreeSet<_> = (0..64).map(|_| own.alloc(64).unwrap()).collect();
    assert_eq!(objects.len(), 64);
    objects.iter().for_each(|object| own.free(*object).unwrap());
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}
