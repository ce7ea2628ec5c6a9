//! POSIX access control lists, as acl(5) and Linux define them.

use std::path::Path;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, XattrFlags, getxattr, mkdir, mknodat, removexattr, setxattr,
};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, chown, mode, open, refused, set_mode, sets_times};
use crate::files::user::{NOBODY, OTHER, as_user, with_umask};

pub(super) const RULES: &[Rule] = rules![
    acls_grant_what_the_mode_does_not,
    masks_limit_named_users_and_groups,
    chmod_changes_the_mask,
    acls_that_modes_can_say_are_not_kept,
    removed_acls_grant_nothing,
    default_acls_are_inherited_by_all_that_is_created,
    default_acls_come_before_the_umask,
    umasks_count_without_default_acls,
    what_is_no_acl_is_refused,
    acls_are_set_by_owners,
    acls_of_other_users_to_the_group_take_set_group_id_away,
    acls_set_the_change_time,
];

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const GROUP: u32 = 4321;

/// An encoded ACL; permissions of the owner, NOBODY, the owning group, GROUP, the mask, others.
fn acl(permissions: [u16; 6]) -> Vec<u8> {
    const TAGS: [(u16, u32); 6] = [
        (0x01, u32::MAX),
        (0x02, NOBODY),
        (0x04, u32::MAX),
        (0x08, GROUP),
        (0x10, u32::MAX),
        (0x20, u32::MAX),
    ];
    encoded(TAGS.iter().zip(permissions).map(|((tag, id), permissions)| (*tag, permissions, *id)))
}

/// An ACL without named users or groups and without a mask.
fn minimal(owner: u16, group: u16, others: u16) -> Vec<u8> {
    let entries = [(0x01, owner), (0x04, group), (0x20, others)];
    encoded(entries.into_iter().map(|(tag, permissions)| (tag, permissions, u32::MAX)))
}

fn encoded(entries: impl Iterator<Item = (u16, u16, u32)>) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn set(path: &Path, name: &str, acl: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, acl, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    match getxattr(path, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Some(value)
        }
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{name} of {}: {error}", path.display()),
    }
}

/// Whether NOBODY, a member of GROUP, and OTHER can read a file.
fn readers(path: &Path) -> (bool, bool, bool) {
    let reads = |user, group| as_user(user, group, || open(path, OFlags::RDONLY, 0).is_ok());
    (reads(NOBODY, NOBODY), reads(OTHER, GROUP), reads(OTHER, OTHER))
}

fn acls_grant_what_the_mode_does_not(place: &Place) {
    let a = place.file("a", "x");
    set_mode(&a, 0o600);
    assert_eq!(readers(&a), (false, false, false));
    set(&a, ACCESS, &acl([6, 4, 0, 0, 4, 0])).unwrap();
    assert_eq!(get(&a, ACCESS).unwrap(), acl([6, 4, 0, 0, 4, 0]));
    assert_eq!((mode(&a), readers(&a)), (0o640, (true, false, false)));
    set(&a, ACCESS, &acl([6, 0, 0, 4, 4, 4])).unwrap();
    assert_eq!((mode(&a), readers(&a)), (0o644, (false, true, true)));
    // The same in folders.
    let folder = place.subfolder("folder");
    set_mode(&folder, 0o700);
    let make = || as_user(NOBODY, NOBODY, || mkdir(folder.join("made"), Mode::RWXU));
    refused(make(), Errno::ACCESS);
    set(&folder, ACCESS, &acl([7, 7, 0, 0, 7, 0])).unwrap();
    make().unwrap();
}

fn masks_limit_named_users_and_groups(place: &Place) {
    let a = place.file("a", "x");
    set(&a, ACCESS, &acl([6, 7, 7, 7, 2, 0])).unwrap();
    assert_eq!((mode(&a), readers(&a)), (0o620, (false, false, false)));
}

fn chmod_changes_the_mask(place: &Place) {
    let a = place.file("a", "x");
    set(&a, ACCESS, &acl([6, 6, 5, 4, 6, 1])).unwrap();
    set_mode(&a, 0o700);
    assert_eq!(get(&a, ACCESS).unwrap(), acl([7, 6, 5, 4, 0, 0]));
    assert_eq!(readers(&a), (false, false, false));
    set_mode(&a, 0o644);
    assert_eq!(get(&a, ACCESS).unwrap(), acl([6, 6, 5, 4, 4, 4]));
    assert_eq!(readers(&a), (true, true, true));
}

fn acls_that_modes_can_say_are_not_kept(place: &Place) {
    let a = place.file("a", "x");
    set(&a, ACCESS, &acl([6, 6, 5, 4, 6, 1])).unwrap();
    set(&a, ACCESS, &minimal(6, 4, 0)).unwrap();
    assert_eq!((get(&a, ACCESS), mode(&a)), (None, 0o640));
}

fn removed_acls_grant_nothing(place: &Place) {
    let a = place.file("a", "x");
    set(&a, ACCESS, &acl([6, 4, 0, 0, 4, 0])).unwrap();
    assert_eq!(readers(&a), (true, false, false));
    removexattr(&a, ACCESS).unwrap();
    assert_eq!((get(&a, ACCESS), readers(&a)), (None, (false, false, false)));
}

