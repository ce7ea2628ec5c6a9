//! Operations on names, by two mounts in turn; and that no memory is leaked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rackpool_fs::{Caller, FileType, FsError, Ino, NewNode, RenameMode, SetAttr, Volume};
use support::{ROOT, TestVolumeMemory, check, directory, file, names};

macro_rules! refused {
    ($result:expr, $error:pat) => {{
        let result = $result;
        assert!(matches!(result, Err($error)), "{result:?}");
    }};
}

#[test]
fn what_one_mount_makes_the_other_finds() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let home = directory(&a, Ino::ROOT, b"home");
    let ino = file(&b, home, b"notes");
    assert_eq!(a.lookup(home, b"notes").unwrap().ino, ino);
    assert_eq!(a.lookup(home, b"..").unwrap().ino, Ino::ROOT);
    assert_eq!(b.attr(Ino::ROOT).unwrap().nlink, 3);
    refused!(a.lookup(home, b"other"), FsError::NotFound);
    refused!(a.lookup(ino, b"other"), FsError::NotDirectory);
    refused!(b.create(home, b"notes", NewNode::File, 0, ROOT), FsError::Exists);
    refused!(b.create(home, &[b'n'; 256], NewNode::File, 0, ROOT), FsError::NameTooLong);
    refused!(b.create(ino, b"x", NewNode::File, 0, ROOT), FsError::NotDirectory);
    refused!(a.rmdir(Ino::ROOT, b"home"), FsError::NotEmpty);
    refused!(a.unlink(Ino::ROOT, b"home"), FsError::IsDirectory);
    refused!(a.rmdir(home, b"notes"), FsError::NotDirectory);
    let target = a.create(home, b"to", NewNode::Symlink(b"../x"), 0, ROOT).unwrap();
    assert_eq!((target.kind, target.size), (FileType::Symlink, 4));
    assert_eq!(b.readlink(target.ino).unwrap(), b"../x");
    assert_eq!(b.link(ino, Ino::ROOT, b"again").unwrap().nlink, 2);
    a.unlink(home, b"notes").unwrap();
    assert_eq!(b.attr(ino).unwrap().nlink, 1);
    b.unlink(Ino::ROOT, b"again").unwrap();
    refused!(a.attr(ino), FsError::NotFound);
    a.unlink(home, b"to").unwrap();
    a.rmdir(Ino::ROOT, b"home").unwrap();
    assert_eq!(b.attr(Ino::ROOT).unwrap().nlink, 2);
    refused!(a.create(home, b"late", NewNode::File, 0, ROOT), FsError::NotFound);
}

#[test]
fn the_root_belongs_to_who_made_the_volume() {
    let memory = TestVolumeMemory::new(64 << 20);
    for uid in [1000, 1001] {
        let owner = Caller::new(uid, 100);
        let volume = Volume::open_or_create_for(memory.clone(), "theirs", owner).unwrap();
        let root = volume.attr(Ino::ROOT).unwrap();
        assert_eq!((root.uid, root.gid, root.mode), (1000, 100, 0o755));
    }
    let root = memory.mount().attr(Ino::ROOT).unwrap();
    assert_eq!((root.uid, root.gid), (0, 0));
}

#[test]
fn a_large_directory_is_read_in_parts_and_goes_without_a_trace() {
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let home = directory(&volume, Ino::ROOT, b"home");
    let name = |number: u32| format!("{number}{}", "-".repeat(number as usize % 200)).into_bytes();
    let before = memory.used();
    let mut expected: Vec<Vec<u8>> = (0..2000).map(name).collect();
    for name in &expected {
        file(&volume, home, name);
    }
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let mut count = 0;
        volume
            .read_dir(home, cookie, &mut |entry| {
                count += 1;
                cookie = entry.cookie;
                seen.push(entry.name.to_vec());
                count < 7
            })
            .unwrap();
        if count == 0 {
            break;
        }
        // Entries added and removed meanwhile do not affect the others.
        file(&volume, home, b"passing");
        volume.unlink(home, b"passing").unwrap();
    }
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(volume.attr(home).unwrap().size, 4096 + 2000 * 64);
    for number in 0..2000 {
        volume.unlink(home, &name(number)).unwrap();
    }
    volume.rmdir(Ino::ROOT, b"home").unwrap();
    volume.sweep().unwrap();
    // The table's segments stay allocated; entries do not.
    let segments = memory.heap.live().iter().filter(|size| **size == 32 << 10).count() as u64;
    assert!(memory.used() - segments * (32 << 10) <= before, "{:?}", memory.heap.live());
}

