//! Names and paths: their lengths, their bytes, cycles of symbolic links.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, OFlags, mkdir, mknodat, rename, rmdir, symlink, unlink};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, is_missing, open, refused, stat};

pub(super) const RULES: &[Rule] = rules![
    names_have_up_to_255_bytes,
    names_of_256_bytes_are_refused_everywhere,
    paths_have_up_to_4095_bytes,
    names_are_any_bytes,
    links_that_go_round_are_eloop,
    a_link_in_the_middle_is_followed,
    a_file_in_the_middle_is_enotdir,
    a_trailing_slash_asks_for_a_folder,
    names_differ_in_case,
    a_chain_of_forty_links_is_followed,
];

fn names_have_up_to_255_bytes(place: &Place) {
    for byte in ["a", "ü"] {
        let name = byte.repeat(255 / byte.len());
        let path = place.file(&name, "x");
        let listed: Vec<_> = std::fs::read_dir(place.folder()).unwrap().collect();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].as_ref().unwrap().file_name().to_str(), Some(&name[..]));
        rename(&path, place.path("short")).unwrap();
        rename(place.path("short"), &path).unwrap();
        unlink(&path).unwrap();
        mkdir(&path, Mode::RWXU).unwrap();
        rmdir(&path).unwrap();
        symlink("x", &path).unwrap();
        unlink(&path).unwrap();
    }
}

fn names_of_256_bytes_are_refused_everywhere(place: &Place) {
    let long = place.path("a".repeat(256));
    let there = place.file("there", "x");
    let too_long = Errno::NAMETOOLONG;
    refused(open(&long, OFlags::RDONLY, 0), too_long);
    refused(open(&long, OFlags::CREATE | OFlags::WRONLY, 0o644), too_long);
    refused(mkdir(&long, Mode::RWXU), too_long);
    refused(rmdir(&long), too_long);
    refused(unlink(&long), too_long);
    refused(symlink("x", &long), too_long);
    refused(rustix::fs::link(&there, &long), too_long);
    refused(rename(&there, &long), too_long);
    refused(rename(&long, place.path("b")), too_long);
    refused(mknodat(CWD, &long, FileType::Fifo, Mode::RWXU, 0), too_long);
    refused(rustix::fs::stat(&long), too_long);
    refused(rustix::fs::chmod(&long, Mode::RWXU), too_long);
    refused(open(&long.join("x"), OFlags::RDONLY, 0), too_long);
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 1);
}

fn paths_have_up_to_4095_bytes(place: &Place) {
    let own = place.folder().as_os_str().len();
    let mut path = place.folder().to_owned();
    while path.as_os_str().len() + 102 < 4095 {
        path.push("d".repeat(100));
        mkdir(&path, Mode::RWXU).unwrap();
    }
    let rest = 4095 - path.as_os_str().len() - 1;
    let longest = path.join("e".repeat(rest));
    std::fs::write(&longest, "deep").unwrap();
    assert_eq!(std::fs::read(&longest).unwrap(), b"deep");
    refused(open(&path.join("e".repeat(rest + 1)), OFlags::RDONLY, 0), Errno::NAMETOOLONG);
    assert!(own < 4095);
}

fn names_are_any_bytes(place: &Place) {
    let names: Vec<Vec<u8>> =
        (1..=255_u8).filter(|byte| *byte != b'/').map(|byte| vec![b'n', byte]).collect();
    for name in &names {
        place.file(OsStr::from_bytes(name), name);
    }
    let listed = std::fs::read_dir(place.folder()).unwrap();
    let mut listed: Vec<Vec<u8>> =
        listed.map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(&std::fs::read(place.path(OsStr::from_bytes(name))).unwrap(), name);
    }
}

fn links_that_go_round_are_eloop(place: &Place) {
    symlink("b", place.path("a")).unwrap();
    symlink("a", place.path("b")).unwrap();
    symlink("self", place.path("self")).unwrap();
    for name in ["a", "self"] {
        refused(open(&place.path(name), OFlags::RDONLY, 0), Errno::LOOP);
        refused(open(&place.path(name), OFlags::CREATE | OFlags::WRONLY, 0o644), Errno::LOOP);
        refused(mkdir(place.path(name).join("x"), Mode::RWXU), Errno::LOOP);
        refused(rename(place.path(name).join("x"), place.path("y")), Errno::LOOP);
        refused(rustix::fs::chmod(place.path(name), Mode::RWXU), Errno::LOOP);
    }
    unlink(place.path("a")).unwrap();
}

fn a_link_in_the_middle_is_followed(place: &Place) {
    place.subfolder("folder");
    place.file("folder/a", "found");
    symlink("folder", place.path("link")).unwrap();
    symlink("../folder/a", place.path("folder/back")).unwrap();
    assert_eq!(std::fs::read(place.path("link/a")).unwrap(), b"found");
    assert_eq!(std::fs::read(place.path("link/back")).unwrap(), b"found");
    assert_eq!(std::fs::read(place.path("link/../folder/a")).unwrap(), b"found");
}

fn a_file_in_the_middle_is_enotdir(place: &Place) {
    let below: PathBuf = place.file("file", "x").join("below");
    refused(mkdir(&below, Mode::RWXU), Errno::NOTDIR);
    refused(rmdir(&below), Errno::NOTDIR);
    refused(unlink(&below), Errno::NOTDIR);
    refused(symlink("x", &below), Errno::NOTDIR);
    refused(rustix::fs::stat(&below), Errno::NOTDIR);
    refused(rename(&below, place.path("y")), Errno::NOTDIR);
    refused(rustix::fs::link(place.path("file"), &below), Errno::NOTDIR);
    refused(mknodat(CWD, &below, FileType::Fifo, Mode::RWXU, 0), Errno::NOTDIR);
}

fn a_trailing_slash_asks_for_a_folder(place: &Place) {
    place.file("file", "x");
    place.subfolder("folder");
    refused(rustix::fs::stat(place.path("file/")), Errno::NOTDIR);
    refused(unlink(place.path("file/")), Errno::NOTDIR);
    refused(rename(place.path("file"), place.path("new/")), Errno::NOTDIR);
    rustix::fs::stat(place.path("folder/")).unwrap();
    rename(place.path("folder/"), place.path("new/")).unwrap();
    assert!(is_missing(&place.path("folder")));
    rmdir(place.path("new/")).unwrap();
}

fn names_differ_in_case(place: &Place) {
    place.file("a", "small");
    place.file("A", "large");
    assert_eq!(std::fs::read(place.path("a")).unwrap(), b"small");
    assert_ne!(stat(&place.path("a")).st_ino, stat(&place.path("A")).st_ino);
}

fn a_chain_of_forty_links_is_followed(place: &Place) {
    place.file("0", "end");
    for number in 1..=41 {
        symlink((number - 1).to_string(), place.path(number.to_string())).unwrap();
    }
    assert_eq!(std::fs::read(place.path("40")).unwrap(), b"end");
    refused(open(&place.path("41"), OFlags::RDONLY, 0), Errno::LOOP);
}
