//! One memory operation, or several in a row, fails: each one in turn, executed or not. The file
//! system's operation may fail with it, but the volume stays consistent, and nothing remains of the
//! failure once the memory works again.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use rackpool_fs::{AllocateMode, FileType, FsError, Ino, RenameMode, SetAttr, Volume};
use support::table::scheduler::Fault;
use support::{ROOT, TestVolumeMemory, check, directory, emptied, file};

type Mount = Volume<TestVolumeMemory>;

/// What a mount does while the memory fails, and the permitted results.
struct Case {
    name: &'static str,
    act: fn(&Mount, &Tree) -> Result<(), FsError>,
    /// Panics unless the state is a permitted result of the operation, which succeeded if the flag
    /// is set.
    expect: fn(&Mount, &Tree, bool),
}

struct Tree {
    x: Ino,
    /// `x/f`, 70,000 bytes of 7: a run, and a split cluster.
    f: Ino,
    /// `x/g`, empty.
    g: Ino,
}

const LEN: usize = 70_000;

fn plant(memory: &TestVolumeMemory) -> Tree {
    let volume = memory.mount();
    let x = directory(&volume, Ino::ROOT, b"x");
    let (f, g) = (file(&volume, x, b"f"), file(&volume, x, b"g"));
    volume.write(f, 0, &[7; 5_000]).unwrap();
    volume.write(f, 0, &[7; LEN]).unwrap();
    volume.close().unwrap();
    Tree { x, f, g }
}

