//! Bytes of a volume overwritten by something else. Operations may return any result or error, but
//! they must end, and must not write to memory that is not allocated.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use rackpool_client::GlobalAddr;
use rackpool_fs::{FsError, Ino, RenameMode, SetAttr, Volume, VolumeOpenError};
use rackpool_kv::Memory;
use support::{ROOT, TestVolumeMemory, directory, file, names};

fn plant(memory: &TestVolumeMemory) -> (Ino, Ino) {
    let volume = memory.mount();
    let home = directory(&volume, Ino::ROOT, b"home");
    let ino = file(&volume, home, b"file");
    volume.write(ino, 0, &[7; 200_000]).unwrap();
    volume.write(ino, 600_000, &[7; 5]).unwrap();
    volume.close().unwrap();
    (home, ino)
}

/// Runs many operations; all errors are accepted.
fn look(volume: &Volume<TestVolumeMemory>, (home, ino): (Ino, Ino)) {
    let _ = volume.lookup(Ino::ROOT, b"home");
    let _ = names(volume, home);
    let _ = volume.attr(ino);
    let _ = volume.open(ino);
    let _ = volume.read(ino, 0, &mut [0; 1000]);
    let _ = volume.read(ino, 599_000, &mut [0; 2000]);
    let _ = volume.seek_hole(ino, 0);
    let _ = volume.seek_data(ino, 300_000);
    let _ = volume.release(ino);
}

#[test]
fn damage_is_an_error_and_no_endless_search() {
    let memory = TestVolumeMemory::new(12 << 20);
    let planted = plant(&memory);
    let volume = memory.mount();
    // Runs of files hold arbitrary bytes; damage of the table's directory is tested by the table.
    let lines = memory.heap.live_lines().into_iter().filter(|line| {
        let of =
            |size: u64| memory.heap.live_of(size).iter().any(|at| (*at..at + size).contains(line));
        !of(64 << 10) && !of(512 << 10) && !of(32 << 10)
    });
    let mut tried = 0;
    for line in lines {
        let addr = GlobalAddr::from_raw(line);
        let mut kept = [0; 64];
        memory.heap.read(addr, &mut kept).unwrap();
        if kept == [0; 64] || kept == [7; 64] {
            continue;
        }
        tried += 1;
        for junk in [[0; 64], [0x5a; 64], [0xff; 64], kept.map(|byte| byte ^ 1)] {
            memory.heap.write(addr, &junk).unwrap();
            look(&volume, planted);
            memory.heap.write(addr, &kept).unwrap();
        }
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn values_that_no_volume_has_are_damage() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (home, ino) = plant(&memory);
    let volume = memory.mount();
    let set = |key: &[u8], value: &[u8]| {
        let table = memory.table();
        table.handle().put(key, &[&[0], value].concat()).unwrap();
    };
    let inode_key = |ino: Ino| [&b"i"[..], &ino.0.to_be_bytes()].concat();
    set(&inode_key(ino), b"junk");
    assert!(matches!(volume.attr(ino), Err(FsError::Damaged(_))));
    let change = SetAttr { mode: Some(0), ..SetAttr::default() };
    assert!(matches!(volume.set_attr(ino, &change, ROOT), Err(FsError::Damaged(_))));
    assert!(matches!(volume.unlink(home, b"file"), Err(FsError::Damaged(_))));
    // An entry without an inode.
    memory.table().handle().delete(&inode_key(ino)).unwrap();
    assert!(matches!(volume.lookup(home, b"file"), Err(FsError::Damaged(_))));
    assert!(matches!(volume.unlink(home, b"file"), Err(FsError::Damaged(_))));
    let rename = volume.rename(home, b"file", Ino::ROOT, b"file", RenameMode::Replace);
    assert!(matches!(rename, Err(FsError::Damaged(_))), "{rename:?}");
    let node = [&b"d"[..], &home.0.to_be_bytes(), &[0; 9]].concat();
    for junk in [&b"\x07"[..], b"\0short", &[0; 300]] {
        set(&node, junk);
        assert!(matches!(names(&volume, home), Err(FsError::Damaged(_))), "{junk:?}");
        assert!(matches!(volume.lookup(home, b"file"), Err(FsError::Damaged(_))));
    }
    // Nodes that are split beyond the greatest depth.
    for depth in 0..14_u8 {
        for prefix in 0..16_u64 {
            let place = [&[depth][..], &prefix.to_be_bytes()].concat();
            set(&[&b"d"[..], &home.0.to_be_bytes(), &place].concat(), &[1]);
        }
    }
    let _ = names(&volume, home);
}

#[test]
fn only_volumes_are_opened() {
    let memory = TestVolumeMemory::new(12 << 20);
    let open = |name: &str| Volume::open_or_create(memory.clone(), name).map(drop);
    assert!(matches!(open(""), Err(VolumeOpenError::Name)));
    assert!(matches!(open(&"n".repeat(201)), Err(VolumeOpenError::Name)));
    plant(&memory);
    let superblock = memory.superblock();
    memory.heap.write(GlobalAddr::from_raw(superblock.raw() + 8), &[9; 8]).unwrap();
    assert!(matches!(open("test"), Err(VolumeOpenError::NotAVolume { .. })));
    memory
        .heap
        .write(GlobalAddr::from_raw(superblock.raw() + 8), &[9, 0, 0, 0, 0, 0, 0, 0])
        .unwrap();
    assert!(matches!(open("test"), Err(VolumeOpenError::Version { found: 9, .. })));
}

#[test]
fn a_file_in_the_hands_of_a_mount_that_does_not_go_on_is_busy_and_not_for_ever() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (_, ino) = plant(&memory);
    let (first, second) = (memory.mount(), memory.mount());
    first.open(ino).unwrap();
    memory.claim(ino);
    let second = second.with_lock_wait(Duration::from_millis(20));
    assert!(matches!(second.open(ino), Err(FsError::Busy)));
    assert_eq!(second.attr(ino).unwrap().size, 600_005);
    drop(first);
    // The first mount is gone, and the second finishes what it had begun.
    second.open(ino).unwrap();
    second.append(ino, b"x").unwrap();
    second.release(ino).unwrap();
}

