//! POSIX access control lists: validation, agreement with the mode, inheritance.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rackpool_fs::{Attr, Caller, FsError, Ino, NewNode, SetAttr, Volume, XattrMode};
use support::{ROOT, TestVolumeMemory, check, directory, emptied, file};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

type Entry = (u16, u16, u32);
type Mount = Volume<TestVolumeMemory>;

const NONE: u32 = u32::MAX;

/// An ACL as the kernel sends it.
fn acl(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// An ACL of the owner, a user, the owning group, a group, the mask and others.
fn full(permissions: [u16; 6]) -> Vec<u8> {
    let [owner, user, owning, group, mask, others] = permissions;
    acl(&[
        (OWNER, owner, NONE),
        (USER, user, 1000),
        (OWNING_GROUP, owning, NONE),
        (GROUP, group, 2000),
        (MASK, mask, NONE),
        (OTHERS, others, NONE),
    ])
}

fn minimal(owner: u16, group: u16, others: u16) -> Vec<u8> {
    acl(&[(OWNER, owner, NONE), (OWNING_GROUP, group, NONE), (OTHERS, others, NONE)])
}

fn set(volume: &Mount, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), FsError> {
    volume.set_xattr(ino, name, value, XattrMode::Set)
}

fn get(volume: &Mount, ino: Ino, name: &[u8]) -> Option<Vec<u8>> {
    match volume.get_xattr(ino, name) {
        Ok(value) => Some(value),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    }
}

fn chmod(volume: &Mount, ino: Ino, mode: u32) -> Attr {
    volume.set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }, ROOT).unwrap()
}

#[test]
fn the_mode_and_the_access_acl_agree_whichever_is_set() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let ino = file(&a, Ino::ROOT, b"file");
    chmod(&a, ino, 0o4644);
    set(&a, ino, ACCESS, &full([7, 6, 5, 4, 6, 1])).unwrap();
    // The group digit is the mask; set-id bits are not part of the ACL.
    assert_eq!(b.attr(ino).unwrap().mode, 0o4761);
    assert_eq!(chmod(&b, ino, 0o640).mode, 0o640);
    assert_eq!(get(&a, ino, ACCESS), Some(full([6, 6, 5, 4, 4, 0])));
    // An owner outside the group clears set-group-id.
    chmod(&a, ino, 0o2750);
    set(&a, ino, ACCESS, &full([7, 7, 7, 7, 7, 7])).unwrap();
    assert_eq!(a.attr(ino).unwrap().mode, 0o2777);
    a.set_acl_outside_group(ino, ACCESS, &full([7, 7, 7, 7, 7, 0]), XattrMode::Set).unwrap();
    assert_eq!(b.attr(ino).unwrap().mode, 0o770);
    // An ACL that is equivalent to the mode is not stored.
    set(&b, ino, ACCESS, &minimal(6, 4, 0)).unwrap();
    assert_eq!((get(&a, ino, ACCESS), a.attr(ino).unwrap().mode), (None, 0o640));
    // Removing an ACL keeps the mode.
    set(&b, ino, ACCESS, &full([7, 6, 5, 4, 6, 1])).unwrap();
    assert!(a.list_xattr(ino).unwrap().contains(&ACCESS.to_vec()));
    a.remove_xattr(ino, ACCESS).unwrap();
    assert_eq!((get(&b, ino, ACCESS), b.attr(ino).unwrap().mode), (None, 0o761));
    assert!(matches!(a.remove_xattr(ino, ACCESS), Err(FsError::NoAttribute)));
    // A mask without named entries is stored, and is the group digit.
    let masked = |mask| {
        acl(&[(OWNER, 7, NONE), (OWNING_GROUP, 7, NONE), (MASK, mask, NONE), (OTHERS, 0, 9)])
    };
    set(&a, ino, ACCESS, &masked(5)).unwrap();
    assert_eq!(a.attr(ino).unwrap().mode, 0o750);
    assert_eq!(chmod(&a, ino, 0o720).mode, 0o720);
    assert_eq!(get(&a, ino, ACCESS).unwrap()[4 + 2 * 8..][..4], [0x10, 0, 2, 0]);
}

