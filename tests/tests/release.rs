//! The memory of free frames is returned to the file system, and frames get memory before they are
//! used.

use std::os::unix::fs::MetadataExt;

use rackpool_client::AllocError;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::mounts::with_tmpfs;
use rackpool_tests::pool::{PAGE, TestPool};

const OBJECTS: usize = 1000;

/// Bytes that the frames of rack 0 take of the file system.
fn taken(pool: &TestPool) -> u64 {
    std::fs::metadata(pool.rack_dir(0).join("frames")).expect("frames").blocks() * 512
}

#[test]
fn memory_that_is_free_for_long_goes_back_and_comes_again_when_it_is_used() {
    let pool = TestPool::with(|options| {
        options.memory = 128 << 20;
        options.daemon_arguments =
            vec![("--swap", "off".into()), ("--release-free-after-s", "1".into())];
    });
    let rack = pool.open(0);
    for _ in 0..2 {
        let kept = rack.alloc(PAGE).unwrap();
        contents::write(&rack, kept, PAGE);
        let objects: Vec<_> = (0..OBJECTS).map(|_| rack.alloc(PAGE).unwrap()).collect();
        let full = taken(&pool);
        assert!(full >= OBJECTS as u64 * PAGE, "{full} B are not enough for what is in use");
        objects.iter().for_each(|addr| rack.free(*addr).unwrap());
        wait_until("memory goes back", TIMEOUT, || taken(&pool) < full * 3 / 4);
        contents::check(&rack, kept, PAGE);
        rack.free(kept).unwrap();
    }
    rack.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn a_page_has_its_memory_before_anybody_writes_in_it() {
    let pool = TestPool::with(|options| options.memory = 128 << 20);
    let rack = pool.open(0);
    let objects: Vec<_> = (0..OBJECTS).map(|_| rack.alloc(PAGE).unwrap()).collect();
    let run = rack.alloc(700 * PAGE).unwrap();
    let needed = (OBJECTS as u64 + 700) * PAGE;
    assert!(taken(&pool) >= needed, "{} B of {needed} B are there", taken(&pool));
    objects.into_iter().chain([run]).for_each(|addr| rack.free(addr).unwrap());
    rack.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn where_others_have_filled_the_file_system_an_allocation_fails_and_nobody_is_ended() {
    with_tmpfs("a file system that others fill", 256, |folder| {
        let pool = TestPool::with(|options| {
            options.dir = folder.join("pool");
            options.store = folder.join("pool/metadata.redb");
            options.memory = 64 << 20;
            options.racks = 1;
        });
        let rack = pool.open(0);
        let mut objects = vec![rack.alloc(PAGE).unwrap()];
        // Another file takes all the rest that the pool has not reserved.
        let filler = std::fs::File::create(folder.join("filler")).unwrap();
        let mut filled = 0;
        for step in [1 << 20, 4096] {
            let grow = |filled| {
                rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), filled, step)
            };
            while grow(filled).is_ok() {
                filled += step;
            }
        }
        let why = loop {
            match rack.alloc(PAGE) {
                Ok(addr) => {
                    // Without memory behind the frame this write would kill the process (SIGBUS).
                    contents::write(&rack, addr, PAGE);
                    objects.push(addr);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(why, AllocError::OutOfMemory { .. }), "{why}");
        contents::write(&rack, objects[0], PAGE);
        // With room again, the pool continues by itself.
        drop(filler);
        std::fs::remove_file(folder.join("filler")).unwrap();
        wait_until("memory is handed out again", TIMEOUT, || {
            rack.alloc(PAGE).is_ok_and(|addr| {
                contents::write(&rack, addr, PAGE);
                true
            })
        });
    });
}
