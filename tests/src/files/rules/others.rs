//! Permissions between users.

use rustix::fs::{
    Access, CWD, FileType, Mode, OFlags, link, mkdir, mknodat, rename, rmdir, unlink,
};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, chown, open, refused, refused_with_one_of, set_mode, stat};
use crate::files::user::{NOBODY, OTHER, as_user};

pub(super) const RULES: &[Rule] = rules![
    permission_bits_of_owner_group_and_others_count_in_this_order,
    folders_without_write_permission_keep_their_names,
    folders_without_search_permission_hide_what_is_in_them,
    folders_without_read_permission_are_not_listed,
    sticky_folders_let_owners_only_remove_and_rename,
    sticky_folders_protect_what_a_rename_replaces,
    new_files_belong_to_who_makes_them,
    devices_are_for_root,
    access_tells_what_may_be_done,
    files_of_others_are_not_truncated,
    set_group_is_not_given_to_files_of_other_users,
];

fn permission_bits_of_owner_group_and_others_count_in_this_order(place: &Place) {
    let a = place.file("a", "x");
    chown(&a, Some(NOBODY), Some(1234)).unwrap();
    let read = |user, group| as_user(user, group, || open(&a, OFlags::RDONLY, 0).is_ok());
    for (bits, owner, member, other_user) in [
        (0o400, true, false, false),
        (0o040, false, true, false),
        (0o004, false, false, true),
        (0o044, false, true, true),
        (0o222, false, false, false),
    ] {
        set_mode(&a, bits);
        let got = (read(NOBODY, 1234), read(OTHER, 1234), read(OTHER, OTHER));
        assert_eq!(got, (owner, member, other_user), "{bits:o}");
    }
}

fn folders_without_write_permission_keep_their_names(place: &Place) {
    let folder = place.subfolder("folder");
    let a = place.file("folder/a", "");
    place.subfolder("folder/sub");
    set_mode(&folder, 0o755);
    as_user(NOBODY, NOBODY, || {
        let new = folder.join("new");
        refused(open(&new, OFlags::CREATE | OFlags::WRONLY, 0o644), Errno::ACCESS);
        refused(mkdir(&new, Mode::RWXU), Errno::ACCESS);
        refused(rustix::fs::symlink("x", &new), Errno::ACCESS);
        refused(mknodat(CWD, &new, FileType::Fifo, Mode::RWXU, 0), Errno::ACCESS);
        refused(unlink(&a), Errno::ACCESS);
        refused(rmdir(folder.join("sub")), Errno::ACCESS);
        refused(rename(&a, &new), Errno::ACCESS);
        refused(rename(&a, place.path("elsewhere")), Errno::ACCESS);
        refused_with_one_of(link(&a, &new), &[Errno::ACCESS, Errno::PERM]);
    });
}

fn folders_without_search_permission_hide_what_is_in_them(place: &Place) {
    let folder = place.subfolder("folder");
    let a = place.file("folder/a", "");
    set_mode(&a, 0o666);
    set_mode(&folder, 0o666);
    as_user(NOBODY, NOBODY, || {
        refused(open(&a, OFlags::RDONLY, 0), Errno::ACCESS);
        refused(rustix::fs::stat(&a), Errno::ACCESS);
        refused(rustix::fs::chmod(&a, Mode::RWXU), Errno::ACCESS);
        refused(rename(&a, place.path("b")), Errno::ACCESS);
    });
}

fn folders_without_read_permission_are_not_listed(place: &Place) {
    let folder = place.subfolder("folder");
    let a = place.file("folder/a", "x");
    set_mode(&folder, 0o333);
    as_user(NOBODY, NOBODY, || {
        refused(open(&folder, OFlags::RDONLY | OFlags::DIRECTORY, 0), Errno::ACCESS);
        assert_eq!(std::fs::read(&a).unwrap(), b"x");
    });
}