fn bytes(volume: &Mount, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; volume.attr(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Checks a file after a failed write: each byte of the write is stored or zero.
fn written(seen: &[u8], before: &[u8], offset: usize, byte: u8, done: bool) {
    let kept = offset.min(before.len());
    assert_eq!(seen[..kept], before[..kept]);
    let (gap, rest) = seen[kept..].split_at(offset.min(seen.len()) - kept);
    assert!(gap.iter().all(|byte| *byte == 0));
    let other = rest.iter().position(|seen| *seen != byte && (done || *seen != 0));
    assert_eq!(other.map(|at| &rest[at..rest.len().min(at + 9)]), None, "{other:?}");
}

/// Writes all bytes, or fails.
fn write(volume: &Mount, ino: Ino, offset: u64, from: &[u8]) -> Result<(), FsError> {
    match volume.write(ino, offset, from)? {
        bytes if bytes == from.len() => Ok(()),
        _ => Err(FsError::NoSpace),
    }
}

fn never_named() -> Case {
    Case {
        name: "a file that never gets a name",
        act: |volume, tree| {
            let ino = volume.create_unnamed(tree.x, 0o600, ROOT)?.ino;
            let written = write(volume, ino, 0, &[5; 5000]);
            volume.release(ino).and(written)
        },
        expect: |volume, tree, _| assert_eq!(bytes(volume, tree.f), [7; LEN]),
    }
}

fn whiteout() -> Case {
    Case {
        name: "a rename that leaves a whiteout",
        act: |volume, tree| {
            let mode = RenameMode::Whiteout { owner: ROOT, replaces: false };
            volume.rename(tree.x, b"f", tree.x, b"moved", mode)
        },
        expect: |volume, tree, done| {
            let old = volume.lookup(tree.x, b"f").unwrap();
            let moved = volume.lookup(tree.x, b"moved").map(|attr| attr.ino);
            match (old.kind, moved) {
                (FileType::CharDevice, Ok(ino)) => assert_eq!((ino, old.rdev), (tree.f, 0)),
                (FileType::File, Err(FsError::NotFound)) => assert!(!done && old.ino == tree.f),
                seen => panic!("{seen:?}"),
            }
            assert_eq!(bytes(volume, tree.f), [7; LEN]);
        },
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "the first bytes of a file",
            act: |volume, tree| write(volume, tree.g, 60_000, &[9; 9_000]),
            expect: |volume, tree, done| {
                let seen = bytes(volume, tree.g);
                assert!(seen.is_empty() || (60_000..=69_000).contains(&seen.len()));
                assert!(!done || seen.len() == 69_000);
                written(&seen, &[], 60_000, 9, done);
            },
        },
        Case {
            name: "more bytes",
            act: |volume, tree| write(volume, tree.f, LEN as u64, &[9; 140_000]),
            expect: |volume, tree, done| {
                let seen = bytes(volume, tree.f);
                assert!((LEN..=LEN + 140_000).contains(&seen.len()));
                assert!(!done || seen.len() == LEN + 140_000);
                written(&seen, &[7; LEN], LEN, 9, done);
            },
        },
        Case {
            name: "a shorter file",
            act: |volume, tree| volume.set_attr(tree.f, &size(10), ROOT).map(drop),
            expect: |volume, tree, done| {
                let seen = bytes(volume, tree.f);
                assert!(seen.len() == 10 || (!done && seen.len() == LEN));
                assert!(seen.iter().all(|byte| *byte == 7));
            },
        },
        Case {
            name: "a hole",
            act: |volume, tree| volume.allocate(tree.f, AllocateMode::PunchHole, 5, 69_000),
            expect: |volume, tree, done| {
                let seen = bytes(volume, tree.f);
                assert!(seen[..5].iter().chain(&seen[69_005..]).all(|byte| *byte == 7));
                let inside = &seen[5..69_005];
                assert!(inside.iter().all(|byte| *byte == 0 || (!done && *byte == 7)));
            },
        },
        Case {
            name: "memory in advance",
            act: |volume, tree| volume.allocate(tree.g, AllocateMode::Allocate, 5, 90_000),
            expect: |volume, tree, done| {
                let seen = bytes(volume, tree.g);
                assert!(seen.iter().all(|byte| *byte == 0));
                assert!(seen.len() == 90_005 || (!done && seen.is_empty()));
            },
        },
        Case {
            name: "an open file without a name",
            act: |volume, tree| {
                volume.open(tree.f)?;
                let written = volume.write(tree.f, 9, &[7; 20]).map(drop);
                let unlinked = volume.unlink(tree.x, b"f");
                volume.release(tree.f).and(written).and(unlinked)
            },
            expect: |volume, tree, done| match volume.lookup(tree.x, b"f") {
                Ok(_) => {
                    assert!(!done);
                    assert_eq!(bytes(volume, tree.f), [7; LEN]);
                }
                Err(FsError::NotFound) => {
                    let left = volume.attr(tree.f);
                    assert!(matches!(left, Err(FsError::NotFound)), "{left:?}");
                }
                Err(error) => panic!("{error}"),
            },
        },
    ]
}

/// Runs a case with a fault. Returns whether the fault occurred.
fn run(case: &Case, (at, count, fault): (u64, u64, Fault), expected: &[u64]) -> bool {
    let memory = TestVolumeMemory::new(6 << 20);
    let tree = plant(&memory);
    let label = format!("{}: {fault:?} at {at}, {count} times", case.name);
    let volume = memory.mount();
    memory.heap.troubles.fail(at, count, fault);
    let done = (case.act)(&volume, &tree);
    let met = memory.heap.troubles.heal();
    match &done {
        Ok(()) | Err(FsError::Io(_) | FsError::NoSpace | FsError::Busy) => {}
        Err(error) => panic!("{label}: {error}"),
    }
    volume.sweep().unwrap_or_else(|error| panic!("{label}: a sweep: {error}"));
    let other = memory.mount();
    // No claim or mark of a release of memory blocks another mount.
    for (mount, who) in [(&other, "the other"), (&volume, "the same")] {
        for ino in [tree.f, tree.g] {
            match mount.open(ino).and_then(|_| mount.release(ino)) {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => panic!("{label}: {who} opens: {error}"),
            }
        }
        (case.expect)(mount, &tree, done.is_ok());
    }
    // No two files share memory.
    let next = file(&volume, tree.x, b"next");
    volume.write(next, 0, &[3; 5_000]).unwrap();
    (case.expect)(&other, &tree, done.is_ok());
    assert_eq!(bytes(&other, next), [3; 5_000], "{label}");
    // Bytes behind the end are zeros.
    for ino in [tree.f, tree.g] {
        let Ok(attr) = other.attr(ino) else { continue };
        other.set_attr(ino, &size(attr.size + 300_000), ROOT).unwrap();
        let seen = bytes(&other, ino);
        assert!(seen[attr.size as usize..].iter().all(|byte| *byte == 0), "{label}: behind");
    }
    check(&other, &label);
    // Everything can be removed while the mount that met the fault is still open.
    other.close().unwrap();
    emptied(&memory);
    volume.sweep().unwrap();
    volume.close().unwrap_or_else(|error| panic!("{label}: closing: {error}"));
    assert_eq!(memory.heap.unfinished(), 0, "{label}: reservations");
    memory.heap.recover(|_| true, || {});
    assert_eq!(emptied(&memory), expected, "{label}: left");
    met
}

fn everywhere(count: u64, fault: Fault) {
    let memory = TestVolumeMemory::new(6 << 20);
    plant(&memory);
    let expected = emptied(&memory);
    for case in cases().into_iter().chain([never_named(), whiteout()]) {
        let mut at = 1;
        while run(&case, (at, count, fault), &expected) {
            at += 1;
        }
        assert!(at > 5, "{}: {at}", case.name);
    }
}

#[test]
fn a_swap_without_an_answer_that_was_made_does_no_harm() {
    everywhere(1, Fault::Applied);
}

#[test]
fn a_swap_without_an_answer_that_was_not_made_does_no_harm() {
    everywhere(1, Fault::Unapplied);
}

#[test]
fn an_operation_that_fails_does_no_harm() {
    everywhere(1, Fault::Refused);
}

#[test]
fn an_operation_that_fails_though_it_was_made_does_no_harm() {
    everywhere(1, Fault::Done);
}

#[test]
fn an_outage_of_many_operations_does_no_harm() {
    everywhere(25, Fault::Refused);
}

#[test]
fn an_allocation_that_fails_leaves_no_trace() {
    everywhere(1, Fault::Full);
    everywhere(1_000, Fault::Full);
}
