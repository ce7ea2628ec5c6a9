//! Locks of files between mounts: conflicts, and the locks of a mount that is killed or stopped, or
//! whose memory fails, at each memory operation.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use rackpool_fs::{
    FsError, Ino, LockFamily, LockMode, LockOutcome, LockOwner, LockRange, LockRequest, OtherLock,
    Volume,
};
use rackpool_sync::SplitMix64;
use support::table::scheduler::{Fate, Fault, Scheduler, scheduler};
use support::{TestVolumeMemory, emptied, file};

type Mount = Volume<TestVolumeMemory>;

const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);
const LAST: u64 = i64::MAX as u64;

const fn record(id: u64) -> LockOwner {
    LockOwner { family: LockFamily::Record, id }
}

const fn whole(id: u64) -> LockOwner {
    LockOwner { family: LockFamily::Whole, id }
}

/// A request through an open file description with the owner's number.
fn asks(
    owner: LockOwner,
    bytes: std::ops::RangeInclusive<u64>,
    mode: Option<LockMode>,
) -> LockRequest {
    let range = LockRange { first: *bytes.start(), last: *bytes.end() };
    LockRequest { owner, range, mode, pid: 100 + owner.id as u32, handle: owner.id }
}

/// Returns whether the lock was granted; acknowledges that outdated pages were dropped.
fn gets(volume: &Mount, ino: Ino, request: &LockRequest) -> bool {
    match volume.set_lock(ino, request).unwrap() {
        LockOutcome::Done(outdated) => {
            outdated.into_iter().for_each(|outdated| volume.note_dropped(ino, outdated));
            true
        }
        LockOutcome::InTheWay(others) => {
            assert!(!others.is_empty());
            false
        }
    }
}

/// A file that `count` mounts have open.
fn opened(memory: &TestVolumeMemory, count: usize) -> (Vec<Mount>, Ino) {
    let mounts: Vec<Mount> = (0..count).map(|_| memory.mount()).collect();
    let ino = file(&mounts[0], Ino::ROOT, b"file");
    for volume in &mounts {
        volume.open(ino).unwrap();
    }
    (mounts, ino)
}

fn closed(mounts: Vec<Mount>, ino: Ino) {
    for volume in mounts {
        volume.release(ino).unwrap();
        volume.close().unwrap();
    }
}

#[test]
fn locks_of_two_mounts_are_those_of_a_map_of_bytes() {
    const BYTES: u64 = 32;
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    // Two owners in each of two mounts.
    let mut model = [[None; BYTES as usize]; 4];
    let mut stream = SplitMix64::new(1);
    for step in 0..6000 {
        let id = stream.draw() as usize % 4;
        let (one, other) = (stream.draw() % BYTES, stream.draw() % BYTES);
        let bytes = one.min(other)..=one.max(other);
        let places = *bytes.start() as usize..=*bytes.end() as usize;
        let volume = &mounts[id % 2];
        // Owners of different mounts may have the same number.
        let owner = record(id as u64 / 2);
        let mode = [SHARED, EXCLUSIVE, None, None][stream.draw() as usize % 4];
        if stream.draw().is_multiple_of(20) {
            volume.drop_locks(ino, owner).unwrap();
            model[id].fill(None);
            continue;
        }
        let is_in_the_way = |other: usize| {
            let meets = |held: &Option<LockMode>| {
                held.is_some() && (*held == EXCLUSIVE || mode == EXCLUSIVE)
            };
            other != id && mode.is_some() && model[other][places.clone()].iter().any(meets)
        };
        let blocked = (0..4).any(is_in_the_way);
        let request = asks(owner, bytes, mode);
        let found = volume.test_lock(ino, &request).unwrap();
        assert_eq!(found.is_some(), blocked, "step {step}");
        assert_eq!(gets(volume, ino, &request), !blocked, "step {step}");
        if !blocked {
            model[id][places].fill(mode);
        }
    }
    closed(mounts, ino);
}

