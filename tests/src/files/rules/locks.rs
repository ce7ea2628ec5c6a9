//! Advisory locks within one mount.

use std::fs::File;

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, refused};
use crate::locks::{self, Holder, Lock, expect_waiting, try_lock, waiter};

pub(super) const RULES: &[Rule] = rules![
    locks_on_whole_files_exclude,
    locks_on_ranges_exclude,
    locks_end_with_their_descriptor,
    waiting_locks_are_handed_on,
    both_families_of_locks_are_apart,
    a_process_that_closes_any_descriptor_loses_its_locks,
    who_is_in_the_way_is_told,
];

fn two(place: &Place) -> (File, File) {
    let first = place.open_new("a");
    let second = File::options().read(true).write(true).open(place.path("a")).unwrap();
    (first, second)
}

fn locks_on_whole_files_exclude(place: &Place) {
    let (first, second) = two(place);
    flock(&first, FlockOperation::LockShared).unwrap();
    flock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    refused(flock(&first, FlockOperation::NonBlockingLockExclusive), Errno::AGAIN);
    flock(&second, FlockOperation::Unlock).unwrap();
    flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
    refused(flock(&second, FlockOperation::NonBlockingLockShared), Errno::AGAIN);
}

/// Tries to lock a range for an open file description; returns true if it succeeded.
fn lock(file: &File, start: i64, len: i64, exclusive: bool) -> bool {
    let lock = if exclusive { Lock::Exclusive } else { Lock::Shared };
    had(try_lock(file, Holder::Description, (start, len), lock))
}

fn had(outcome: Result<(), nix::errno::Errno>) -> bool {
    use nix::errno::Errno;
    assert!(outcome.is_ok() || [Errno::EAGAIN, Errno::EACCES].contains(&outcome.unwrap_err()));
    outcome.is_ok()
}

fn locks_on_ranges_exclude(place: &Place) {
    let (first, second) = two(place);
    assert!(lock(&first, 0, 100, true));
    assert!(!lock(&second, 99, 1, false));
    assert!(lock(&second, 100, 0, true));
    assert!(!lock(&first, 1 << 40, 1, true));
    assert!(had(try_lock(&first, Holder::Description, (50, 50), Lock::None)));
    assert!(lock(&second, 50, 50, true));
    assert!(!lock(&second, 49, 1, true));
}

fn locks_end_with_their_descriptor(place: &Place) {
    let (first, second) = two(place);
    assert!(lock(&first, 0, 0, true));
    flock(&first, FlockOperation::LockExclusive).unwrap();
    drop(first);
    assert!(lock(&second, 0, 0, true));
    flock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
}

fn waiting_locks_are_handed_on(place: &Place) {
    let (first, second) = two(place);
    flock(&first, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let (waits, thread) = waiter(scope, || flock(&second, FlockOperation::LockExclusive));
        expect_waiting(thread, nix::libc::SYS_flock);
        assert!(!waits.is_finished());
        flock(&first, FlockOperation::Unlock).unwrap();
        waits.join().unwrap().unwrap();
    });
    assert!(lock(&first, 0, 10, true));
    std::thread::scope(|scope| {
        let ask = || locks::lock(&second, Holder::Description, (5, 1), Lock::Shared);
        let (waits, thread) = waiter(scope, ask);
        expect_waiting(thread, nix::libc::SYS_fcntl);
        assert!(try_lock(&first, Holder::Description, (0, 10), Lock::Shared).is_ok());
        waits.join().unwrap().unwrap();
    });
}

fn both_families_of_locks_are_apart(place: &Place) {
    let (first, second) = two(place);
    flock(&first, FlockOperation::LockExclusive).unwrap();
    assert!(lock(&first, 0, 0, true));
    assert!(!lock(&second, 0, 0, false));
    flock(&first, FlockOperation::Unlock).unwrap();
    flock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!lock(&second, 0, 0, false));
}

fn a_process_that_closes_any_descriptor_loses_its_locks(place: &Place) {
    let (first, second) = two(place);
    assert!(had(try_lock(&first, Holder::Process, (0, 10), Lock::Exclusive)));
    assert!(lock(&second, 20, 10, true));
    // A process's own locks conflict only with those of open file descriptions.
    assert!(had(try_lock(&second, Holder::Process, (5, 1), Lock::Shared)));
    assert!(!lock(&second, 0, 1, false));
    drop(File::open(place.path("a")).unwrap());
    assert!(lock(&second, 0, 10, true));
    // Locks of open file descriptions stay.
    assert!(!had(try_lock(&first, Holder::Process, (20, 1), Lock::Shared)));
}

fn who_is_in_the_way_is_told(place: &Place) {
    let (first, second) = two(place);
    assert!(had(try_lock(&first, Holder::Process, (10, 10), Lock::Shared)));
    let mut asked = locks::range(Lock::Exclusive, (0, 0));
    fcntl(&second, FcntlArg::F_OFD_GETLK(&mut asked)).unwrap();
    assert_eq!((asked.l_start, asked.l_len), (10, 10));
    assert_eq!(i32::from(asked.l_type), nix::libc::F_RDLCK);
    // A shared lock conflicts with nothing here.
    let mut asked = locks::range(Lock::Shared, (0, 0));
    fcntl(&second, FcntlArg::F_OFD_GETLK(&mut asked)).unwrap();
    assert_eq!(i32::from(asked.l_type), nix::libc::F_UNLCK);
}
