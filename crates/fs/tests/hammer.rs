//! Several mounts at once, with free-running threads, and with threads that are switched, stopped
//! and killed at every word. The tree stays consistent, and no memory is leaked.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use rackpool_fs::{FsError, Ino, NewNode, RenameMode, SetAttr, Volume};
use rackpool_sync::SplitMix64;
use support::table::interleaving::seeds;
use support::table::scheduler::{Fate, Scheduler};
use support::{ROOT, TestVolumeMemory, check, directory, emptied, file};

type Mount = Volume<TestVolumeMemory>;

/// Does something to one of a few names in one of the directories.
fn act(volume: &Mount, directories: &[Ino], stream: &mut SplitMix64) -> Result<(), FsError> {
    let mut pick = |count: usize| stream.draw() as usize % count;
    let (from, to) = (directories[pick(directories.len())], directories[pick(directories.len())]);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"a longer name"];
    let (name, other) = (names[pick(4)], names[pick(4)]);
    let bytes = vec![pick(255) as u8 | 1; 1 + pick(9000)];
    match pick(12) {
        0 | 1 => volume.create(from, name, NewNode::File, 0o644, ROOT).map(drop),
        2 => volume.create(from, name, NewNode::Directory, 0o755, ROOT).map(drop),
        3 => volume.unlink(from, name),
        4 => volume.rmdir(from, name),
        5 | 6 => volume.rename(from, name, to, other, RenameMode::Replace),
        7 => volume.rename(from, name, to, other, RenameMode::Exchange),
        8 => {
            let ino = volume.lookup(from, name)?.ino;
            volume.link(ino, to, other).map(drop)
        }
        9 => {
            let ino = volume.lookup(from, name)?.ino;
            volume.write(ino, pick(100_000) as u64, &bytes).map(drop)
        }
        10 => {
            let ino = volume.lookup(from, name)?.ino;
            let change = SetAttr { size: Some(pick(90_000) as u64), ..SetAttr::default() };
            volume.set_attr(ino, &change, ROOT).map(drop)
        }
        _ => {
            let ino = volume.lookup(from, name)?.ino;
            volume.open(ino)?;
            volume.unlink(from, name)?;
            volume.append(ino, &bytes)?;
            volume.release(ino)
        }
    }
}

/// Errors that result from other mounts' changes or claims.
const fn is_expected(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::InvalidArgument
            | FsError::Permission
            | FsError::Busy
    )
}

fn plant(memory: &TestVolumeMemory) -> Vec<Ino> {
    let volume = memory.mount();
    let first = directory(&volume, Ino::ROOT, b"first");
    let inner = directory(&volume, first, b"inner");
    volume.close().unwrap();
    vec![Ino::ROOT, first, inner]
}

/// The allocations, without those that depend on how far the table and the pages of heads have
/// grown.
fn lasting(memory: &TestVolumeMemory) -> Vec<u64> {
    let mut live = emptied(memory);
    live.retain(|size| !matches!(*size, 4096 | 32_768));
    live
}

#[test]
fn mounts_that_change_everything_at_once_leave_a_whole_tree() {
    let memory = TestVolumeMemory::new(64 << 20);
    let directories = plant(&memory);
    let mounts: Vec<Mount> =
        (0..2).map(|_| memory.mount().with_lock_wait(Duration::from_secs(60))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (volume, directories) = (&mounts[thread as usize % 2], &directories);
            scope.spawn(move || {
                let mut stream = SplitMix64::new(thread);
                for _ in 0..1500 {
                    if let Err(error) = act(volume, directories, &mut stream) {
                        assert!(is_expected(&error), "{error}");
                    }
                }
            });
        }
    });
    check(&mounts[0], "both");
    for volume in mounts {
        volume.close().unwrap();
    }
    let left = lasting(&memory);
    let fresh = TestVolumeMemory::new(64 << 20);
    plant(&fresh);
    assert_eq!(left, lasting(&fresh));
}

#[test]
fn appends_of_all_mounts_stand_in_the_file_once_and_whole() {
    const RECORDS: u64 = 150;
    let memory = TestVolumeMemory::new(64 << 20);
    let mounts: Vec<Mount> =
        (0..2).map(|_| memory.mount().with_lock_wait(Duration::from_secs(60))).collect();
    let ino = file(&mounts[0], Ino::ROOT, b"log");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let volume = &mounts[thread as usize % 2];
            scope.spawn(move || {
                volume.open(ino).unwrap();
                for number in 0..RECORDS {
                    // Whole words: the test's memory has no smaller unit.
                    let words = 2 + (number * 7 + thread) % 100;
                    let head = [words, thread << 32 | number];
                    let record: Vec<u8> = (0..words)
                        .map(|word| head.get(word as usize).copied().unwrap_or(thread))
                        .flat_map(u64::to_le_bytes)
                        .collect();
                    volume.append(ino, &record).unwrap();
                }
                volume.release(ino).unwrap();
            });
        }
    });
    let mut bytes = vec![0; mounts[1].attr(ino).unwrap().size as usize];
    mounts[1].read(ino, 0, &mut bytes).unwrap();
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (mut rest, mut seen) = (&words[..], Vec::new());
    while let [len, id, ..] = *rest {
        let (record, next) = rest.split_at(len as usize);
        assert!(record[2..].iter().all(|word| *word == id >> 32), "{record:?}");
        seen.push(id);
        rest = next;
    }
    seen.sort_unstable();
    let all: Vec<u64> =
        (0..4).flat_map(|thread| (0..RECORDS).map(move |number| thread << 32 | number)).collect();
    assert_eq!(seen, all);
}

/// Runs mounts with these fates, switched at any word.
fn run(seed: u64, fates: &[Fate]) {
    let memory = TestVolumeMemory::new(12 << 20);
    let directories = plant(&memory);
    let time = Arc::new(Scheduler::new(seed, fates));
    memory.heap.schedule(Arc::clone(&time));
    let clients = (0..fates.len() as u64)
        .map(|client| {
            let (memory, directories) = (&memory, &directories);
            let body = move || {
                let volume = memory.mount();
                let mut stream = SplitMix64::new(seed * 31 + client);
                for _ in 0..12 {
                    if let Err(error) = act(&volume, directories, &mut stream) {
                        assert!(is_expected(&error), "seed {seed}: {error}");
                    }
                }
                let _ = volume.close();
            };
            Box::new(body) as Box<dyn FnOnce() + Send>
        })
        .collect();
    time.run(clients);
    memory.heap.recover(|client| client.is_some(), || {});
    let label = format!("seed {seed} {fates:?}");
    let volume = memory.mount();
    check(&volume, &label);
    volume.close().unwrap();
    let left = lasting(&memory);
    let fresh = TestVolumeMemory::new(12 << 20);
    plant(&fresh);
    assert_eq!(left, lasting(&fresh), "{label}: left");
}

#[test]
fn any_interleaving_of_mounts_leaves_a_whole_tree() {
    for seed in seeds(40) {
        run(seed, &[Fate::Lives; 3]);
    }
}

#[test]
fn mounts_that_are_killed_or_stopped_anywhere_leave_a_whole_tree() {
    for seed in seeds(40) {
        let mut stream = SplitMix64::new(seed);
        let at = stream.draw() % 500 + 1;
        let fate = if seed % 3 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        run(seed, &[fate, Fate::KilledAt(stream.draw() % 500 + 1), Fate::Lives]);
    }
}
