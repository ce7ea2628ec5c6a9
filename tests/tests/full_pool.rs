//! A pool that is full, and then empty again.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;

use rackpool_client::{AllocError, GlobalAddr, OutOfMemory, Pool, RackId};
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::census;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const FRAMES: u32 = 32;

fn full_sized() -> TestPool {
    let pool = TestPool::with(|options| options.memory = u64::from(FRAMES) * PAGE);
    pool.wait_until_racks_meet();
    pool
}

/// Allocates objects of this size until the pool is full; returns them and the error.
fn fill(pool: &Pool, bytes: u64) -> (Vec<GlobalAddr>, AllocError) {
    let mut objects = Vec::new();
    loop {
        match pool.alloc(bytes) {
            Ok(addr) => {
                let len = usize::try_from(bytes).unwrap();
                pool.write(addr, &contents::of(addr.raw(), len)).unwrap();
                objects.push(addr);
            }
            Err(error) => return (objects, error),
        }
    }
}

fn check(pool: &Pool, objects: &[GlobalAddr], bytes: u64) {
    for addr in objects {
        let mut found = vec![0; usize::try_from(bytes).unwrap()];
        pool.read(*addr, &mut found).unwrap();
        assert_eq!(contents::difference(addr.raw(), &found), None, "{addr}");
    }
}

#[test]
fn a_full_rack_spills_and_a_full_pool_says_so() {
    let pool = full_sized();
    let racks = [pool.open(0), pool.open(1)];
    for freeing in [0, 1] {
        let (objects, error) = fill(&racks[0], PAGE);
        assert_eq!(objects.len(), 2 * usize::try_from(FRAMES).unwrap(), "{error}");
        let local = objects.iter().take_while(|addr| racks[0].is_local(**addr).unwrap()).count();
        assert_eq!(local, usize::try_from(FRAMES).unwrap(), "the own rack comes first");
        assert_eq!(objects.iter().collect::<BTreeSet<_>>().len(), objects.len());
        assert_eq!(error, figures(PAGE, 0));
        let text = error.to_string();
        assert!(text.contains("add a rack or memory"), "{text}");
        wait_until("the status has the other rack's figures", TIMEOUT, || {
            let status = pool.status(0);
            (status.other_frames, status.other_free_frames) == (FRAMES.into(), 0)
        });
        for rack in &racks {
            rack.alloc(16).unwrap_err();
            rack.alloc(3 * PAGE).unwrap_err();
            check(rack, &objects, PAGE);
        }
        objects.iter().for_each(|addr| racks[freeing].free(*addr).unwrap());
    }
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
    wait_until("all frames but one for each size are free", TIMEOUT, || {
        [0, 1].iter().all(|rack| pool.status(*rack).free_frames + 1 >= FRAMES)
    });
}

/// The error of rack 0 when it is full and rack 1 has `other_free` free frames.
fn figures(bytes: u64, other_free: u64) -> AllocError {
    AllocError::OutOfMemory(OutOfMemory {
        bytes,
        frames: bytes.div_ceil(PAGE),
        rack: RackId(0),
        rack_frames: FRAMES,
        rack_free: 0,
        asked: 1,
        other_frames: FRAMES.into(),
        other_free,
        unreachable: 0,
    })
}

#[test]
fn an_error_has_the_numbers_of_its_time_and_says_that_an_object_lies_in_one_rack() {
    let mut pool = full_sized();
    let racks = [pool.open(0), pool.open(1)];
    // No magazine caches objects of two frames.
    let (objects, _) = fill(&racks[0], 2 * PAGE);
    let (_, error) = fill(&racks[0], PAGE);
    assert_eq!(error, figures(PAGE, 0));
    // Frees three objects of the other rack.
    let there = objects.iter().filter(|addr| racks[1].is_local(**addr).unwrap()).step_by(2);
    for (addr, free) in there.zip([2, 4, 6]) {
        racks[1].free(*addr).unwrap();
        wait_until("the frames are free", TIMEOUT, || pool.status(1).free_frames == free);
        // The metadata server reports the free frames within a second.
        let error = racks[0].alloc(3 * PAGE).unwrap_err();
        assert_eq!(error, figures(3 * PAGE, free.into()));
        let text = error.to_string();
        assert!(text.contains("no rack has room for 196608 B, 3 frames side by side"), "{text}");
    }
    // For a rack that does not answer the error reports only that.
    pool.kill_daemon(1);
    let AllocError::OutOfMemory(error) = racks[0].alloc(3 * PAGE).unwrap_err() else { panic!() };
    assert_eq!((error.asked, error.other_frames, error.other_free), (0, 0, 0));
    assert_eq!(error.unreachable, 1);
}

