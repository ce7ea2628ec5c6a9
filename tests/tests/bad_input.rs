//! Invalid operations of programs are refused, and change nothing.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use rackpool_client::{AccessError, AllocError, FreeError, GlobalAddr, Pool};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

/// Objects of every kind in both racks, near which invalid operations are tried.
struct Witnesses(Vec<(GlobalAddr, usize)>);

impl Witnesses {
    fn new(racks: &[Pool; 2]) -> Self {
        let sizes = [16, 100, 5000, 65_536, 200_000];
        let objects = racks.iter().flat_map(|rack| {
            sizes.map(|len| {
                let addr = rack.alloc(u64::try_from(len).unwrap()).unwrap();
                rack.write(addr, &contents::of(addr.raw(), len)).unwrap();
                (addr, len)
            })
        });
        Self(objects.collect())
    }

    fn check(&self, racks: &[Pool; 2]) {
        for (rack, (addr, len)) in racks.iter().flat_map(|r| self.0.iter().map(move |o| (r, o))) {
            let mut found = vec![0; *len];
            rack.read(*addr, &mut found).unwrap();
            assert_eq!(contents::difference(addr.raw(), &found), None, "{len} B at {addr}");
        }
    }

    fn free(self, racks: [Pool; 2], pool: &TestPool) {
        self.check(&racks);
        self.0.iter().for_each(|(addr, _)| racks[0].free(*addr).unwrap());
        racks.into_iter().for_each(Pool::close);
        pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
    }
}

/// Checks that every operation at an address is refused with this error.
fn refused(pool: &Pool, addr: GlobalAddr, wanted: &AccessError) {
    assert_eq!(pool.read(addr, &mut [0; 8]).unwrap_err(), *wanted, "read {addr}");
    assert_eq!(pool.write(addr, &[1; 8]).unwrap_err(), *wanted, "write {addr}");
    if addr.raw().is_multiple_of(8) {
        assert_eq!(pool.compare_and_swap(addr, 0, 1).unwrap_err(), *wanted, "swap {addr}");
        assert_eq!(pool.fetch_and_add(addr, 1).unwrap_err(), *wanted, "add {addr}");
    }
}

#[test]
fn bad_accesses_are_refused_and_change_nothing() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let witnesses = Witnesses::new(&racks);
    let page = |number: u64| GlobalAddr::from_raw(number * PAGE);
    let frames = u64::from(pool.status(0).frames);
    for rack in &racks {
        // Addresses without a page.
        for addr in [GlobalAddr::NULL, GlobalAddr::from_raw(8), GlobalAddr::from_raw(u64::MAX)] {
            refused(rack, addr, &AccessError::InvalidAddress(addr));
        }
        // Unused pages of both racks, and pages of no rack.
        let known = [frames, frames - 1, 2 * frames, 2 * frames - 1, 2 * frames + 1, 1 << 20];
        for addr in known.map(page) {
            refused(rack, addr, &AccessError::NotAllocated(addr));
            assert_eq!(rack.free(addr), Err(FreeError::NotAllocated(addr)), "free {addr}");
        }
        for (addr, len) in &witnesses.0 {
            refused_at_ends(rack, *addr, u64::try_from(*len).unwrap());
        }
    }
    witnesses.free(racks, &pool);
}