#[test]
fn who_asks_is_told_of_processes_of_its_own_mount_only() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    assert!(gets(&mounts[0], ino, &asks(record(1), 10..=19, EXCLUSIVE)));
    let wanted = asks(record(2), 0..=LAST, SHARED);
    let own = mounts[0].test_lock(ino, &wanted).unwrap();
    let range = LockRange { first: 10, last: 19 };
    let told = OtherLock {
        owner: Some(record(1)),
        pid: 101,
        mode: LockMode::Exclusive,
        range,
        is_closing: false,
    };
    assert_eq!(own, Some(told));
    let others = mounts[1].test_lock(ino, &wanted).unwrap();
    assert_eq!(others, Some(OtherLock { owner: None, pid: 0, ..told }));
    // Locks of the other family do not conflict.
    assert_eq!(mounts[1].test_lock(ino, &asks(whole(2), 0..=LAST, EXCLUSIVE)).unwrap(), None);
    closed(mounts, ino);
}

#[test]
fn locks_go_with_the_process_or_the_description_that_has_them() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    let free =
        |bytes| mounts[1].test_lock(ino, &asks(record(9), bytes, EXCLUSIVE)).unwrap().is_none();
    let (process, description) = (record(1), record(2));
    assert!(gets(&mounts[0], ino, &asks(process, 0..=9, EXCLUSIVE)));
    assert!(gets(&mounts[0], ino, &asks(description, 10..=19, SHARED)));
    assert!(gets(&mounts[0], ino, &asks(whole(3), 0..=LAST, EXCLUSIVE)));
    mounts[0].drop_locks(ino, process).unwrap();
    assert!(free(0..=9) && !free(10..=19));
    // A request in the same mount is told that the lock may be about to be released.
    let is_closing = || {
        let got = mounts[0].set_lock(ino, &asks(record(8), 10..=19, EXCLUSIVE)).unwrap();
        matches!(&got, LockOutcome::InTheWay(others) if others.iter().all(|other| other.is_closing))
    };
    assert!(!is_closing());
    mounts[0].note_closed(ino, 2);
    assert!(is_closing());
    mounts[0].drop_locks_through(ino, 2).unwrap();
    assert!(free(0..=LAST));
    assert!(!gets(&mounts[1], ino, &asks(whole(4), 0..=LAST, SHARED)));
    // The last release in the mount releases all of its locks.
    mounts[0].release(ino).unwrap();
    assert!(gets(&mounts[1], ino, &asks(whole(4), 0..=LAST, EXCLUSIVE)));
    mounts[0].open(ino).unwrap();
    closed(mounts, ino);
}

#[test]
fn a_lock_of_a_whole_file_is_given_up_for_a_better_one_and_one_of_a_range_is_not() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    for (owner, keeps) in [(record(1), true), (whole(1), false)] {
        assert!(gets(&mounts[0], ino, &asks(owner, 0..=LAST, SHARED)));
        assert!(gets(&mounts[1], ino, &asks(owner, 0..=LAST, SHARED)));
        assert!(!gets(&mounts[0], ino, &asks(owner, 0..=LAST, EXCLUSIVE)));
        assert_eq!(gets(&mounts[1], ino, &asks(owner, 0..=LAST, EXCLUSIVE)), !keeps);
        for volume in &mounts {
            assert!(gets(volume, ino, &asks(owner, 0..=LAST, None)));
        }
    }
    closed(mounts, ino);
}

