//! Mounts of full pools, and names and sizes beyond all limits.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rackpool_testing::skipped;
use rackpool_testing::wait::wait_until;
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rustix::io::Errno;

/// The most time until freed memory is available again: the mount queries other mounts for it once
/// a second.
const RETURN: Duration = Duration::from_secs(60);

fn mounted(memory: u64, page: u64) -> Option<(TestPool, TestMount)> {
    if let Some(reason) = why_not() {
        skipped(reason);
        return None;
    }
    let pool = TestPool::start(memory, page);
    pool.wait_until_racks_meet();
    let mount = TestMount::start(&pool, 0);
    Some((pool, mount))
}

fn number(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

/// Fills files of 1 MiB until there is no space left; returns the number of whole files.
fn fill(mount: &TestMount) -> u32 {
    for file in 0.. {
        let path = mount.path(format!("filler {file}"));
        let fill = u8::try_from(file % 251).unwrap();
        if let Err(error) = std::fs::write(&path, vec![fill; 1 << 20]) {
            assert_eq!(number(&error), Errno::NOSPC, "{error}");
            return file;
        }
    }
    unreachable!("the pool has an end")
}

#[test]
fn a_full_pool_says_so_and_keeps_what_it_has() {
    let Some((_pool, mount)) = mounted(24 << 20, 256 << 10) else { return };
    std::fs::write(mount.path("old"), vec![9; 300_000]).unwrap();
    let whole = fill(&mount);
    assert!(whole > 10, "{whole} MiB only");
    // Every other operation that needs memory is refused as well, or found some; no other error is
    // allowed.
    for attempt in 0..200 {
        let path = mount.path(format!("more {attempt}"));
        if let Err(error) = std::fs::write(path, vec![1; 9000]) {
            assert_eq!(number(&error), Errno::NOSPC, "{error}");
        }
    }
    assert_eq!(std::fs::read(mount.path("old")).unwrap(), vec![9; 300_000]);
    for file in 0..whole {
        let fill = u8::try_from(file % 251).unwrap();
        let read = std::fs::read(mount.path(format!("filler {file}"))).unwrap();
        assert!(read.len() == 1 << 20 && read.iter().all(|byte| *byte == fill), "file {file}");
    }
    // Existing contents can be overwritten in place, and removed.
    let old = File::options().write(true).open(mount.path("old")).unwrap();
    old.write_all_at(&[8; 300_000], 0).unwrap();
    drop(old);
    assert_eq!(std::fs::read(mount.path("old")).unwrap(), vec![8; 300_000]);
    for entry in std::fs::read_dir(mount.root()).unwrap() {
        let path = entry.unwrap().path();
        if !path.ends_with("old") {
            std::fs::remove_file(path).unwrap();
        }
    }
    wait_until("as much fits as before", RETURN, || {
        let path = mount.path("again");
        let fits = std::fs::write(&path, vec![7; usize::try_from(whole - 5).unwrap() << 20]);
        let _ = std::fs::remove_file(&path);
        fits.is_ok()
    });
}

#[test]
fn removed_files_give_their_memory_back() {
    let Some((pool, mount)) = mounted(64 << 20, 256 << 10) else { return };
    let used = || pool.allocated().iter().sum::<u64>();
    std::fs::write(mount.path("first"), "what the mount needs is there").unwrap();
    // The table and the caches keep much less than the files had.
    let little = used() + (5 << 20);
    let round = |round: u32| {
        for file in 0..20 {
            let path = mount.path(format!("{round} {file}"));
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(900_000).unwrap();
        }
        for file in 0..20 {
            std::fs::remove_file(mount.path(format!("{round} {file}"))).unwrap();
        }
    };
    for number in 0..4 {
        round(number);
        wait_until("their memory is back", RETURN, || used() < little);
    }
}

#[test]
fn the_metrics_of_the_file_system_follow_what_is_in_it() {
    let Some((_pool, mount)) = mounted(64 << 20, 256 << 10) else { return };
    let free = || {
        let figures = rustix::fs::statvfs(mount.root()).unwrap();
        figures.f_bfree * figures.f_frsize
    };
    let figures = rustix::fs::statvfs(mount.root()).unwrap();
    // The space of both racks.
    assert_eq!(figures.f_blocks * figures.f_frsize, 2 * (64 << 20));
    let before = free();
    std::fs::write(mount.path("file"), vec![1; 10 << 20]).unwrap();
    wait_until("10 MiB less are free", RETURN, || free() + (9 << 20) < before);
    std::fs::remove_file(mount.path("file")).unwrap();
    wait_until("they are free again", RETURN, || free() + (2 << 20) > before);
}

#[test]
fn what_is_beyond_all_bounds_is_refused_and_harms_nothing() {
    let Some((_pool, mount)) = mounted(32 << 20, 256 << 10) else { return };
    std::fs::write(mount.path("file"), "kept").unwrap();
    for len in [256, 1000, 4000] {
        let error = std::fs::write(mount.path("n".repeat(len)), "").unwrap_err();
        assert_eq!(number(&error), Errno::NAMETOOLONG);
    }
    let endless = "d/".repeat(5000);
    let error = std::fs::create_dir_all(mount.path(endless)).unwrap_err();
    assert_eq!(number(&error), Errno::NAMETOOLONG);
    let file = File::options().write(true).open(mount.path("file")).unwrap();
    file.set_len(1 << 50).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 50);
    file.write_all_at(b"far", (1 << 50) - 3).unwrap();
    file.set_len(4).unwrap();
    drop(file);
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"kept");
    // More than the pool has; refused early.
    let file = File::create(mount.path("large")).unwrap();
    let refused = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 30);
    assert_eq!(refused.unwrap_err(), Errno::NOSPC);
    drop(file);
    std::fs::remove_file(mount.path("large")).unwrap();
    wait_until("the rest of it is back", RETURN, || {
        let fits = std::fs::write(mount.path("other"), vec![1; 8 << 20]).is_ok();
        let _ = std::fs::remove_file(mount.path("other"));
        fits
    });
}