/// Invalid accesses to an object in use.
fn refused_at_ends(pool: &Pool, addr: GlobalAddr, len: u64) {
    assert_eq!(pool.read(addr, &mut []), Err(AccessError::Empty));
    assert_eq!(pool.write(addr, &[]), Err(AccessError::Empty));
    for off in 1..8 {
        let odd = GlobalAddr::from_raw(addr.raw() + off);
        assert_eq!(pool.fetch_and_add(odd, 1), Err(AccessError::Misaligned(odd)));
        assert_eq!(pool.compare_and_swap(odd, 0, 1), Err(AccessError::Misaligned(odd)));
    }
    // An access that starts in the object and ends beyond its last page.
    let end = addr.raw().next_multiple_of(PAGE).max(addr.raw() + len).next_multiple_of(PAGE);
    let available =
        if addr.raw().is_multiple_of(PAGE) && end == addr.raw() { PAGE } else { end - addr.raw() };
    let too_long = vec![1; usize::try_from(available + 1).unwrap()];
    let wanted = AccessError::BeyondObject { addr, len: available + 1, available };
    assert_eq!(pool.write(addr, &too_long), Err(wanted.clone()));
    assert_eq!(pool.read(addr, &mut too_long.clone()), Err(wanted));
    // Only the address of an object can be freed.
    let inside = GlobalAddr::from_raw(addr.raw() + 8);
    let object_bytes =
        if len > PAGE { len.next_multiple_of(PAGE) } else { len.next_power_of_two() };
    assert_eq!(pool.free(inside), Err(FreeError::NotAnObject { addr: inside, object_bytes }));
    if len > PAGE {
        let second = GlobalAddr::from_raw(addr.raw() + PAGE);
        assert_eq!(pool.free(second), Err(FreeError::NotAnObject { addr: second, object_bytes }));
    }
}

#[test]
fn sizes_that_no_object_can_have_are_refused() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let witnesses = Witnesses::new(&racks);
    // All memory of either rack, some of which is in use.
    let most = 16 << 20;
    for rack in &racks {
        assert_eq!(rack.alloc(0), Err(AllocError::ZeroSize));
        for bytes in [most + 1, 17 << 20, PAGE << 23, PAGE << 24, u64::MAX - PAGE, u64::MAX] {
            assert_eq!(rack.alloc(bytes), Err(AllocError::TooLarge { bytes, most }));
        }
        let error = rack.alloc(most).unwrap_err();
        assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    }
    witnesses.free(racks, &pool);
}

#[test]
fn freeing_twice_is_refused() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let witnesses = Witnesses::new(&racks);
    for size in [16, 100, 5000, PAGE, 3 * PAGE] {
        for home in &racks {
            // A second free by the thread that has the object in its cache, or by a client that its
            // home answers at once.
            let twice = |user: &Pool| {
                let addr = home.alloc(size).unwrap();
                user.free(addr).unwrap();
                assert_eq!(user.free(addr), Err(FreeError::NotAllocated(addr)), "{size} B");
            };
            racks.iter().for_each(twice);
            // A second free by another thread, program and rack, after the first one no longer
            // holds the object.
            for user in 0..2 {
                let addr = home.alloc(size).unwrap();
                let first = pool.open(user);
                first.free(addr).unwrap();
                first.close();
                std::thread::scope(|scope| {
                    let thread = scope.spawn(|| home.free(addr));
                    assert_eq!(thread.join().unwrap(), Err(FreeError::NotAllocated(addr)));
                });
            }
        }
    }
    witnesses.free(racks, &pool);
}

#[test]
fn a_wrong_free_is_not_blamed_on_a_right_one() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let small = racks[1].alloc(64).unwrap();
    let large = racks[1].alloc(8192).unwrap();
    // Another program in the home's rack frees it first; the second free is sent in a batch.
    let other = pool.open(1);
    other.free(small).unwrap();
    other.close();
    racks[0].free(small).unwrap();
    racks[0].free(large).unwrap();
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn what_was_freed_can_not_be_used_once_its_page_is_free() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let witnesses = Witnesses::new(&racks);
    for (home, user) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let addr = racks[home].alloc(2 * PAGE).unwrap();
        racks[user].write(addr, &[1; 100]).unwrap();
        racks[home].free(addr).unwrap();
        // A page becomes free only after the racks that use it have been told.
        wait_until("the page is free", TIMEOUT, || racks[user].read(addr, &mut [0; 8]).is_err());
        refused(&racks[user], addr, &AccessError::NotAllocated(addr));
    }
    witnesses.free(racks, &pool);
}
