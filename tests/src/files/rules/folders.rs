//! mkdir(2), rmdir(2), and the counts of folders.

use std::collections::BTreeSet;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mkdir, openat, rmdir, symlink, unlink};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{
    Place, is_missing, links, mode, open, refused, refused_with_one_of, set_mode, sets_times, stat,
};

pub(super) const RULES: &[Rule] = rules![
    mkdir_makes_an_empty_folder,
    mkdir_refuses_what_is_there,
    mkdir_in_nothing_is_enoent,
    mkdir_below_a_set_group_folder_inherits_it,
    mkdir_sets_the_times_of_the_parent,
    rmdir_removes_an_empty_folder,
    rmdir_of_a_full_folder_is_enotempty,
    rmdir_of_a_file_is_enotdir,
    rmdir_of_dot_and_dot_dot,
    rmdir_of_a_link_to_a_folder_is_enotdir,
    folders_count_their_subfolders,
    a_removed_folder_that_is_open_stays_empty,
    a_removed_folder_is_there_for_who_works_in_it,
    deep_folders,
    unlink_of_a_folder_is_refused,
    many_folders_and_back,
];

fn mkdir_makes_an_empty_folder(place: &Place) {
    let path = place.path("a");
    mkdir(&path, Mode::from_raw_mode(0o751)).unwrap();
    let stat = stat(&path);
    assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::Directory);
    assert_eq!(stat.st_mode & 0o7777, 0o751);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

fn mkdir_refuses_what_is_there(place: &Place) {
    symlink("nothing", place.path("link")).unwrap();
    for path in [place.file("a", ""), place.subfolder("b"), place.path("link")] {
        refused(mkdir(&path, Mode::RWXU), Errno::EXIST);
    }
}

fn mkdir_in_nothing_is_enoent(place: &Place) {
    refused(mkdir(place.path("nothing/a"), Mode::RWXU), Errno::NOENT);
}

fn mkdir_below_a_set_group_folder_inherits_it(place: &Place) {
    let folder = place.subfolder("a");
    rustix::fs::chown(&folder, None, Some(rustix::fs::Gid::from_raw(1234))).unwrap();
    set_mode(&folder, 0o2775);
    mkdir(folder.join("b"), Mode::from_raw_mode(0o755)).unwrap();
    assert_eq!((stat(&folder.join("b")).st_gid, mode(&folder.join("b"))), (1234, 0o2755));
    place.file("a/c", "");
    assert_eq!(stat(&folder.join("c")).st_gid, 1234);
    assert_eq!(mode(&folder.join("c")) & 0o2000, 0);
}

fn mkdir_sets_the_times_of_the_parent(place: &Place) {
    let folder = place.subfolder("a");
    sets_times(&folder, "mc", || mkdir(folder.join("b"), Mode::RWXU).unwrap());
    sets_times(&folder, "mc", || rmdir(folder.join("b")).unwrap());
    sets_times(&folder, "", || refused(rmdir(folder.join("b")), Errno::NOENT));
}

fn rmdir_removes_an_empty_folder(place: &Place) {
    rmdir(place.subfolder("a")).unwrap();
    assert!(is_missing(&place.path("a")));
    refused(rmdir(place.path("a")), Errno::NOENT);
}

fn rmdir_of_a_full_folder_is_enotempty(place: &Place) {
    let folder = place.subfolder("a");
    let full = [Errno::NOTEMPTY, Errno::EXIST];
    place.file("a/file", "");
    refused_with_one_of(rmdir(&folder), &full);
    unlink(folder.join("file")).unwrap();
    place.subfolder("a/folder");
    refused_with_one_of(rmdir(&folder), &full);
    rmdir(folder.join("folder")).unwrap();
    rmdir(&folder).unwrap();
}

