//! A mount is killed, or stopped, at each memory operation in turn. Other mounts see all of a
//! change or nothing, and no memory is leaked once all files are removed.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use rackpool_fs::{AllocateMode, FileType, FsError, Ino, RenameMode, SetAttr, Volume};
use support::table::scheduler::{Fate, scheduler};
use support::{ROOT, TestVolumeMemory, check, directory, emptied, file};

type Mount = Volume<TestVolumeMemory>;

/// What a mount does, and what other mounts may see of it.
struct Case {
    name: &'static str,
    act: fn(&Mount, &Tree) -> Result<(), FsError>,
    /// Panics unless the state is that before or after the change. Returns whether it is that
    /// after.
    is_done: fn(&Mount, &Tree) -> bool,
}

/// The initial state.
struct Tree {
    x: Ino,
    y: Ino,
    /// `x/f`, 70,000 bytes of 7.
    f: Ino,
    /// `y/g`, empty.
    g: Ino,
    /// The empty directory `x/d`, once large.
    d: Ino,
}

const LEN: usize = 70_000;

fn plant(memory: &TestVolumeMemory) -> Tree {
    let volume = memory.mount();
    let (x, y) = (directory(&volume, Ino::ROOT, b"x"), directory(&volume, Ino::ROOT, b"y"));
    let (f, g) = (file(&volume, x, b"f"), file(&volume, y, b"g"));
    let d = directory(&volume, x, b"d");
    volume.write(f, 0, &[7; LEN]).unwrap();
    let name = |number: u8| [&[b'a' + number; 200][..], b"name"].concat();
    for number in 0..12 {
        file(&volume, d, &name(number));
    }
    (0..12).for_each(|number| volume.unlink(d, &name(number)).unwrap());
    volume.close().unwrap();
    Tree { x, y, f, g, d }
}

fn ino_of(volume: &Mount, parent: Ino, name: &[u8]) -> Option<Ino> {
    match volume.lookup(parent, name) {
        Ok(attr) => Some(attr.ino),
        Err(FsError::NotFound) => None,
        Err(error) => panic!("{error}"),
    }
}