/// The table's value of an inode, without its leading tag.
fn inode_value(memory: &TestVolumeMemory, ino: Ino) -> Vec<u8> {
    let (mut handle, mut value) = (memory.table().handle(), Vec::new());
    assert!(handle.get(&[&b"i"[..], &ino.0.to_be_bytes()].concat(), &mut value).unwrap());
    value.split_off(1)
}

fn set_inode(memory: &TestVolumeMemory, ino: Ino, value: &[u8]) {
    let key = [&b"i"[..], &ino.0.to_be_bytes()].concat();
    memory.table().handle().put(&key, &[&[0], value].concat()).unwrap();
}

fn head_of(memory: &TestVolumeMemory, ino: Ino) -> u64 {
    u64::from_le_bytes(*inode_value(memory, ino)[96..].first_chunk().unwrap())
}

fn word(memory: &TestVolumeMemory, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.heap.read(GlobalAddr::from_raw(at), &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn set_word(memory: &TestVolumeMemory, at: u64, word: u64) {
    memory.heap.write(GlobalAddr::from_raw(at), &word.to_le_bytes()).unwrap();
}

#[test]
fn pages_of_heads_in_a_circle_are_damage() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (home, _) = plant(&memory);
    let first = word(&memory, memory.superblock().raw() + 40);
    set_word(&memory, (first & !0x7f) + 8, first);
    let volume = memory.mount();
    let ino = file(&volume, home, b"another");
    assert!(matches!(volume.write(ino, 0, b"x"), Err(FsError::Damaged(_))));
    assert!(matches!(volume.sweep(), Err(FsError::Damaged(_))));
}

#[test]
fn nodes_that_more_than_one_word_leads_to_are_damage() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (home, _) = plant(&memory);
    let volume = memory.mount();
    let ino = file(&volume, home, b"deep");
    volume.open(ino).unwrap();
    volume.write(ino, 1 << 62, b"x").unwrap();
    // The tree of the highest level: a node whose words all lead to itself.
    let node = word(&memory, head_of(&memory, ino) + 8 * 7);
    for number in 0..512 {
        set_word(&memory, (node & !0x7f) + 8 * number, node);
    }
    let other = memory.mount();
    other.open(ino).unwrap();
    assert!(matches!(other.seek_data(ino, 1 << 61), Err(FsError::Damaged(_))));
    assert!(matches!(other.seek_hole(ino, (1 << 62) - 1), Err(FsError::Damaged(_))));
    // Once while the other mount has the file open, once alone.
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    for mount in [&volume, &other] {
        // The second mount waits for the first one's claim.
        let cut = mount.set_attr(ino, &size(1), ROOT);
        assert!(matches!(cut, Err(FsError::Damaged(_) | FsError::Busy)), "{cut:?}");
        let _ = mount.release(ino);
    }
}

