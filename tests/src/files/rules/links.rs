//! link(2), symlink(2), unlink(2), mknod(2), and open files without a name.

use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, CWD, FileType, Mode, link, linkat, mknodat, readlink, symlink, unlink};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{
    Place, is_missing, links, refused, refused_with_one_of, sets_times, stat,
};

pub(super) const RULES: &[Rule] = rules![
    hard_links_are_one_file,
    link_refuses_what_is_there,
    link_of_nothing_is_enoent,
    link_of_a_folder_is_eperm,
    link_of_a_link_names_the_link_unless_asked_to_follow,
    link_sets_times,
    unlink_sets_times,
    unlink_of_nothing_is_enoent,
    an_unlinked_file_that_is_open_is_read_and_written,
    a_name_taken_again_is_another_file,
    links_keep_their_targets,
    symlink_refuses_what_is_there,
    readlink_of_a_file_is_einval,
    long_targets_are_kept,
    special_files_are_made,
    mknod_refuses_what_is_there,
    many_links_to_one_file,
    a_linked_file_lives_until_its_last_name_is_gone,
];

fn hard_links_are_one_file(place: &Place) {
    let (a, b) = (place.file("a", "first"), place.path("b"));
    link(&a, &b).unwrap();
    assert_eq!(stat(&a).st_ino, stat(&b).st_ino);
    assert_eq!((links(&a), links(&b)), (2, 2));
    std::fs::write(&b, "second").unwrap();
    assert_eq!(std::fs::read(&a).unwrap(), b"second");
    unlink(&a).unwrap();
    assert_eq!(links(&b), 1);
    assert_eq!(std::fs::read(&b).unwrap(), b"second");
}

fn link_refuses_what_is_there(place: &Place) {
    let a = place.file("a", "");
    symlink("nothing", place.path("link")).unwrap();
    for there in [place.file("b", "b"), place.subfolder("c"), place.path("link")] {
        refused(link(&a, &there), Errno::EXIST);
    }
    assert_eq!(links(&a), 1);
}

fn link_of_nothing_is_enoent(place: &Place) {
    refused(link(place.path("nothing"), place.path("a")), Errno::NOENT);
    let a = place.file("b", "");
    refused(link(&a, place.path("nothing/a")), Errno::NOENT);
}

fn link_of_a_folder_is_eperm(place: &Place) {
    refused(link(place.subfolder("a"), place.path("b")), Errno::PERM);
}

fn link_of_a_link_names_the_link_unless_asked_to_follow(place: &Place) {
    place.file("a", "x");
    symlink("a", place.path("link")).unwrap();
    link(place.path("link"), place.path("b")).unwrap();
    assert_eq!(readlink(place.path("b"), vec![]).unwrap().to_bytes(), b"a");
    linkat(CWD, place.path("link"), CWD, place.path("c"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(stat(&place.path("c")).st_ino, stat(&place.path("a")).st_ino);
}

fn link_sets_times(place: &Place) {
    let (a, folder) = (place.file("a", ""), place.subfolder("folder"));
    sets_times(&a, "c", || {
        sets_times(&folder, "mc", || link(&a, folder.join("b")).unwrap());
    });
    sets_times(&a, "", || refused(link(&a, folder.join("b")), Errno::EXIST));
}

fn unlink_sets_times(place: &Place) {
    let folder = place.subfolder("folder");
    let a = place.file("a", "");
    link(&a, folder.join("b")).unwrap();
    sets_times(&a, "c", || {
        sets_times(&folder, "mc", || unlink(folder.join("b")).unwrap());
    });
}

fn unlink_of_nothing_is_enoent(place: &Place) {
    refused(unlink(place.path("nothing")), Errno::NOENT);
}

fn an_unlinked_file_that_is_open_is_read_and_written(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(b"before", 0).unwrap();
    unlink(place.path("a")).unwrap();
    assert!(is_missing(&place.path("a")));
    file.write_all_at(b" and after", 6).unwrap();
    let mut read = [0; 16];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"before and after");
    let stat = rustix::fs::fstat(&file).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 16));
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    rustix::fs::fchmod(&file, Mode::RUSR).unwrap();
}