#[test]
fn a_full_rack_spills_to_the_rack_with_most_room() {
    for (less, more) in [(1, 2), (2, 1)] {
        let pool = TestPool::with(|options| {
            options.racks = 3;
            options.memory = u64::from(FRAMES) * PAGE;
        });
        pool.wait_until_racks_meet();
        let racks = [0, 1, 2].map(|rack| pool.open(rack));
        let take = |rack: u16, count| {
            let own = &racks[usize::from(rack)];
            for _ in 0..count {
                let addr = own.alloc(PAGE).unwrap();
                assert!(own.is_local(addr).unwrap());
            }
        };
        take(less, 20);
        take(more, 8);
        take(0, FRAMES);
        let free = |rack| u64::from(pool.status(rack).free_frames);
        assert!(free(more) > free(less) + 8, "{} and {}", free(more), free(less));
        // Frames were only taken, so the sum is right only when both numbers are.
        wait_until("rack 0 knows how much room there is", TIMEOUT, || {
            pool.status(0).other_free_frames == free(less) + free(more)
        });
        let there = &racks[usize::from(more)];
        for count in 0..8 {
            let addr = racks[0].alloc(PAGE).unwrap();
            assert!(there.is_local(addr).unwrap(), "object {count} is not in rack {more}");
        }
        // Then the other rack. Clients of either rack may cache a few objects.
        let (objects, error) = fill(&racks[0], PAGE);
        assert!(matches!(error, AllocError::OutOfMemory { .. }), "{error}");
        let rest = &racks[usize::from(less)];
        assert!(objects.iter().any(|addr| rest.is_local(*addr).unwrap()), "rack {less} is unused");
    }
}

#[test]
fn room_of_one_size_is_used_for_another_from_either_rack() {
    let pool = full_sized();
    let own = pool.open(0);
    for (index, bytes) in [PAGE, 5000, 60, 300_000, PAGE, 16, 3 * PAGE, PAGE].iter().enumerate() {
        let (objects, error) = fill(&own, *bytes);
        let taken = bytes.next_power_of_two().max(16);
        let each = if *bytes > PAGE { bytes.div_ceil(PAGE) * PAGE } else { taken };
        // Each rack is filled completely.
        let wanted = 2 * (u64::from(FRAMES) * PAGE / each);
        assert_eq!(u64::try_from(objects.len()).unwrap(), wanted, "{bytes} B: {error}");
        check(&own, &objects, *bytes);
        // Freed by a client that has closed before the next size.
        let other = pool.open(u16::try_from(index % 2).unwrap());
        objects.iter().for_each(|addr| other.free(*addr).unwrap());
        other.close();
        wait_until("all is freed", TIMEOUT, || census::objects(&pool).is_empty());
    }
}

#[test]
fn what_one_client_frees_another_one_gets() {
    let pool = full_sized();
    let racks = [pool.open(0), pool.open(1)];
    let (mut objects, _) = fill(&racks[0], 20_000);
    for turn in 0..100 {
        let (freeing, allocating) = (&racks[turn % 2], &racks[turn / 2 % 2]);
        let freed = objects.swap_remove(turn * 7 % objects.len());
        freeing.free(freed).unwrap();
        let got = wait_for("there is room again", TIMEOUT, || match allocating.alloc(20_000) {
            Ok(addr) => Some(addr),
            Err(AllocError::OutOfMemory { .. }) => {
                // The object may be in the cache of the client that freed it.
                let again = freeing.alloc(20_000).ok()?;
                Some(again)
            }
            Err(error) => panic!("{error}"),
        });
        racks[0].write(got, &contents::of(got.raw(), 20_000)).unwrap();
        objects.push(got);
        assert_eq!(objects.iter().collect::<BTreeSet<_>>().len(), objects.len());
    }
    check(&racks[1], &objects, 20_000);
}
