//! An operation of another thread or mount runs in the middle of an operation, at each of its
//! memory operations.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rackpool_fs::{AllocateMode, FsError, Ino, NewTime, SetAttr, Timestamp, Volume};
use support::table::heap::Heap;
use support::table::scheduler::Fault;
use support::{ROOT, TestVolumeMemory, file};

type Mount = Volume<TestVolumeMemory>;

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn mtime(seconds: i64) -> SetAttr {
    let time = Timestamp { seconds, nanoseconds: 5 };
    SetAttr { mtime: Some(NewTime::At(time)), ..SetAttr::default() }
}

/// An operation that a thread runs in the middle of another one.
struct Meanwhile<T> {
    heap: Arc<Heap>,
    answer: Receiver<T>,
}

impl<T> Meanwhile<T> {
    /// Returns its result; `None` if the memory operation was never reached.
    fn end(self) -> Option<T> {
        (!self.heap.troubles.forget_hook()).then(|| self.answer.recv().unwrap())
    }
}

/// Runs `body` in a thread at the `at`th memory operation from now on. The interrupted operation
/// continues when `body` is done or seems to wait for it.
fn meanwhile<T: Send + 'static>(
    memory: &TestVolumeMemory,
    at: u64,
    body: impl FnOnce() -> T + Send + 'static,
) -> Meanwhile<T> {
    let (done, answer) = channel();
    let (said, heard) = channel();
    memory.heap.troubles.interrupt(at, move || {
        std::thread::spawn(move || {
            let _ = done.send(body());
            let _ = said.send(());
        });
        // The test is valid with any timeout; how much it detects depends on the host's speed.
        let _ = heard.recv_timeout(Duration::from_millis(20));
    });
    Meanwhile { heap: Arc::clone(&memory.heap), answer }
}

/// Runs `round` for each memory operation in turn, until it reaches no further one.
fn at_each(mut round: impl FnMut(u64, &TestVolumeMemory) -> Option<()>) {
    let mut at = 1;
    while round(at, &TestVolumeMemory::new(4 << 20)).is_some() {
        at += 1;
    }
    assert!(at > 5, "{at}");
}