#[test]
fn renames_follow_the_rules() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let (x, y) = (directory(&a, Ino::ROOT, b"x"), directory(&b, Ino::ROOT, b"y"));
    let (f, g) = (file(&a, x, b"f"), file(&b, y, b"g"));
    let rename =
        |volume: &rackpool_fs::Volume<TestVolumeMemory>, from, name: &[u8], to, new: &[u8]| {
            volume.rename(from, name, to, new, RenameMode::Replace)
        };
    refused!(a.rename(x, b"f", y, b"g", RenameMode::NoReplace), FsError::Exists);
    refused!(a.rename(x, b"f", y, b"h", RenameMode::Exchange), FsError::NotFound);
    refused!(rename(&a, x, b"none", y, b"g"), FsError::NotFound);
    a.rename(x, b"f", y, b"g", RenameMode::Exchange).unwrap();
    assert_eq!((b.lookup(x, b"f").unwrap().ino, b.lookup(y, b"g").unwrap().ino), (g, f));
    rename(&b, x, b"f", y, b"g").unwrap();
    assert_eq!((names(&a, x).unwrap().len(), a.lookup(y, b"g").unwrap().ino), (0, g));
    refused!(a.attr(f), FsError::NotFound);
    refused!(rename(&a, Ino::ROOT, b"x", y, b"g"), FsError::NotDirectory);
    refused!(rename(&a, y, b"g", Ino::ROOT, b"x"), FsError::IsDirectory);
    refused!(rename(&a, Ino::ROOT, b"x", Ino::ROOT, b"y"), FsError::NotEmpty);
    let inner = directory(&a, x, b"inner");
    refused!(rename(&b, Ino::ROOT, b"x", inner, b"x"), FsError::InvalidArgument);
    refused!(rename(&b, Ino::ROOT, b"x", x, b"x"), FsError::InvalidArgument);
    rename(&b, x, b"inner", y, b"moved").unwrap();
    assert_eq!(a.lookup(inner, b"..").unwrap().ino, y);
    assert_eq!((a.attr(x).unwrap().nlink, a.attr(y).unwrap().nlink), (2, 3));
    // A directory replaces an empty one, which is freed.
    rename(&a, Ino::ROOT, b"x", y, b"moved").unwrap();
    refused!(b.attr(inner), FsError::NotFound);
    assert_eq!((b.attr(y).unwrap().nlink, b.attr(Ino::ROOT).unwrap().nlink), (3, 3));
    // Renaming one name of a file to another name of it changes nothing.
    a.link(g, y, b"g2").unwrap();
    rename(&a, y, b"g", y, b"g2").unwrap();
    assert_eq!(names(&b, y).unwrap(), [b"g".to_vec(), b"g2".to_vec(), b"moved".to_vec()]);
    rename(&a, y, b"g", y, b"a-new-name").unwrap();
    assert_eq!(names(&b, y).unwrap().len(), 3);
}

#[test]
fn a_whiteout_takes_the_place_of_what_was_renamed() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let (x, y) = (directory(&a, Ino::ROOT, b"x"), directory(&a, Ino::ROOT, b"y"));
    let (d, f) = (directory(&a, x, b"d"), file(&a, x, b"f"));
    let owner = Caller::new(5, 6);
    let whiteout = |replaces| RenameMode::Whiteout { owner, replaces };
    a.rename(x, b"d", y, b"d", whiteout(false)).unwrap();
    let left = b.lookup(x, b"d").unwrap();
    assert_eq!((left.kind, left.rdev, left.mode), (FileType::CharDevice, 0, 0));
    assert_eq!((left.uid, left.gid, left.nlink), (5, 6, 1));
    assert_eq!((b.lookup(y, b"d").unwrap().ino, b.lookup(d, b"..").unwrap().ino), (d, y));
    check(&b, "a directory that left a whiteout");
    // A refused replacement leaves both names as they were.
    refused!(a.rename(x, b"f", y, b"d", whiteout(true)), FsError::IsDirectory);
    a.link(f, y, b"f").unwrap();
    refused!(a.rename(x, b"d", y, b"f", whiteout(false)), FsError::Exists);
    // Two names of one file: nothing happens.
    a.rename(x, b"f", y, b"f", whiteout(true)).unwrap();
    assert_eq!((b.lookup(x, b"f").unwrap().ino, b.attr(f).unwrap().nlink), (f, 2));
    // A whiteout is replaced and moved as any other file.
    b.rename(y, b"f", x, b"d", whiteout(true)).unwrap();
    refused!(a.attr(left.ino), FsError::NotFound);
    assert_eq!(a.lookup(y, b"f").unwrap().kind, FileType::CharDevice);
    check(&a, "whiteouts");
}