fn default_acls_are_inherited_by_all_that_is_created(place: &Place) {
    let default = acl([7, 6, 4, 4, 6, 5]);
    set(place.folder(), DEFAULT, &default).unwrap();
    assert_eq!((get(place.folder(), ACCESS), mode(place.folder())), (None, 0o777));
    let (file, fifo, folder) = (place.path("file"), place.path("fifo"), place.path("folder"));
    open(&file, OFlags::CREATE | OFlags::WRONLY, 0o640).unwrap();
    assert_eq!((get(&file, ACCESS), mode(&file)), (Some(acl([6, 6, 4, 4, 4, 0])), 0o640));
    assert_eq!(get(&file, DEFAULT), None);
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    assert_eq!((get(&fifo, ACCESS), mode(&fifo)), (Some(acl([6, 6, 4, 4, 6, 4])), 0o664));
    mkdir(&folder, Mode::from_raw_mode(0o777)).unwrap();
    assert_eq!((get(&folder, ACCESS), mode(&folder)), (Some(default.clone()), 0o765));
    assert_eq!(get(&folder, DEFAULT), Some(default));
    // Symbolic links have no permissions.
    rustix::fs::symlink("file", place.path("link")).unwrap();
    let mut value = [0; 64];
    let acl = rustix::fs::lgetxattr(place.path("link"), ACCESS, &mut value[..]);
    assert!(matches!(acl, Err(Errno::NODATA | Errno::OPNOTSUPP)), "{acl:?}");
}

fn default_acls_come_before_the_umask(place: &Place) {
    let make = |name: &str| {
        let path = place.path(name);
        with_umask(0o077, || open(&path, OFlags::CREATE | OFlags::WRONLY, 0o666)).unwrap();
        mode(&path)
    };
    set(place.folder(), DEFAULT, &acl([7, 6, 4, 4, 6, 4])).unwrap();
    assert_eq!(make("a"), 0o664);
    set(place.folder(), DEFAULT, &minimal(7, 7, 5)).unwrap();
    assert_eq!((make("b"), get(&place.path("b"), ACCESS)), (0o664, None));
    removexattr(place.folder(), DEFAULT).unwrap();
    assert_eq!(make("c"), 0o600);
}

fn umasks_count_without_default_acls(place: &Place) {
    let [file, fifo, folder] = ["file", "fifo", "folder"].map(|name| place.path(name));
    with_umask(0o027, || {
        open(&file, OFlags::CREATE | OFlags::WRONLY, 0o666).unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        mkdir(&folder, Mode::from_raw_mode(0o777)).unwrap();
    });
    assert_eq!((mode(&file), mode(&fifo), mode(&folder)), (0o640, 0o640, 0o750));
}

fn what_is_no_acl_is_refused(place: &Place) {
    let a = place.file("a", "x");
    let before = mode(&a);
    let without_mask = encoded(
        [(0x01, 7, u32::MAX), (0x02, 7, NOBODY), (0x04, 7, u32::MAX), (0x20, 7, u32::MAX)]
            .into_iter(),
    );
    let long = [minimal(7, 7, 7), vec![0]].concat();
    for bytes in [without_mask, long, minimal(8, 0, 0), b"acl".to_vec()] {
        refused(set(&a, ACCESS, &bytes), Errno::INVAL);
    }
    refused(set(&a, DEFAULT, &minimal(7, 7, 7)), Errno::ACCESS);
    assert_eq!((mode(&a), get(&a, ACCESS)), (before, None));
}

fn acls_are_set_by_owners(place: &Place) {
    let a = place.file("a", "x");
    chown(&a, Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(&a, 0o666);
    as_user(OTHER, OTHER, || refused(set(&a, ACCESS, &minimal(7, 7, 7)), Errno::PERM));
    as_user(NOBODY, NOBODY, || set(&a, ACCESS, &minimal(6, 4, 0)).unwrap());
    assert_eq!(mode(&a), 0o640);
}

fn acls_of_other_users_to_the_group_take_set_group_id_away(place: &Place) {
    let a = place.file("a", "x");
    chown(&a, Some(NOBODY), Some(GROUP)).unwrap();
    set_mode(&a, 0o2750);
    as_user(NOBODY, GROUP, || set(&a, ACCESS, &acl([7, 5, 5, 5, 5, 0])).unwrap());
    assert_eq!(mode(&a), 0o2750);
    as_user(NOBODY, NOBODY, || set(&a, ACCESS, &acl([7, 7, 5, 5, 7, 0])).unwrap());
    assert_eq!(mode(&a), 0o770);
}

fn acls_set_the_change_time(place: &Place) {
    let a = place.file("a", "x");
    sets_times(&a, "c", || set(&a, ACCESS, &acl([7, 5, 5, 5, 5, 0])).unwrap());
    sets_times(&a, "c", || removexattr(&a, ACCESS).unwrap());
}