fn whole(volume: &Mount, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; volume.attr(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// A file that is open in a mount and was overwritten, with a delayed time.
fn overwritten(memory: &TestVolumeMemory) -> (Arc<Mount>, Ino) {
    let volume = Arc::new(memory.mount().with_lock_wait(Duration::from_secs(60)));
    let ino = file(&volume, Ino::ROOT, b"file");
    volume.write(ino, 0, &[1; 5_000]).unwrap();
    volume.open(ino).unwrap();
    volume.set_attr(ino, &mtime(1000), ROOT).unwrap();
    volume.write(ino, 0, &[2; 100]).unwrap();
    (volume, ino)
}

#[test]
fn who_closes_while_times_are_written_down_waits_for_them() {
    at_each(|at, memory| {
        let (volume, ino) = overwritten(memory);
        let other = memory.mount();
        let closing = Arc::clone(&volume);
        let answer = meanwhile(memory, at, move || {
            closing.flush(ino).unwrap();
            other.attr(ino).unwrap().mtime.seconds
        });
        volume.sweep().unwrap();
        let seen = answer.end()?;
        assert!(seen > 1000, "{at}");
        Some(())
    });
}

#[test]
fn a_time_that_is_being_written_down_is_seen_all_the_while() {
    at_each(|at, memory| {
        let (volume, ino) = overwritten(memory);
        let looking = Arc::clone(&volume);
        let answer = meanwhile(memory, at, move || looking.attr(ino).unwrap().mtime.seconds);
        volume.sweep().unwrap();
        let seen = answer.end()?;
        assert!(seen > 1000, "{at}");
        Some(())
    });
}

#[test]
fn a_time_that_is_set_is_not_overwritten_by_that_of_an_earlier_write() {
    at_each(|at, memory| {
        let (volume, ino) = overwritten(memory);
        let setting = Arc::clone(&volume);
        let answer =
            meanwhile(memory, at, move || setting.set_attr(ino, &mtime(2000), ROOT).map(drop));
        volume.sweep().unwrap();
        let set = answer.end()?;
        set.unwrap();
        volume.sweep().unwrap();
        assert_eq!(volume.attr(ino).unwrap().mtime.seconds, 2000, "{at}");
        Some(())
    });
    // A time set by another mount.
    let memory = TestVolumeMemory::new(6 << 20);
    let (volume, ino) = overwritten(&memory);
    let other = memory.mount();
    other.set_attr(ino, &mtime(2000), ROOT).unwrap();
    volume.flush(ino).unwrap();
    assert_eq!(other.attr(ino).unwrap().mtime.seconds, 2000);
    // A later write's time applies, and a change of the mode does not prevent that.
    volume.write(ino, 0, &[3; 100]).unwrap();
    other.set_attr(ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, ROOT).unwrap();
    volume.flush(ino).unwrap();
    assert!(other.attr(ino).unwrap().mtime.seconds > 2000);
}

#[test]
fn times_that_could_not_be_written_down_are_by_who_closes_next() {
    let memory = TestVolumeMemory::new(6 << 20);
    let (volume, ino) = overwritten(&memory);
    memory.heap.troubles.fail(1, 1_000, Fault::Refused);
    assert!(volume.flush(ino).is_err());
    assert!(memory.heap.troubles.heal());
    volume.flush(ino).unwrap();
    assert!(memory.mount().attr(ino).unwrap().mtime.seconds > 1000);
}

#[test]
fn a_write_without_memory_cuts_nothing_off_that_another_mount_has_written() {
    at_each(|at, memory| {
        let (volume, other) = (memory.mount(), memory.mount());
        let ino = file(&volume, Ino::ROOT, b"file");
        volume.open(ino).unwrap();
        volume.write(ino, 0, &[1; 5_000]).unwrap();
        // Memory is allocated where the other mount writes.
        let there = 400_000;
        volume.allocate(ino, AllocateMode::AllocateKeepSize, there, 4096).unwrap();
        // The other mount opens, writes and closes the file; or has it open throughout.
        if at % 2 == 0 {
            other.open(ino).unwrap();
        }
        let answer = meanwhile(memory, at, move || {
            let is_there = other.attr(ino).unwrap().size > there;
            let written = is_there && other.write(ino, there, &[9; 4096]).is_ok();
            (written, other)
        });
        memory.leave_free(Some(80_000));
        let failed = volume.write(ino, 5_000, &[2; 600_000]);
        memory.leave_free(None);
        let (written, other) = answer.end()?;
        if let Err(error) = &failed {
            assert!(matches!(error, FsError::NoSpace), "{error}");
        }
        let seen = whole(&other, ino);
        if written {
            assert!(seen[there as usize..][..4096].iter().all(|byte| *byte == 9), "{at}");
        }
        volume.set_attr(ino, &size(1_000_000), ROOT).unwrap();
        assert!(whole(&other, ino)[seen.len()..].iter().all(|byte| *byte == 0), "{at}");
        Some(())
    });
}

#[test]
fn a_write_without_memory_leaves_the_file_as_long_as_it_was() {
    for free in (0..20).map(|number| number * 2048) {
        let memory = TestVolumeMemory::new(6 << 20);
        let volume = memory.mount();
        let ino = file(&volume, Ino::ROOT, b"file");
        volume.write(ino, 0, &[1; 5_000]).unwrap();
        let before = volume.attr(ino).unwrap();
        volume.open(ino).unwrap();
        memory.leave_free(Some(free));
        let written = match volume.write(ino, 5_000, &[2; 30_000]) {
            Ok(bytes) => bytes,
            Err(FsError::NoSpace) => 0,
            Err(error) => panic!("{error}"),
        };
        memory.leave_free(None);
        let seen = whole(&volume, ino);
        assert_eq!(seen.len(), 5_000 + written, "{free}");
        assert!(seen[5_000..].iter().all(|byte| *byte == 2));
        if written == 0 {
            volume.flush(ino).unwrap();
            assert_eq!(volume.attr(ino).unwrap().blocks, before.blocks, "{free}");
        }
        volume.set_attr(ino, &size(100_000), ROOT).unwrap();
        assert!(whole(&volume, ino)[seen.len()..].iter().all(|byte| *byte == 0), "{free}");
    }
}

#[test]
fn memory_in_advance_makes_no_file_longer_that_another_mount_is_cutting() {
    at_each(|at, memory| {
        let (volume, other) = (memory.mount(), memory.mount());
        let ino = file(&volume, Ino::ROOT, b"file");
        volume.write(ino, 0, &[1; 30_000]).unwrap();
        other.open(ino).unwrap();
        let answer = meanwhile(memory, at, move || {
            let allocated = other.allocate(ino, AllocateMode::Allocate, 0, 50_000);
            let written = allocated.and_then(|()| other.write(ino, 20_000, &[9; 100]));
            (written.is_ok(), other)
        });
        let cut = volume.set_attr(ino, &size(10), ROOT);
        let (written, _other) = answer.end()?;
        assert!(matches!(cut, Ok(_) | Err(FsError::Busy)), "{cut:?}");
        let seen = whole(&volume, ino);
        // The file was cut after the write, or the bytes are there.
        if written && seen.len() > 10 {
            assert_eq!(seen[20_000..20_100], [9; 100], "{at}");
        }
        Some(())
    });
}

#[test]
fn files_whose_release_or_open_has_failed_are_freed_while_their_mount_is_there() {
    type Act = fn(&Mount, Ino) -> Result<(), FsError>;
    let acts: [(bool, Act); 2] = [
        (true, |volume, ino| volume.release(ino)),
        (false, |volume, ino| volume.open(ino).and_then(|_| volume.release(ino))),
    ];
    for (is_open, act) in acts {
        for (at, count) in (1..60).flat_map(|at| [(at, 1), (at, 40)]) {
            let memory = TestVolumeMemory::new(6 << 20);
            let volume = memory.mount();
            let ino = file(&volume, Ino::ROOT, b"file");
            volume.write(ino, 0, &[1; 100_000]).unwrap();
            if is_open {
                volume.open(ino).unwrap();
                volume.write(ino, 0, &[2; 100]).unwrap();
            }
            for fault in [Fault::Refused, Fault::Done] {
                memory.heap.troubles.fail(at, count, fault);
                let _ = act(&volume, ino);
                memory.heap.troubles.heal();
            }
            let used = memory.used();
            let other = memory.mount();
            other.unlink(Ino::ROOT, b"file").unwrap();
            volume.sweep().unwrap();
            assert!(matches!(other.attr(ino), Err(FsError::NotFound)), "{at}");
            assert!(memory.used() + 100_000 < used, "{at}: {} of {used}", memory.used());
        }
    }
}

#[test]
fn extended_attributes_do_not_use_up_what_removals_need() {
    let memory = TestVolumeMemory::new(6 << 20);
    let volume = memory.mount();
    let names: Vec<Vec<u8>> = (0..40_u8).map(|number| vec![b'a', number + 1]).collect();
    let inos: Vec<Ino> = names.iter().map(|name| file(&volume, Ino::ROOT, name)).collect();
    let large = file(&volume, Ino::ROOT, b"large");
    volume.open(large).unwrap();
    let mut end = 0;
    // As full as possible.
    for bytes in [1 << 20, 65_536, 4096] {
        while let Ok(written) = volume.write(large, end, &vec![9; bytes]) {
            end += written as u64;
        }
    }
    let mut failed = 0;
    for ino in &inos {
        for number in 0..7_u8 {
            let name = [b"user.", &[b'a' + number][..]].concat();
            let set = volume.set_xattr(*ino, &name, &[7; 1000], rackpool_fs::XattrMode::Set);
            failed += u32::from(matches!(set, Err(FsError::NoSpace)));
        }
    }
    assert!(failed > 0);
    for (number, name) in names.iter().enumerate() {
        // These renames need no memory until a directory needs another node.
        let other = [&[b'b'; 200][..], &[number as u8 + 1]].concat();
        let _ = volume.rename(Ino::ROOT, name, Ino::ROOT, &other, rackpool_fs::RenameMode::Replace);
    }
    for name in support::names(&volume, Ino::ROOT).unwrap() {
        volume.unlink(Ino::ROOT, &name).unwrap();
    }
    volume.release(large).unwrap();
}

#[test]
fn rights_that_a_file_lends_are_taken_away_whatever_else_is_changed() {
    let memory = TestVolumeMemory::new(6 << 20);
    let volume = memory.mount();
    let ino = file(&volume, Ino::ROOT, b"file");
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    volume.write(ino, 0, &[1; 100]).unwrap();
    volume.set_attr(ino, &mode(0o6755), ROOT).unwrap();
    let capability = b"security.capability";
    volume.set_xattr(ino, capability, b"all", rackpool_fs::XattrMode::Set).unwrap();
    volume.drop_privileges(ino).unwrap();
    assert_eq!(volume.attr(ino).unwrap().mode, 0o755);
    volume.write_back(ino, 0, &[2; 100]).unwrap();
    assert_eq!(volume.get_xattr(ino, capability).unwrap(), b"all");
    volume.write(ino, 0, &[3; 100]).unwrap();
    assert!(matches!(volume.get_xattr(ino, capability), Err(FsError::NoAttribute)));
    // A mode that another mount sets meanwhile stays.
    at_each(|at, memory| {
        let (volume, other) = (memory.mount(), memory.mount());
        let ino = file(&volume, Ino::ROOT, b"file");
        volume.set_attr(ino, &mode(0o4755), ROOT).unwrap();
        let answer =
            meanwhile(memory, at, move || other.set_attr(ino, &mode(0o600), ROOT).map(drop));
        volume.drop_privileges(ino).unwrap();
        let set = answer.end()?;
        set.unwrap();
        assert_eq!(volume.attr(ino).unwrap().mode, 0o600, "{at}");
        Some(())
    });
}