#[test]
fn what_is_kept_of_a_file_is_outdated_when_somebody_may_have_written() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    let is_outdated = |mount: usize, bytes, mode| {
        let got = mounts[mount].set_lock(ino, &asks(record(1), bytes, mode)).unwrap();
        let LockOutcome::Done(outdated) = got else { panic!("{got:?}") };
        outdated.into_iter().for_each(|outdated| mounts[mount].note_dropped(ino, outdated));
        outdated.is_some()
    };
    // The age of contents cached before the first lock is unknown.
    assert!(is_outdated(0, 0..=9, EXCLUSIVE));
    assert!(is_outdated(1, 10..=19, EXCLUSIVE));
    // A mount's own locks make nothing outdated.
    assert!(!is_outdated(0, 0..=9, None) && !is_outdated(0, 0..=9, EXCLUSIVE));
    assert!(!is_outdated(0, 0..=9, SHARED) && !is_outdated(0, 0..=9, EXCLUSIVE));
    assert!(!is_outdated(0, 0..=9, None));
    // The other mount may have cached a page with these bytes while it held those beside them.
    assert!(is_outdated(1, 0..=9, SHARED));
    assert!(!is_outdated(1, 0..=9, None) && !is_outdated(1, 10..=19, None));
    // A write of the own mount may have been cached in part.
    mounts[1].write(ino, 100, b"x").unwrap();
    assert!(is_outdated(1, 0..=9, SHARED) && !is_outdated(1, 0..=9, None));
    // A shared lock does not advance the turn.
    assert!(is_outdated(0, 0..=9, SHARED));
    assert!(!is_outdated(1, 0..=9, SHARED));
    closed(mounts, ino);
}

#[test]
fn more_locks_than_there_is_room_for_are_refused_and_those_there_are_stay() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    let mut count = 0;
    let refused = loop {
        // Far apart: close ranges take less room.
        let request = asks(record(1), count << 40..=count << 40, EXCLUSIVE);
        match mounts[0].set_lock(ino, &request) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, FsError::NoLocks), "{refused}");
    assert!(count > 3000, "{count}");
    assert!(!gets(&mounts[1], ino, &asks(record(1), 0..=0, SHARED)));
    let last = (count - 1) << 40;
    assert!(!gets(&mounts[1], ino, &asks(record(1), last..=last, SHARED)));
    // A lock that needs no more room is granted: one over all of them.
    assert!(gets(&mounts[0], ino, &asks(record(1), 0..=LAST, EXCLUSIVE)));
    assert!(gets(&mounts[0], ino, &asks(record(1), 0..=LAST, None)));
    assert!(gets(&mounts[1], ino, &asks(record(1), 0..=LAST, EXCLUSIVE)));
    closed(mounts, ino);
}

#[test]
fn in_a_full_pool_there_are_no_more_locks_and_those_there_are_can_be_given_up() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    assert!(gets(&mounts[0], ino, &asks(record(1), 0..=9, EXCLUSIVE)));
    memory.leave_free(Some(0));
    let refused = (0..100).find_map(|number| {
        let request = asks(record(1), 20 + number * 2..=20 + number * 2, EXCLUSIVE);
        mounts[0].set_lock(ino, &request).err()
    });
    assert!(matches!(refused, Some(FsError::NoLocks)), "{refused:?}");
    assert!(gets(&mounts[0], ino, &asks(record(1), 3..=4, None)));
    mounts[0].drop_locks(ino, record(1)).unwrap();
    mounts[0].release(ino).unwrap();
    memory.leave_free(None);
    assert!(gets(&mounts[1], ino, &asks(record(1), 0..=LAST, EXCLUSIVE)));
    mounts[0].open(ino).unwrap();
    closed(mounts, ino);
}

/// Uses all kinds of lock operations, and keeps some locks.
fn use_locks(volume: &Mount, ino: Ino) -> Result<(), FsError> {
    volume.open(ino)?;
    let set = |owner, bytes, mode| match volume.set_lock(ino, &asks(owner, bytes, mode))? {
        LockOutcome::Done(_) => Ok(()),
        LockOutcome::InTheWay(_) => Err(FsError::Busy),
    };
    set(record(1), 0..=99, EXCLUSIVE)?;
    set(record(1), 50..=59, SHARED)?;
    set(record(1), 10..=19, None)?;
    set(record(2), 200..=299, SHARED)?;
    set(whole(3), 0..=LAST, EXCLUSIVE)?;
    set(whole(3), 0..=LAST, SHARED)?;
    volume.drop_locks(ino, record(1))?;
    volume.drop_locks_through(ino, 2)?;
    set(record(4), 300..=399, EXCLUSIVE)
}