fn bytes(volume: &Mount, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; volume.attr(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn first_name() -> Case {
    Case {
        name: "the first name of a file that had none",
        act: |volume, tree| {
            let ino = volume.create_unnamed(tree.x, 0o600, ROOT)?.ino;
            volume.write(ino, 0, &[5; 5000])?;
            volume.link(ino, tree.x, b"new")?;
            volume.release(ino)
        },
        is_done: |volume, tree| {
            let found = ino_of(volume, tree.x, b"new");
            found.is_some_and(|ino| {
                assert_eq!(bytes(volume, ino), [5; 5000]);
                true
            })
        },
    }
}

fn whiteout() -> Case {
    Case {
        name: "a file in the place of another, and a whiteout in its own",
        act: |volume, tree| {
            let mode = RenameMode::Whiteout { owner: ROOT, replaces: true };
            volume.rename(tree.y, b"g", tree.x, b"f", mode)
        },
        is_done: |volume, tree| {
            let old = volume.lookup(tree.y, b"g").unwrap();
            let new = ino_of(volume, tree.x, b"f");
            match old.kind {
                FileType::File if (old.ino, new) == (tree.g, Some(tree.f)) => false,
                FileType::CharDevice if new == Some(tree.g) => {
                    assert_eq!((old.rdev, old.mode, old.nlink), (0, 0, 1));
                    true
                }
                _ => panic!("{old:?}, {new:?}"),
            }
        },
    }
}

fn name_cases() -> Vec<Case> {
    vec![
        Case {
            name: "a new file",
            act: |volume, tree| {
                let node = rackpool_fs::NewNode::File;
                volume.create(tree.x, b"new", node, 0o644, ROOT).map(drop)
            },
            is_done: |volume, tree| ino_of(volume, tree.x, b"new").is_some(),
        },
        Case {
            name: "a new file that is open",
            act: |volume, tree| volume.create_open(tree.x, b"new", 0o644, ROOT).map(drop),
            is_done: |volume, tree| ino_of(volume, tree.x, b"new").is_some(),
        },
        Case {
            name: "another name",
            act: |volume, tree| volume.link(tree.g, tree.x, b"new").map(drop),
            is_done: |volume, tree| {
                let done = ino_of(volume, tree.x, b"new") == Some(tree.g);
                assert_eq!(volume.attr(tree.g).unwrap().nlink, if done { 2 } else { 1 });
                done
            },
        },
        Case {
            name: "a removed file",
            act: |volume, tree| volume.unlink(tree.x, b"f"),
            is_done: |volume, tree| ino_of(volume, tree.x, b"f").is_none(),
        },
        Case {
            name: "a removed directory",
            act: |volume, tree| volume.rmdir(tree.x, b"d"),
            is_done: |volume, tree| ino_of(volume, tree.x, b"d").is_none(),
        },
        Case {
            name: "a file in the place of another",
            act: |volume, tree| volume.rename(tree.y, b"g", tree.x, b"f", RenameMode::Replace),
            is_done: |volume, tree| {
                let seen = (ino_of(volume, tree.y, b"g"), ino_of(volume, tree.x, b"f"));
                match seen {
                    (Some(g), Some(f)) if (g, f) == (tree.g, tree.f) => false,
                    (None, Some(f)) if f == tree.g => true,
                    _ => panic!("{seen:?}"),
                }
            },
        },
        Case {
            name: "a moved directory",
            act: |volume, tree| volume.rename(tree.x, b"d", tree.y, b"e", RenameMode::NoReplace),
            is_done: |volume, tree| {
                let seen = (ino_of(volume, tree.x, b"d"), ino_of(volume, tree.y, b"e"));
                let done = seen == (None, Some(tree.d));
                assert!(done || seen == (Some(tree.d), None), "{seen:?}");
                let parent = if done { tree.y } else { tree.x };
                assert_eq!(ino_of(volume, tree.d, b".."), Some(parent));
                done
            },
        },
        whiteout(),
        Case {
            name: "an exchange",
            act: |volume, tree| volume.rename(tree.x, b"d", tree.y, b"g", RenameMode::Exchange),
            is_done: |volume, tree| {
                let seen = (ino_of(volume, tree.x, b"d"), ino_of(volume, tree.y, b"g"));
                let done = seen == (Some(tree.g), Some(tree.d));
                assert!(done || seen == (Some(tree.d), Some(tree.g)), "{seen:?}");
                done
            },
        },
    ]
}

fn content_cases() -> Vec<Case> {
    vec![
        Case {
            name: "the first bytes of a file",
            act: |volume, tree| volume.write(tree.g, 60_000, &[9; 9_000]).map(drop),
            is_done: |volume, tree| {
                let seen = bytes(volume, tree.g);
                assert!(seen.is_empty() || seen.len() == 69_000, "{}", seen.len());
                assert!(seen.iter().take(60_000).all(|byte| *byte == 0));
                // Bytes of a write that was not acknowledged may be stored in part.
                assert!(seen.iter().all(|byte| matches!(byte, 0 | 9)));
                !seen.is_empty() && seen[60_000..].iter().all(|byte| *byte == 9)
            },
        },
        Case {
            name: "bytes behind the end",
            act: |volume, tree| volume.append(tree.f, &[9; 70_000]).map(drop),
            is_done: |volume, tree| {
                let seen = bytes(volume, tree.f);
                assert!(seen.len() == LEN || seen.len() == LEN + 70_000, "{}", seen.len());
                assert!(seen[..LEN].iter().all(|byte| *byte == 7));
                seen.len() > LEN && seen[LEN..].iter().all(|byte| *byte == 9)
            },
        },
        Case {
            name: "a shorter file",
            act: |volume, tree| {
                let change = SetAttr { size: Some(10), ..SetAttr::default() };
                volume.set_attr(tree.f, &change, ROOT).map(drop)
            },
            is_done: |volume, tree| {
                let seen = bytes(volume, tree.f);
                let done = seen.len() == 10;
                assert!(done || seen.len() == LEN);
                assert!(seen.iter().all(|byte| *byte == 7));
                if done {
                    // Bytes that were cut off do not come back.
                    volume.write(tree.f, 80_000, b"x").unwrap();
                    assert!(bytes(volume, tree.f)[10..80_000].iter().all(|byte| *byte == 0));
                    let change = SetAttr { size: Some(10), ..SetAttr::default() };
                    volume.set_attr(tree.f, &change, ROOT).unwrap();
                }
                done
            },
        },
        Case {
            name: "a hole",
            act: |volume, tree| volume.allocate(tree.f, AllocateMode::PunchHole, 5, 69_000),
            is_done: |volume, tree| {
                let seen = bytes(volume, tree.f);
                assert!(seen[..5].iter().chain(&seen[69_005..]).all(|byte| *byte == 7));
                assert!(seen.iter().all(|byte| matches!(byte, 0 | 7)));
                seen[5..69_005].iter().all(|byte| *byte == 0)
            },
        },
        Case {
            name: "a file removed while it is open",
            act: |volume, tree| {
                volume.open(tree.f)?;
                volume.unlink(tree.x, b"f")?;
                assert_eq!(bytes(volume, tree.f), [7; LEN]);
                volume.release(tree.f)
            },
            is_done: |volume, tree| ino_of(volume, tree.x, b"f").is_none(),
        },
    ]
}

/// Runs a case with the victim's fate. Returns whether the victim reached it.
fn run(case: &Case, fate: Fate, expected: &[u64]) -> bool {
    let memory = TestVolumeMemory::new(6 << 20);
    let tree = plant(&memory);
    let label = format!("{}: {fate:?}", case.name);
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    memory.heap.schedule(std::sync::Arc::clone(&time));
    let resolve = || memory.heap.recover(|client| client == Some(0), || {});
    let is_kill = matches!(fate, Fate::KilledAt(_));
    let victim = || {
        let volume = memory.mount();
        match (case.act)(&volume, &tree) {
            // Another mount works on the file, and was stopped there.
            Ok(()) | Err(FsError::Busy) => {}
            Err(error) => panic!("{label}: {error}"),
        }
        let _ = volume.close();
    };
    let survivor = || {
        if is_kill {
            resolve();
            let volume = memory.mount();
            let before = (case.is_done)(&volume, &tree);
            volume.sweep().unwrap();
            assert_eq!((case.is_done)(&volume, &tree), before, "{label}");
            check(&volume, &label);
            volume.close().unwrap();
        } else {
            // A stopped mount does not block operations on other files.
            let volume = memory.mount();
            check(&volume, &label);
            volume.create(tree.y, b"other", rackpool_fs::NewNode::File, 0o644, ROOT).unwrap();
            volume.close().unwrap();
        }
    };
    let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
    resolve();
    if !killed {
        let volume = memory.mount();
        assert!((case.is_done)(&volume, &tree), "{label}");
        check(&volume, &label);
        volume.close().unwrap();
    }
    assert_eq!(emptied(&memory), expected, "{label}: left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

fn everywhere(cases: &[Case], fate: fn(u64) -> Fate) {
    let memory = TestVolumeMemory::new(6 << 20);
    plant(&memory);
    let expected = emptied(&memory);
    for case in cases {
        let mut at = 1;
        while run(case, fate(at), &expected) {
            at += 1;
        }
        assert!(at > 50, "{}: {at}", case.name);
    }
}

#[test]
fn a_mount_killed_at_any_step_of_a_change_of_names_has_made_all_of_it_or_nothing() {
    everywhere(&name_cases(), Fate::KilledAt);
    everywhere(&[first_name()], Fate::KilledAt);
}

#[test]
fn a_mount_killed_at_any_step_of_a_change_of_contents_leaves_nothing_behind() {
    everywhere(&content_cases(), Fate::KilledAt);
}

#[test]
fn a_mount_stopped_at_any_step_keeps_no_other_from_using_names_and_finishes_later() {
    everywhere(&name_cases(), Fate::StoppedAt);
    everywhere(&[first_name()], Fate::StoppedAt);
}