#[test]
fn a_default_acl_is_inherited_instead_of_the_umask() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let home = directory(&a, Ino::ROOT, b"home");
    let user = Caller::new(1, 2).with_umask(0o077);
    let plain = a.create(home, b"plain", NewNode::File, 0o666, user).unwrap();
    assert_eq!((plain.mode, get(&a, plain.ino, ACCESS)), (0o600, None));

    let default = full([7, 7, 5, 7, 7, 5]);
    set(&a, home, DEFAULT, &default).unwrap();
    // The directory's own mode is unaffected.
    assert_eq!(a.attr(home).unwrap().mode, 0o755);
    let made = b.create(home, b"file", NewNode::File, 0o640, user).unwrap();
    assert_eq!(made.mode, 0o640);
    assert_eq!(get(&a, made.ino, ACCESS), Some(full([6, 7, 5, 7, 4, 0])));
    assert_eq!(get(&a, made.ino, DEFAULT), None);
    let made = b.create_open(home, b"open", 0o666, user).unwrap();
    assert_eq!(get(&a, made.ino, ACCESS), Some(full([6, 7, 5, 7, 6, 4])));
    b.release(made.ino).unwrap();
    let made = b.create_unnamed(home, 0o400, user).unwrap();
    assert_eq!(get(&a, made.ino, ACCESS), Some(full([4, 7, 5, 7, 0, 0])));
    b.release(made.ino).unwrap();
    let made = a.create(home, b"fifo", NewNode::Fifo, 0o620, user).unwrap();
    assert_eq!((made.mode, get(&b, made.ino, ACCESS)), (0o620, Some(full([6, 7, 5, 7, 2, 0]))));
    let inner = a.create(home, b"inner", NewNode::Directory, 0o777, user).unwrap();
    assert_eq!(inner.mode, 0o775);
    assert_eq!(get(&b, inner.ino, ACCESS), Some(default.clone()));
    assert_eq!(get(&b, inner.ino, DEFAULT), Some(default));
    let link = a.create(home, b"link", NewNode::Symlink(b"file"), 0o777, user).unwrap();
    assert_eq!((link.mode, get(&b, link.ino, ACCESS)), (0o777, None));
    // A default ACL that is equivalent to a mode leaves no ACL, but still replaces the umask.
    set(&b, home, DEFAULT, &minimal(7, 5, 1)).unwrap();
    let made = a.create(home, b"minimal", NewNode::File, 0o666, user).unwrap();
    assert_eq!((made.mode, get(&a, made.ino, ACCESS)), (0o640, None));
    // Without the default ACL the umask applies again.
    b.remove_xattr(home, DEFAULT).unwrap();
    assert_eq!(a.create(home, b"masked", NewNode::File, 0o666, user).unwrap().mode, 0o600);
    check(&a, "a tree with ACLs");
}

#[test]
fn what_is_no_acl_is_refused_and_changes_nothing() {
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let home = directory(&volume, Ino::ROOT, b"home");
    let ino = file(&volume, home, b"file");
    let (o, g, m, r) =
        ((OWNER, 7, NONE), (OWNING_GROUP, 5, NONE), (MASK, 5, NONE), (OTHERS, 1, NONE));
    let before = volume.attr(home).unwrap();
    for bytes in [
        Vec::new(),
        b"\x02\0\0".to_vec(),
        acl(&[]),
        acl(&[o, g]),
        acl(&[o, r, g]),
        acl(&[o, g, g, r]),
        acl(&[o, (USER, 7, 5), g, r]),
        acl(&[o, g, (GROUP, 7, 5), r]),
        acl(&[o, g, (USER, 7, 5), m, r]),
        acl(&[o, g, m, m, r]),
        acl(&[o, g, (OTHERS, 8, NONE)]),
        acl(&[o, g, (0x40, 7, NONE), r]),
        [minimal(7, 5, 5), vec![0]].concat(),
        [&1_u32.to_le_bytes()[..], &minimal(7, 5, 5)[4..]].concat(),
    ] {
        for name in [ACCESS, DEFAULT] {
            let set = set(&volume, home, name, &bytes);
            assert!(matches!(set, Err(FsError::InvalidArgument)), "{bytes:?}: {set:?}");
        }
    }
    assert_eq!(volume.attr(home).unwrap(), before);
    let set_default = set(&volume, ino, DEFAULT, &minimal(7, 5, 1));
    assert!(matches!(set_default, Err(FsError::Permission)), "{set_default:?}");
    let link = volume.create(home, b"link", NewNode::Symlink(b"x"), 0, ROOT).unwrap().ino;
    let set_access = set(&volume, link, ACCESS, &minimal(7, 5, 1));
    assert!(matches!(set_access, Err(FsError::Permission)), "{set_access:?}");
}

#[test]
fn the_largest_acl_is_inherited_by_directories_in_directories() {
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let before = emptied(&memory);
    let large = |users: u32| {
        let named = (0..users).map(|user| (USER, 7, user));
        let rest = [(OWNING_GROUP, 5, NONE), (MASK, 7, NONE), (OTHERS, 5, NONE)];
        acl(&[(OWNER, 7, NONE)].into_iter().chain(named).chain(rest).collect::<Vec<_>>())
    };
    let home = directory(&volume, Ino::ROOT, b"home");
    assert!(matches!(set(&volume, home, DEFAULT, &large(497)), Err(FsError::NoSpace)));
    set(&volume, home, DEFAULT, &large(496)).unwrap();
    let inner = volume.create(home, b"inner", NewNode::Directory, 0o777, ROOT).unwrap().ino;
    let innermost = volume.create(inner, b"inner", NewNode::Directory, 0o777, ROOT).unwrap().ino;
    for name in [ACCESS, DEFAULT] {
        assert_eq!(get(&volume, innermost, name), Some(large(496)));
    }
    volume.close().unwrap();
    assert_eq!(emptied(&memory), before);
}