fn rmdir_of_a_file_is_enotdir(place: &Place) {
    refused(rmdir(place.file("a", "")), Errno::NOTDIR);
    rustix::fs::mknodat(CWD, place.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused(rmdir(place.path("pipe")), Errno::NOTDIR);
}

fn rmdir_of_dot_and_dot_dot(place: &Place) {
    let folder = place.subfolder("a");
    place.subfolder("a/b");
    refused(rmdir(folder.join("b/.")), Errno::INVAL);
    refused_with_one_of(rmdir(folder.join("b/..")), &[Errno::NOTEMPTY, Errno::EXIST]);
}

fn rmdir_of_a_link_to_a_folder_is_enotdir(place: &Place) {
    place.subfolder("a");
    symlink("a", place.path("link")).unwrap();
    refused(rmdir(place.path("link")), Errno::NOTDIR);
}

fn folders_count_their_subfolders(place: &Place) {
    let folder = place.subfolder("a");
    assert_eq!(links(&folder), 2);
    place.subfolder("a/b");
    place.subfolder("a/c");
    place.file("a/d", "");
    assert_eq!(links(&folder), 4);
    rmdir(folder.join("b")).unwrap();
    assert_eq!(links(&folder), 3);
}

fn a_removed_folder_that_is_open_stays_empty(place: &Place) {
    let path = place.subfolder("a");
    let folder = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
    rmdir(&path).unwrap();
    let create = OFlags::CREATE | OFlags::WRONLY;
    refused(openat(&folder, "x", create, Mode::RWXU), Errno::NOENT);
    refused(rustix::fs::mkdirat(&folder, "x", Mode::RWXU), Errno::NOENT);
    assert_eq!(rustix::fs::fstat(&folder).unwrap().st_nlink, 0);
}

fn a_removed_folder_is_there_for_who_works_in_it(place: &Place) {
    let (path, over) = (place.subfolder("a"), place.subfolder("b"));
    // A descriptor as a working directory has: the folder is not opened for reading.
    let works_in = |path| open(path, OFlags::PATH | OFlags::DIRECTORY, 0).unwrap();
    let (removed, replaced) = (works_in(&path), works_in(&over));
    rmdir(&path).unwrap();
    mkdir(&path, Mode::RWXU).unwrap();
    rustix::fs::rename(&path, &over).unwrap();
    for folder in [removed, replaced] {
        assert_eq!(rustix::fs::fstat(&folder).unwrap().st_nlink, 0);
        refused(rustix::fs::mkdirat(&folder, "x", Mode::RWXU), Errno::NOENT);
        refused(rustix::fs::statat(&folder, "x", AtFlags::empty()), Errno::NOENT);
    }
    assert_eq!(links(&over), 2);
}

fn deep_folders(place: &Place) {
    const DEPTH: usize = 300;
    let mut folders = vec![open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap()];
    for _ in 0..DEPTH {
        let parent = folders.last().unwrap();
        rustix::fs::mkdirat(parent, "d", Mode::RWXU).unwrap();
        let below = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        folders.push(openat(parent, "d", below, Mode::empty()).unwrap());
    }
    let inodes: BTreeSet<u64> =
        folders.iter().map(|folder| rustix::fs::fstat(folder).unwrap().st_ino).collect();
    assert_eq!(inodes.len(), DEPTH + 1);
    folders.pop();
    while let Some(parent) = folders.pop() {
        rustix::fs::unlinkat(&parent, "d", rustix::fs::AtFlags::REMOVEDIR).unwrap();
    }
}

fn unlink_of_a_folder_is_refused(place: &Place) {
    refused_with_one_of(unlink(place.subfolder("a")), &[Errno::ISDIR, Errno::PERM]);
    assert_eq!(links(&place.path("a")), 2);
}

fn many_folders_and_back(place: &Place) {
    let before = links(place.folder());
    for number in 0..200 {
        place.subfolder(number.to_string());
    }
    assert_eq!(links(place.folder()), before + 200);
    for number in 0..200 {
        rmdir(place.path(number.to_string())).unwrap();
    }
    assert_eq!(links(place.folder()), before);
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
}