fn a_name_taken_again_is_another_file(place: &Place) {
    let old = place.open_new("a");
    old.write_all_at(b"old", 0).unwrap();
    unlink(place.path("a")).unwrap();
    place.file("a", "new!");
    assert_ne!(rustix::fs::fstat(&old).unwrap().st_ino, stat(&place.path("a")).st_ino);
    let mut read = [0; 3];
    old.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"old");
    assert_eq!(std::fs::read(place.path("a")).unwrap(), b"new!");
}

fn links_keep_their_targets(place: &Place) {
    for target in ["a", "/", "../..", "no such thing", "ü\n\x7f", "a//b/./c"] {
        let path = place.path("link");
        symlink(target, &path).unwrap();
        assert_eq!(readlink(&path, vec![]).unwrap().to_bytes(), target.as_bytes());
        let stat = stat(&path);
        assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::Symlink);
        assert_eq!(u64::try_from(stat.st_size), Ok(target.len() as u64));
        assert_eq!(stat.st_mode & 0o7777, 0o777);
        unlink(&path).unwrap();
    }
    refused(symlink("", place.path("link")), Errno::NOENT);
}

fn symlink_refuses_what_is_there(place: &Place) {
    for there in [place.file("a", ""), place.subfolder("b")] {
        refused(symlink("target", &there), Errno::EXIST);
    }
}

fn readlink_of_a_file_is_einval(place: &Place) {
    refused(readlink(place.file("a", ""), vec![]), Errno::INVAL);
    refused(readlink(place.subfolder("b"), vec![]), Errno::INVAL);
    refused(readlink(place.path("nothing"), vec![]), Errno::NOENT);
}

fn long_targets_are_kept(place: &Place) {
    let target = "t/".repeat(2047);
    symlink(&target, place.path("long")).unwrap();
    assert_eq!(readlink(place.path("long"), vec![]).unwrap().to_bytes(), target.as_bytes());
    refused(symlink("t".repeat(4096), place.path("longer")), Errno::NAMETOOLONG);
}

fn special_files_are_made(place: &Place) {
    let device = rustix::fs::makedev(1, 3);
    let kinds = [
        (FileType::Fifo, 0),
        (FileType::Socket, 0),
        (FileType::RegularFile, 0),
        (FileType::CharacterDevice, device),
        (FileType::BlockDevice, device),
    ];
    for (kind, device) in kinds {
        let path = place.path("node");
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), device).unwrap();
        let stat = stat(&path);
        assert_eq!(FileType::from_raw_mode(stat.st_mode), kind);
        assert_eq!((stat.st_mode & 0o7777, stat.st_rdev, stat.st_size), (0o640, device, 0));
        unlink(&path).unwrap();
    }
}

fn mknod_refuses_what_is_there(place: &Place) {
    for there in [place.file("a", ""), place.subfolder("b")] {
        refused(mknodat(CWD, &there, FileType::Fifo, Mode::RWXU, 0), Errno::EXIST);
    }
    let below = place.path("nothing/a");
    refused(mknodat(CWD, &below, FileType::Fifo, Mode::RWXU, 0), Errno::NOENT);
}

fn many_links_to_one_file(place: &Place) {
    let a = place.file("a", "shared");
    for number in 0..300 {
        link(&a, place.path(number.to_string())).unwrap();
    }
    assert_eq!(links(&a), 301);
    assert_eq!(std::fs::read(place.path("299")).unwrap(), b"shared");
    for number in 0..300 {
        unlink(place.path(number.to_string())).unwrap();
    }
    assert_eq!(links(&a), 1);
}

fn a_linked_file_lives_until_its_last_name_is_gone(place: &Place) {
    let folder = place.subfolder("folder");
    let a = place.file("folder/a", "kept");
    link(&a, place.path("b")).unwrap();
    unlink(&a).unwrap();
    refused_with_one_of(rustix::fs::rmdir(place.folder()), &[Errno::NOTEMPTY, Errno::EXIST]);
    rustix::fs::rmdir(&folder).unwrap();
    assert_eq!(std::fs::read(place.path("b")).unwrap(), b"kept");
}