#[test]
fn groups_are_inherited_and_a_new_owner_drops_privileges() {
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let home = directory(&volume, Ino::ROOT, b"home");
    let change = SetAttr { gid: Some(7), ..SetAttr::default() };
    volume.set_attr(home, &change, ROOT).unwrap();
    volume.set_attr(home, &SetAttr { mode: Some(0o2775), ..SetAttr::default() }, ROOT).unwrap();
    let user = Caller::new(5, 6);
    let inner = volume.create(home, b"d", NewNode::Directory, 0o755, user).unwrap();
    assert_eq!((inner.uid, inner.gid, inner.mode), (5, 7, 0o2755));
    let ino = volume.create(home, b"f", NewNode::File, 0o6755, user).unwrap().ino;
    let owned =
        volume.set_attr(ino, &SetAttr { uid: Some(9), ..SetAttr::default() }, ROOT).unwrap();
    assert_eq!((owned.uid, owned.gid, owned.mode), (9, 7, 0o755));
    assert!(owned.ctime >= owned.mtime && owned.change > 1);
}

#[test]
fn a_file_without_a_name_can_get_one_once() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let before = memory.used();
    let made = a.create_unnamed(Ino::ROOT, 0o600, ROOT).unwrap();
    assert_eq!((made.nlink, made.kind, made.mode), (0, FileType::File, 0o600));
    a.write(made.ino, 0, b"nobody sees it yet").unwrap();
    b.sweep().unwrap();
    assert_eq!(names(&b, Ino::ROOT).unwrap().len(), 0);
    assert_eq!(a.link(made.ino, Ino::ROOT, b"name").unwrap().nlink, 1);
    a.release(made.ino).unwrap();
    let mut read = [0; 6];
    b.read(b.lookup(Ino::ROOT, b"name").unwrap().ino, 0, &mut read).unwrap();
    assert_eq!(&read, b"nobody");
    b.open(made.ino).unwrap();
    b.unlink(Ino::ROOT, b"name").unwrap();
    refused!(b.link(made.ino, Ino::ROOT, b"again"), FsError::NotFound);
    b.release(made.ino).unwrap();
    refused!(a.attr(made.ino), FsError::NotFound);
    // A file that never gets a name is freed by its last release.
    let other = a.create_unnamed(Ino::ROOT, 0o600, ROOT).unwrap();
    a.write(other.ino, 0, &[1; 200_000]).unwrap();
    a.release(other.ino).unwrap();
    refused!(b.attr(other.ino), FsError::NotFound);
    refused!(a.create_unnamed(other.ino, 0, ROOT), FsError::NotFound);
    assert!(memory.used() <= before + 4096 * 2, "{} B of {before} B", memory.used());
}

#[test]
fn what_is_used_unopened_outlives_its_last_name_until_it_is_forgotten() {
    let memory = TestVolumeMemory::new(16 << 20);
    let (a, b) = (memory.mount().with_nameless_kept(), memory.mount());
    let pipe = a.create(Ino::ROOT, b"pipe", NewNode::Fifo, 0o600, ROOT).unwrap().ino;
    let replaced = a.create(Ino::ROOT, b"other", NewNode::Fifo, 0o600, ROOT).unwrap().ino;
    let folder = directory(&a, Ino::ROOT, b"folder");
    let file = a.create(Ino::ROOT, b"file", NewNode::File, 0o600, ROOT).unwrap().ino;
    // Many names, so that the directory has nodes of its own.
    for name in 0..300 {
        a.create(folder, format!("{name}").as_bytes(), NewNode::Fifo, 0o600, ROOT).unwrap();
    }
    for name in 0..300 {
        b.unlink(folder, format!("{name}").as_bytes()).unwrap();
    }
    a.unlink(Ino::ROOT, b"pipe").unwrap();
    a.create(Ino::ROOT, b"new", NewNode::Fifo, 0o600, ROOT).unwrap();
    a.rename(Ino::ROOT, b"new", Ino::ROOT, b"other", RenameMode::Replace).unwrap();
    a.rmdir(Ino::ROOT, b"folder").unwrap();
    a.unlink(Ino::ROOT, b"file").unwrap();
    refused!(a.attr(file), FsError::NotFound);
    for ino in [pipe, replaced, folder] {
        a.sweep().unwrap();
        b.sweep().unwrap();
        // The inode may be opened and released meanwhile.
        a.open(ino).unwrap();
        a.release(ino).unwrap();
        assert_eq!((a.attr(ino).unwrap().nlink, b.attr(ino).unwrap().nlink), (0, 0));
        a.forget(ino).unwrap();
        a.forget(ino).unwrap();
        refused!(b.attr(ino), FsError::NotFound);
    }
    // An inode unlinked by another mount is freed at once; `forget` does not affect an inode with a
    // name.
    b.unlink(Ino::ROOT, b"other").unwrap();
    let named = b.create(Ino::ROOT, b"named", NewNode::Fifo, 0o600, ROOT).unwrap().ino;
    a.forget(named).unwrap();
    assert_eq!(a.attr(named).unwrap().nlink, 1);
    // An inode that was never forgotten is freed after its mount has ended.
    a.unlink(Ino::ROOT, b"named").unwrap();
    assert_eq!(b.attr(named).unwrap().nlink, 0);
    a.close().unwrap();
    b.sweep().unwrap();
    refused!(b.attr(named), FsError::NotFound);
}
