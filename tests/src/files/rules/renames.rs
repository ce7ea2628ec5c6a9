//! rename(2) and renameat2(2).

use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, RenameFlags, link, rename, renameat_with, symlink};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{
    Place, is_missing, links, refused, refused_with_one_of, sets_times, stat,
};

pub(super) const RULES: &[Rule] = rules![
    rename_moves_a_file,
    rename_replaces_a_file,
    rename_replaces_a_link_itself,
    rename_moves_links_themselves,
    rename_of_nothing_is_enoent,
    rename_of_a_folder_over_a_file_is_enotdir,
    rename_of_a_file_over_a_folder_is_eisdir,
    rename_of_a_folder_replaces_an_empty_one,
    rename_over_a_full_folder_is_enotempty,
    rename_of_a_folder_into_itself_is_einval,
    rename_of_dot_is_refused,
    rename_onto_itself_does_nothing,
    rename_between_links_of_one_file_does_nothing,
    rename_moves_folders_between_folders,
    rename_sets_times,
    rename_of_an_open_file_keeps_it,
    rename_over_an_open_file_leaves_it_to_its_reader,
    rename_without_replacing,
    rename_exchanges_files,
    rename_exchanges_a_file_and_a_folder,
    rename_exchange_refuses_ancestors_and_nothing,
    rename_with_wrong_flags_is_einval,
    rename_keeps_the_inode,
];

fn swap(place: &Place, a: &str, b: &str, flags: RenameFlags) -> rustix::io::Result<()> {
    renameat_with(CWD, place.path(a), CWD, place.path(b), flags)
}

fn rename_moves_a_file(place: &Place) {
    let a = place.file("a", "x");
    place.subfolder("folder");
    rename(&a, place.path("folder/b")).unwrap();
    assert!(is_missing(&a));
    assert_eq!(std::fs::read(place.path("folder/b")).unwrap(), b"x");
}

fn rename_replaces_a_file(place: &Place) {
    let (a, b) = (place.file("a", "new"), place.file("b", "old"));
    link(&b, place.path("c")).unwrap();
    rename(&a, &b).unwrap();
    assert!(is_missing(&a));
    assert_eq!(std::fs::read(&b).unwrap(), b"new");
    assert_eq!(std::fs::read(place.path("c")).unwrap(), b"old");
    assert_eq!(links(&place.path("c")), 1);
}

fn rename_replaces_a_link_itself(place: &Place) {
    let (a, target) = (place.file("a", "new"), place.file("target", "target"));
    symlink("target", place.path("link")).unwrap();
    rename(&a, place.path("link")).unwrap();
    assert_eq!(std::fs::read(place.path("link")).unwrap(), b"new");
    assert_eq!(std::fs::read(target).unwrap(), b"target");
}

fn rename_moves_links_themselves(place: &Place) {
    symlink("nothing", place.path("link")).unwrap();
    rename(place.path("link"), place.path("moved")).unwrap();
    let target = rustix::fs::readlink(place.path("moved"), vec![]).unwrap();
    assert_eq!(target.to_bytes(), b"nothing");
}

fn rename_of_nothing_is_enoent(place: &Place) {
    place.file("there", "");
    refused(rename(place.path("nothing"), place.path("a")), Errno::NOENT);
    refused(rename(place.path("nothing"), place.path("there")), Errno::NOENT);
    refused(rename(place.path("there"), place.path("nothing/a")), Errno::NOENT);
}

fn rename_of_a_folder_over_a_file_is_enotdir(place: &Place) {
    let folder = place.subfolder("folder");
    refused(rename(&folder, place.file("file", "")), Errno::NOTDIR);
    symlink("folder", place.path("link")).unwrap();
    refused(rename(&folder, place.path("link")), Errno::NOTDIR);
}

fn rename_of_a_file_over_a_folder_is_eisdir(place: &Place) {
    let file = place.file("file", "");
    refused(rename(&file, place.subfolder("folder")), Errno::ISDIR);
}

fn rename_of_a_folder_replaces_an_empty_one(place: &Place) {
    let from = place.subfolder("from");
    place.file("from/a", "moved");
    let to = place.subfolder("to");
    let before = links(place.folder());
    rename(&from, &to).unwrap();
    assert!(is_missing(&from));
    assert_eq!(std::fs::read(to.join("a")).unwrap(), b"moved");
    assert_eq!(links(place.folder()), before - 1);
}

fn rename_over_a_full_folder_is_enotempty(place: &Place) {
    let (from, to) = (place.subfolder("from"), place.subfolder("to"));
    place.file("to/a", "");
    refused_with_one_of(rename(&from, &to), &[Errno::NOTEMPTY, Errno::EXIST]);
    // The target is an ancestor of the renamed folder, and so is not empty.
    place.subfolder("to/b");
    refused_with_one_of(rename(to.join("b"), &to), &[Errno::NOTEMPTY, Errno::EXIST]);
}