/// Expects that a new owner gets every lock.
fn expect_free(volume: &Mount, ino: Ino, label: &str) {
    volume.open(ino).unwrap();
    for owner in [record(1), whole(1)] {
        assert!(gets(volume, ino, &asks(owner, 0..=LAST, EXCLUSIVE)), "{label}");
    }
    volume.release(ino).unwrap();
}

fn planted() -> (TestVolumeMemory, Ino) {
    let memory = TestVolumeMemory::new(6 << 20);
    let volume = memory.mount();
    let ino = file(&volume, Ino::ROOT, b"file");
    volume.close().unwrap();
    (memory, ino)
}

/// The allocations in a volume in which no locks were used.
fn untouched() -> Vec<u64> {
    emptied(&planted().0)
}

/// Runs a mount that uses locks and meets its fate. Returns whether it reached it.
fn run(fate: Fate, by_sweep: bool, expected: &[u64]) -> bool {
    let (memory, ino) = planted();
    let label = format!("{fate:?}, by a sweep: {by_sweep}");
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    memory.heap.schedule(Arc::clone(&time));
    let is_kill = matches!(fate, Fate::KilledAt(_));
    let resolve = || memory.heap.recover(|client| client == Some(0), || {});
    let victim = || {
        let volume = memory.mount();
        match use_locks(&volume, ino).and_then(|()| volume.release(ino)) {
            Ok(()) | Err(FsError::Busy) => {}
            Err(error) => panic!("{label}: {error}"),
        }
        let _ = volume.close();
    };
    let survivor = || {
        if is_kill {
            resolve();
        }
        let volume = memory.mount();
        if is_kill && !by_sweep {
            expect_free(&volume, ino, &label);
        }
        // No mount has locks on these bytes, and a stopped mount does not block others.
        volume.open(ino).unwrap();
        assert!(gets(&volume, ino, &asks(record(1), 5000..=5001, EXCLUSIVE)), "{label}");
        volume.release(ino).unwrap();
        volume.sweep().unwrap();
        volume.close().unwrap();
    };
    time.run(vec![Box::new(victim), Box::new(survivor)]);
    resolve();
    assert_eq!(emptied(&memory), expected, "{label}: left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

#[test]
fn locks_of_a_mount_killed_at_any_step_are_had_by_whoever_wants_them() {
    let expected = untouched();
    let mut at = 1;
    while run(Fate::KilledAt(at), false, &expected) {
        at += 1;
    }
    assert!(at > 100, "{at}");
}

#[test]
fn locks_of_a_mount_killed_at_any_step_are_swept_away() {
    let expected = untouched();
    let mut at = 1;
    while run(Fate::KilledAt(at), true, &expected) {
        at += 1;
    }
    assert!(at > 100, "{at}");
}

#[test]
fn a_mount_stopped_at_any_step_keeps_its_locks_and_nobody_from_having_others() {
    let expected = untouched();
    let mut at = 1;
    while run(Fate::StoppedAt(at), false, &expected) {
        at += 1;
    }
    assert!(at > 100, "{at}");
    // A mount keeps its locks while it is alive.
    let memory = TestVolumeMemory::new(16 << 20);
    let (mounts, ino) = opened(&memory, 2);
    assert!(gets(&mounts[0], ino, &asks(record(1), 0..=9, SHARED)));
    mounts[1].sweep().unwrap();
    assert!(!gets(&mounts[1], ino, &asks(record(1), 5..=5, EXCLUSIVE)));
    closed(mounts, ino);
}

#[test]
fn locks_are_whole_after_any_failure_of_the_memory() {
    let expected = untouched();
    for (count, fault) in [
        (1, Fault::Applied),
        (1, Fault::Unapplied),
        (1, Fault::Refused),
        (1, Fault::Done),
        (25, Fault::Refused),
        (1, Fault::Full),
    ] {
        let mut at = 1;
        loop {
            let (memory, ino) = planted();
            let label = format!("{fault:?} at {at}, {count} times");
            let volume = memory.mount();
            memory.heap.troubles.fail(at, count, fault);
            let _ = use_locks(&volume, ino);
            let met = memory.heap.troubles.heal();
            let other = memory.mount();
            // The owner whose request failed may have the lock; closing the file releases it.
            for owner in [record(1), record(2), whole(3), record(4)] {
                volume.drop_locks(ino, owner).unwrap();
            }
            volume.sweep().unwrap();
            expect_free(&other, ino, &label);
            let _ = volume.release(ino);
            volume.sweep().unwrap();
            other.close().unwrap();
            volume.close().unwrap_or_else(|error| panic!("{label}: closing: {error}"));
            memory.heap.recover(|_| true, || {});
            assert_eq!(emptied(&memory), expected, "{label}: left");
            if !met {
                break;
            }
            at += 1;
        }
        assert!(at > 10, "{fault:?}: {at}");
    }
}

/// Increments a counter in a file under a lock. Returns the old value, or `None` without the lock.
fn raise(volume: &Mount, ino: Ino, owner: LockOwner) -> Option<u64> {
    if !gets(volume, ino, &asks(owner, 0..=7, EXCLUSIVE)) {
        return None;
    }
    let mut bytes = [0; 8];
    volume.read(ino, 0, &mut bytes).unwrap();
    let count = u64::from_le_bytes(bytes);
    volume.write(ino, 0, &(count + 1).to_le_bytes()).unwrap();
    assert!(gets(volume, ino, &asks(owner, 0..=7, None)));
    Some(count)
}

#[test]
fn a_counter_raised_under_a_lock_misses_nothing() {
    const EACH: u32 = 300;
    let memory = TestVolumeMemory::new(64 << 20);
    let mounts: Vec<Mount> =
        (0..2).map(|_| memory.mount().with_lock_wait(Duration::from_secs(60))).collect();
    let ino = file(&mounts[0], Ino::ROOT, b"counter");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let volume = &mounts[thread as usize % 2];
            scope.spawn(move || {
                volume.open(ino).unwrap();
                let mut left = EACH;
                while left > 0 {
                    match raise(volume, ino, record(thread)) {
                        Some(_) => left -= 1,
                        None => std::thread::yield_now(),
                    }
                }
                volume.release(ino).unwrap();
            });
        }
    });
    let mut bytes = [0; 8];
    mounts[0].read(ino, 0, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), u64::from(4 * EACH));
}

