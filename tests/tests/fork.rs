//! Programs that fork with an open pool: operations of the child are refused, and the parent is not
//! affected.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use rackpool_client::{
    AccessError, AllocError, DaemonError, FreeError, GlobalAddr, Pool, ReadRequest, RootError,
};
use rackpool_shm::child_process;
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;

/// Runs `work` in a child process and checks that it succeeds.
fn in_a_child(work: impl FnOnce() -> Result<(), &'static str>) {
    let status = child_process::run(|| match work() {
        Ok(()) => 0,
        Err(what) => {
            eprintln!("the child: {what}");
            1
        }
    });
    assert_eq!(status.unwrap(), 0, "a check failed in the child");
}

fn check(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}

/// Checks that every operation of a child on its parent's pool is refused.
fn everything_says_so(pool: &Pool, addr: GlobalAddr) -> Result<(), &'static str> {
    let inherited = AccessError::Daemon(DaemonError::Inherited);
    let mut bytes = [0; 8];
    check(pool.read(addr, &mut bytes).as_ref() == Err(&inherited), "read")?;
    check(pool.write(addr, &[1; 8]).as_ref() == Err(&inherited), "write")?;
    let read = ReadRequest { addr, into: &mut bytes };
    check(pool.read_batch(&mut [read]).as_ref() == Err(&inherited), "read_batch")?;
    check(pool.fetch_and_add(addr, 1).as_ref() == Err(&inherited), "fetch_and_add")?;
    check(pool.compare_and_swap(addr, 0, 1).as_ref() == Err(&inherited), "compare_and_swap")?;
    check(pool.is_local(addr).as_ref() == Err(&inherited), "is_local")?;
    let none = AllocError::Daemon(DaemonError::Inherited);
    check(pool.alloc(64).as_ref() == Err(&none), "alloc")?;
    check(pool.reserve(64).err().as_ref() == Some(&none), "reserve")?;
    check(pool.free(addr) == Err(FreeError::Access(inherited)), "free")?;
    let root = RootError::Daemon(DaemonError::Inherited);
    check(pool.root("name").as_ref() == Err(&root), "root")?;
    check(pool.set_root("name", None, Some(addr)).as_ref() == Err(&root), "set_root")?;
    check(pool.rack_status().err() == Some(DaemonError::Inherited), "rack_status")?;
    check(pool.ping() == Err(DaemonError::Inherited), "ping")?;
    let other_thread = std::thread::scope(|scope| scope.spawn(|| pool.ping()).join());
    check(matches!(other_thread, Ok(Err(DaemonError::Inherited))), "in a thread of the child")
}

/// Checks that the parent works as before, in this thread and in a new one.
fn is_unharmed(pool: &Pool, objects: &[GlobalAddr]) {
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let work = || {
                for addr in objects {
                    contents::check(pool, *addr, 300);
                    let addr = pool.alloc(64).unwrap();
                    pool.write(addr, &[3; 64]).unwrap();
                    pool.free(addr).unwrap();
                }
                pool.ping().unwrap();
                assert_eq!(pool.root("name"), Ok(None));
            };
            work();
            scope.spawn(work).join().unwrap();
        }
    });
}

/// Two racks, a client of each, and objects of both racks. The client of the other rack stays open,
/// so that its caches are not returned while a test counts.
fn pool_with_objects() -> (TestPool, Pool, Pool, Vec<GlobalAddr>) {
    let test = TestPool::small();
    test.wait_until_racks_meet();
    let (pool, far) = (test.open(0), test.open(1));
    // Objects of both racks, and some that are freed into the cache.
    let objects: Vec<GlobalAddr> =
        (0..20).map(|number| if number < 10 { &pool } else { &far }.alloc(300).unwrap()).collect();
    let spare: Vec<GlobalAddr> = (0..8).map(|_| pool.alloc(64).unwrap()).collect();
    spare.into_iter().for_each(|addr| pool.free(addr).unwrap());
    objects.iter().for_each(|addr| contents::write(&pool, *addr, 300));
    (test, pool, far, objects)
}

#[test]
fn a_child_is_told_whatever_it_does_and_the_parent_is_not_harmed() {
    let (test, pool, _far, objects) = pool_with_objects();
    // Counted while the parent is idle: a thread of it that has ended may return its cached objects
    // later.
    let used = test.allocated();
    in_a_child(|| everything_says_so(&pool, objects[0]));
    in_a_child(|| everything_says_so(&pool, objects[15]));
    assert_eq!(test.allocated(), used, "the child took or gave something");
    is_unharmed(&pool, &objects);
    in_a_child(|| everything_says_so(&pool, objects[0]));
    is_unharmed(&pool, &objects);
}

#[test]
fn a_child_that_drops_or_closes_what_it_inherited_does_not_harm_the_parent() {
    let (_test, pool, _far, objects) = pool_with_objects();
    // Dropping the pool in the child affects only the child's copy.
    let mut pool = Some(pool);
    in_a_child(|| {
        pool.take().ok_or("the pool")?.close();
        Ok(())
    });
    is_unharmed(&pool.unwrap(), &objects);
}

#[test]
fn a_child_opens_the_pool_for_itself() {
    let (test, pool, _far, objects) = pool_with_objects();
    in_a_child(|| {
        let own = test.open(0);
        check(contents::is_there(&own, objects[1], 300), "what the parent has written")?;
        let addr = own.alloc(64).map_err(|_| "alloc")?;
        own.free(addr).map_err(|_| "free")?;
        // The inherited pool is still refused.
        check(pool.ping() == Err(DaemonError::Inherited), "ping")
    });
    is_unharmed(&pool, &objects);
}