fn sticky_folders_let_owners_only_remove_and_rename(place: &Place) {
    let folder = place.subfolder("folder");
    set_mode(&folder, 0o1777);
    let (file, sub) = (place.file("folder/a", ""), place.subfolder("folder/sub"));
    for path in [&file, &sub] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        set_mode(path, 0o777);
    }
    let refusals = [Errno::PERM, Errno::ACCESS];
    as_user(OTHER, OTHER, || {
        refused_with_one_of(unlink(&file), &refusals);
        refused_with_one_of(rmdir(&sub), &refusals);
        refused_with_one_of(rename(&file, folder.join("b")), &refusals);
        refused_with_one_of(rename(&sub, place.path("c")), &refusals);
    });
    as_user(NOBODY, NOBODY, || {
        rename(&file, folder.join("b")).unwrap();
        unlink(folder.join("b")).unwrap();
    });
    // The folder's owner may remove it as well.
    chown(&folder, Some(OTHER), None).unwrap();
    as_user(OTHER, OTHER, || rmdir(&sub).unwrap());
}

fn sticky_folders_protect_what_a_rename_replaces(place: &Place) {
    let folder = place.subfolder("folder");
    set_mode(&folder, 0o1777);
    let (own, foreign) = (place.file("folder/own", "own"), place.file("folder/foreign", "foreign"));
    chown(&own, Some(OTHER), Some(OTHER)).unwrap();
    chown(&foreign, Some(NOBODY), Some(NOBODY)).unwrap();
    as_user(OTHER, OTHER, || {
        refused_with_one_of(rename(&own, &foreign), &[Errno::PERM, Errno::ACCESS]);
    });
    assert_eq!(std::fs::read(&foreign).unwrap(), b"foreign");
}

fn new_files_belong_to_who_makes_them(place: &Place) {
    let folder = place.subfolder("folder");
    set_mode(&folder, 0o777);
    as_user(NOBODY, OTHER, || {
        place.file("folder/file", "");
        place.subfolder("folder/sub");
        rustix::fs::symlink("x", folder.join("link")).unwrap();
        mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    });
    for name in ["file", "sub", "link", "pipe"] {
        let stat = stat(&folder.join(name));
        assert_eq!((stat.st_uid, stat.st_gid), (NOBODY, OTHER), "{name}");
    }
}

fn devices_are_for_root(place: &Place) {
    as_user(NOBODY, NOBODY, || {
        let device = rustix::fs::makedev(1, 3);
        let made = mknodat(CWD, place.path("a"), FileType::CharacterDevice, Mode::RWXU, device);
        refused(made, Errno::PERM);
    });
}

fn access_tells_what_may_be_done(place: &Place) {
    let a = place.file("a", "");
    set_mode(&a, 0o640);
    rustix::fs::access(&a, Access::READ_OK | Access::WRITE_OK).unwrap();
    refused(rustix::fs::access(&a, Access::EXEC_OK), Errno::ACCESS);
    refused(rustix::fs::access(place.path("b"), Access::EXISTS), Errno::NOENT);
}

fn files_of_others_are_not_truncated(place: &Place) {
    let a = place.file("a", "kept");
    set_mode(&a, 0o444);
    as_user(NOBODY, NOBODY, || {
        refused(open(&a, OFlags::RDONLY | OFlags::TRUNC, 0), Errno::ACCESS);
        refused(open(&a, OFlags::WRONLY, 0), Errno::ACCESS);
    });
    assert_eq!(std::fs::read(&a).unwrap(), b"kept");
}

fn set_group_is_not_given_to_files_of_other_users(place: &Place) {
    let folder = place.subfolder("folder");
    chown(&folder, None, Some(1234)).unwrap();
    set_mode(&folder, 0o2777);
    as_user(NOBODY, NOBODY, || {
        drop(open(&folder.join("a"), OFlags::CREATE | OFlags::WRONLY, 0o2755).unwrap());
    });
    let stat = stat(&folder.join("a"));
    assert_eq!((stat.st_gid, stat.st_mode & 0o7777), (1234, 0o755));
}