#[test]
fn mounts_that_are_killed_under_a_lock_let_no_two_have_it() {
    for seed in 0..40 {
        let memory = TestVolumeMemory::new(12 << 20);
        let ino = file(&memory.mount(), Ino::ROOT, b"counter");
        let mut stream = SplitMix64::new(seed);
        let fates = [Fate::KilledAt(20 + stream.draw() % 300), Fate::Lives, Fate::Lives];
        let time = Arc::new(Scheduler::new(seed, &fates));
        memory.heap.schedule(Arc::clone(&time));
        let seen = [(); 3].map(|()| std::sync::Mutex::new(Vec::new()));
        let clients = (0..3).map(|client| {
            let (memory, seen) = (&memory, &seen[client]);
            let body = move || {
                let volume = memory.mount();
                volume.open(ino).unwrap();
                for _ in 0..15 {
                    let raised = raise(&volume, ino, record(7));
                    seen.lock().unwrap().extend(raised);
                }
                volume.release(ino).unwrap();
                volume.close().unwrap();
            };
            Box::new(body) as Box<dyn FnOnce() + Send>
        });
        time.run(clients.collect());
        memory.heap.recover(|client| client.is_some(), || {});
        let mut all: Vec<u64> =
            seen.iter().flat_map(|seen| std::mem::take(&mut *seen.lock().unwrap())).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "seed {seed}: two had the lock at once");
        expect_free(&memory.mount(), ino, "afterwards");
    }
}