fn rename_of_a_folder_into_itself_is_einval(place: &Place) {
    let folder = place.subfolder("a");
    place.subfolder("a/b");
    place.subfolder("a/b/c");
    for below in ["a/x", "a/b/x", "a/b/c/x"] {
        refused(rename(&folder, place.path(below)), Errno::INVAL);
    }
    rename(place.path("a/b/c"), place.path("c")).unwrap();
    rename(place.path("a"), place.path("c/a")).unwrap();
    assert_eq!(links(&place.path("c/a/b")), 2);
}

fn rename_of_dot_is_refused(place: &Place) {
    let folder = place.subfolder("a");
    let refusals = [Errno::BUSY, Errno::INVAL];
    refused_with_one_of(rename(folder.join("."), place.path("b")), &refusals);
    refused_with_one_of(rename(folder.join(".."), place.path("b")), &refusals);
    refused_with_one_of(rename(place.subfolder("c"), folder.join(".")), &refusals);
}

fn rename_onto_itself_does_nothing(place: &Place) {
    for path in [place.file("a", "x"), place.subfolder("b")] {
        let ino = stat(&path).st_ino;
        rename(&path, &path).unwrap();
        assert_eq!(stat(&path).st_ino, ino);
    }
}

fn rename_between_links_of_one_file_does_nothing(place: &Place) {
    let (a, b) = (place.file("a", "x"), place.path("b"));
    link(&a, &b).unwrap();
    rename(&a, &b).unwrap();
    assert_eq!((links(&a), links(&b)), (2, 2));
}

fn rename_moves_folders_between_folders(place: &Place) {
    let (from, to) = (place.subfolder("from"), place.subfolder("to"));
    place.subfolder("from/folder");
    place.file("from/folder/file", "inside");
    rename(from.join("folder"), to.join("moved")).unwrap();
    assert_eq!((links(&from), links(&to)), (2, 3));
    assert_eq!(std::fs::read(to.join("moved/file")).unwrap(), b"inside");
    assert_eq!(stat(&to.join("moved/..")).st_ino, stat(&to).st_ino);
}

fn rename_sets_times(place: &Place) {
    let (from, to) = (place.subfolder("from"), place.subfolder("to"));
    let a = place.file("from/a", "");
    sets_times(&from, "mc", || {
        sets_times(&to, "mc", || rename(&a, to.join("a")).unwrap());
    });
}

fn rename_of_an_open_file_keeps_it(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(b"one", 0).unwrap();
    rename(place.path("a"), place.path("b")).unwrap();
    file.write_all_at(b"two", 3).unwrap();
    assert_eq!(std::fs::read(place.path("b")).unwrap(), b"onetwo");
}

fn rename_over_an_open_file_leaves_it_to_its_reader(place: &Place) {
    let old = place.open_new("old");
    old.write_all_at(b"old", 0).unwrap();
    rename(place.file("new", "new"), place.path("old")).unwrap();
    let mut read = [0; 3];
    old.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"old");
    assert_eq!(rustix::fs::fstat(&old).unwrap().st_nlink, 0);
    assert_eq!(std::fs::read(place.path("old")).unwrap(), b"new");
}

fn rename_without_replacing(place: &Place) {
    place.file("a", "a");
    place.file("b", "b");
    refused(swap(place, "a", "b", RenameFlags::NOREPLACE), Errno::EXIST);
    assert_eq!(std::fs::read(place.path("b")).unwrap(), b"b");
    swap(place, "a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(std::fs::read(place.path("c")).unwrap(), b"a");
}

fn rename_exchanges_files(place: &Place) {
    place.file("a", "a");
    place.subfolder("folder");
    place.file("folder/b", "b");
    swap(place, "a", "folder/b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(std::fs::read(place.path("a")).unwrap(), b"b");
    assert_eq!(std::fs::read(place.path("folder/b")).unwrap(), b"a");
}

fn rename_exchanges_a_file_and_a_folder(place: &Place) {
    place.file("a", "a");
    let (left, right) = (place.subfolder("left"), place.subfolder("right"));
    place.subfolder("right/full");
    place.file("right/full/x", "x");
    rename(place.path("a"), left.join("a")).unwrap();
    swap(place, "left/a", "right/full", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((links(&left), links(&right)), (3, 2));
    assert_eq!(std::fs::read(left.join("a/x")).unwrap(), b"x");
    assert_eq!(std::fs::read(right.join("full")).unwrap(), b"a");
}

fn rename_exchange_refuses_ancestors_and_nothing(place: &Place) {
    place.subfolder("a");
    place.subfolder("a/b");
    refused(swap(place, "a", "a/b", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(swap(place, "a/b", "a", RenameFlags::EXCHANGE), Errno::INVAL);
    refused(swap(place, "a", "nothing", RenameFlags::EXCHANGE), Errno::NOENT);
}

fn rename_with_wrong_flags_is_einval(place: &Place) {
    place.file("a", "");
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    refused(swap(place, "a", "b", both), Errno::INVAL);
}

fn rename_keeps_the_inode(place: &Place) {
    let (a, ino) = (place.file("a", "x"), stat(&place.path("a")).st_ino);
    rename(&a, place.path("b")).unwrap();
    assert_eq!(stat(&place.path("b")).st_ino, ino);
}
