//! The mount: POSIX, random operations, start and end.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_testing::{StopAtEnd, skipped};
use rackpool_tests::files::{broken_rules, one_file, tree};
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rustix::fs::{CWD, RenameFlags, XattrFlags};

/// Memory of each rack.
const MEMORY: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;

/// A pool with a mount in its first rack; `None`, reported as skipped, where mounting is
/// impossible.
fn mounted() -> Option<(TestPool, TestMount)> {
    if let Some(reason) = why_not() {
        skipped(reason);
        return None;
    }
    // Files get exactly the modes that the tests request.
    rustix::process::umask(rustix::fs::Mode::empty());
    let pool = TestPool::start(MEMORY, PAGE);
    pool.wait_until_racks_meet();
    let mount = TestMount::start(&pool, 0);
    Some((pool, mount))
}

/// A folder on one of this computer's file systems that supports all that random trees need.
fn other_file_system() -> Option<tempfile::TempDir> {
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    candidates.iter().filter_map(|at| tempfile::tempdir_in(at).ok()).find(|dir| {
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let made = std::fs::create_dir(&a).is_ok() && std::fs::write(&b, "").is_ok();
        let swapped = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).is_ok();
        let set = rustix::fs::setxattr(&a, "user.attribute", b"", XattrFlags::empty()).is_ok();
        let cleaned = std::fs::remove_file(&a).is_ok() && std::fs::remove_dir(&b).is_ok();
        made && swapped && set && cleaned
    })
}

#[test]
fn the_rules_of_posix_hold_in_a_mount() {
    let Some((_pool, mount)) = mounted() else { return };
    let broken = broken_rules(mount.root(), "");
    let told: Vec<_> = broken.iter().map(|(name, said)| format!("{name}: {said}")).collect();
    assert!(told.is_empty(), "rules that do not hold:\n{}", told.join("\n"));
}

#[test]
fn random_operations_on_a_file_match_a_model() {
    let Some((_pool, mount)) = mounted() else { return };
    // The same seeds each time, and a random one, which a failure names.
    for seed in [0, 1, 2, rand::random()] {
        one_file::exercise(mount.root(), seed, 500).unwrap();
    }
}

#[test]
fn random_operations_on_a_tree_match_those_elsewhere() {
    let Some((_pool, mount)) = mounted() else { return };
    let Some(other) = other_file_system() else {
        return skipped("no file system here has extended attributes and exchanging renames");
    };
    for seed in 0..3_u64 {
        let folders: [PathBuf; 2] =
            [mount.root(), other.path()].map(|root| root.join(seed.to_string()));
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
        }
        tree::exercise(&folders[0], &folders[1], seed, 500).unwrap();
    }
}

#[test]
fn a_mount_ends_when_asked_and_comes_back_with_everything() {
    let Some((_pool, mut mount)) = mounted() else { return };
    std::fs::write(mount.path("file"), "contents").unwrap();
    assert!(mount.end());
    assert_eq!(std::fs::read_dir(mount.root()).unwrap().count(), 0);
    mount.mount();
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"contents");
}

#[test]
fn an_unmount_by_the_operator_ends_the_mount() {
    let Some((_pool, mut mount)) = mounted() else { return };
    // Busy for an instant while another test starts a process, which holds the test's files until
    // its exec.
    wait_until("it is unmounted", TIMEOUT, || nix::mount::umount(mount.root()).is_ok());
    // The process ends, since its mount is gone.
    assert!(mount.end());
    mount.mount();
}

#[test]
fn files_that_are_open_are_used_on_after_the_mount_was_asked_to_end() {
    use std::os::unix::fs::FileExt;
    let Some((_pool, mut mount)) = mounted() else { return };
    std::fs::write(mount.path("file"), "contents").unwrap();
    let file = std::fs::File::open(mount.path("file")).unwrap();
    let root = mount.root().to_owned();
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| mount.end());
        wait_until("the folder is empty again", TIMEOUT, || {
            std::fs::read_dir(&root).is_ok_and(|mut names| names.next().is_none())
        });
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"contents");
        drop(file);
        assert!(ends.join().unwrap());
    });
}

#[test]
fn a_mount_that_is_released_while_a_request_is_read_has_ended_well() {
    let Some((_pool, mut mount)) = mounted() else { return };
    let files = [mount.path("one"), mount.path("another")];
    let root = mount.root().to_owned();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        // On busy cores a thread of the mount often reads the release of the last file just when
        // the kernel releases the mount.
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for _ in 0..100 {
            let open = files.each_ref().map(|path| std::fs::File::create(path).unwrap());
            std::thread::scope(|scope| {
                let ends = scope.spawn(|| mount.end());
                wait_until("the folder is empty again", TIMEOUT, || {
                    std::fs::read_dir(&root).is_ok_and(|mut names| names.next().is_none())
                });
                drop(open);
                assert!(ends.join().unwrap());
            });
            mount.mount();
        }
    });
}

#[test]
fn two_mounts_at_one_folder_are_refused() {
    let Some((pool, mount)) = mounted() else { return };
    let output = fuse(mount.root(), pool.dir(), 1);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("mounted already"), "{said}");
    std::fs::write(mount.path("still there"), "").unwrap();
}

#[test]
fn what_can_not_be_mounted_says_what_to_do() {
    let Some((pool, mount)) = mounted() else { return };
    let missing = mount.path("no such folder");
    let file = mount.path("file");
    std::fs::write(&file, "").unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (at, dir, due) in [
        (missing.as_path(), pool.dir(), "make the folder first"),
        (file.as_path(), pool.dir(), "it is no folder"),
        (folder.path(), Path::new("/nowhere"), "rackpool up"),
    ] {
        let output = fuse(at, dir, 0);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(due), "{said}");
    }
}

/// Runs the program, which must refuse to mount.
fn fuse(at: &Path, pool: &Path, rack: u16) -> std::process::Output {
    let mut command = Command::new(rackpool_tests::client::program("rackpool-fuse"));
    command.arg(at).arg("--dir").arg(pool).arg("--rack").arg(rack.to_string());
    // Should it mount all the same, it ends at once.
    command.arg("--stop-with-stdin").stdin(std::process::Stdio::null()).output().unwrap()
}

#[test]
fn a_daemon_that_comes_back_is_waited_for() {
    let Some((mut pool, mount)) = mounted() else { return };
    std::fs::write(mount.path("before"), "kept").unwrap();
    pool.kill_daemon(0);
    std::thread::scope(|scope| {
        let root = mount.root().to_owned();
        let writes = scope.spawn(move || std::fs::write(root.join("meanwhile"), vec![1; 5 << 20]));
        pool.restart_daemon(0);
        writes.join().unwrap().unwrap();
    });
    assert_eq!(std::fs::read(mount.path("before")).unwrap(), b"kept");
    assert_eq!(std::fs::read(mount.path("meanwhile")).unwrap(), vec![1; 5 << 20]);
}