#[test]
fn memory_of_another_file_is_not_freed() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (home, ino) = plant(&memory);
    let volume = memory.mount();
    let thief = file(&volume, home, b"thief");
    volume.write(thief, 0, b"x").unwrap();
    let mut value = inode_value(&memory, thief);
    value[96..104].copy_from_slice(&head_of(&memory, ino).to_le_bytes());
    set_inode(&memory, thief, &value);
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    assert!(matches!(volume.set_attr(thief, &empty, ROOT), Err(FsError::Damaged(_))));
    drop(volume);
    let volume = memory.mount();
    volume.unlink(home, b"thief").unwrap();
    volume.sweep().unwrap();
    assert!(matches!(volume.attr(thief), Err(FsError::NotFound)));
    let mut bytes = vec![0; 200_000];
    volume.read(ino, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_damaged_inode_keeps_no_other_head_from_being_found() {
    let memory = TestVolumeMemory::new(12 << 20);
    let volume = memory.mount();
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let inos = [&b"first"[..], b"second"].map(|name| {
        let ino = file(&volume, Ino::ROOT, name);
        volume.write(ino, 0, b"x").unwrap();
        volume.set_attr(ino, &empty, ROOT).unwrap();
        ino
    });
    let mut heads = inos.map(|ino| (head_of(&memory, ino), ino));
    heads.sort_unstable();
    let [(_, damaged), (head, gone)] = heads;
    set_inode(&memory, damaged, b"junk");
    memory.table().handle().delete(&[&b"i"[..], &gone.0.to_be_bytes()].concat()).unwrap();
    assert_eq!(word(&memory, head), gone.0);
    assert!(matches!(volume.sweep(), Err(FsError::Damaged(_))));
    assert_eq!(word(&memory, head), 0);
}

#[test]
fn numbers_beyond_all_bounds_do_not_overflow() {
    let memory = TestVolumeMemory::new(12 << 20);
    let (home, ino) = plant(&memory);
    let volume = memory.mount();
    for number in [u64::MAX, i64::MAX as u64, i64::MIN as u64] {
        for at in [20, 28, 36, 48, 60, 72, 88] {
            for ino in [ino, home] {
                let kept = inode_value(&memory, ino);
                let mut value = kept.clone();
                value[at..at + 8].copy_from_slice(&number.to_le_bytes());
                set_inode(&memory, ino, &value);
                look(&volume, (home, ino));
                let change = SetAttr { mode: Some(0), ..SetAttr::default() };
                let _ = volume.set_attr(ino, &change, ROOT);
                let _ = volume.create(home, b"new", rackpool_fs::NewNode::Directory, 0, ROOT);
                let _ = volume.rmdir(home, b"new");
                let _ = volume.read_dir(home, u64::MAX, &mut |_| true);
                let _ = volume.write(ino, 0, b"x");
                set_inode(&memory, ino, &kept);
            }
        }
    }
}
