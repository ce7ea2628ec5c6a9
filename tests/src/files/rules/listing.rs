//! Reading folders: every name once, also in large folders and while they change.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, SeekFrom, seek, symlink, unlink};

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, open, stat};

pub(super) const RULES: &[Rule] = rules![
    an_empty_folder_lists_dot_and_dot_dot,
    listings_tell_inodes_and_kinds,
    large_folders_are_listed_and_emptied,
    listings_start_again_when_rewound,
    listings_go_on_where_they_were_left,
    removal_while_listing_removes_all,
    what_stays_is_listed_once_while_others_come_and_go,
    names_with_equal_beginnings,
];

/// The names in a folder, in the kernel's order.
fn listed(folder: impl AsFd) -> Vec<String> {
    let entries = Dir::read_from(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect()
}

fn names(place: &Place) -> Vec<String> {
    listed(open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap())
}

fn an_empty_folder_lists_dot_and_dot_dot(place: &Place) {
    let mut names = names(place);
    names.sort_unstable();
    assert_eq!(names, [".", ".."]);
}

fn listings_tell_inodes_and_kinds(place: &Place) {
    place.file("file", "");
    place.subfolder("folder");
    symlink("x", place.path("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, place.path("pipe"), FileType::Fifo, Mode::RWXU, 0)
        .unwrap();
    let folder = open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
    let found: BTreeMap<String, (u64, FileType)> = Dir::read_from(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap().to_owned();
            (name, (entry.ino(), entry.file_type()))
        })
        .collect();
    assert_eq!(found.len(), 6);
    for name in ["file", "folder", "link", "pipe"] {
        let stat = stat(&place.path(name));
        let kind = FileType::from_raw_mode(stat.st_mode);
        assert_eq!(found[name], (stat.st_ino, kind), "{name}");
    }
    assert_eq!(found["."].0, stat(place.folder()).st_ino);
    assert_eq!(found[".."].0, stat(&place.path("..")).st_ino);
}

fn large_folders_are_listed_and_emptied(place: &Place) {
    const NAMES: u32 = 10_000;
    let wanted: BTreeSet<String> = (0..NAMES).map(|number| format!("name {number}")).collect();
    for name in &wanted {
        drop(place.open_new(name));
    }
    let names = names(place);
    assert_eq!(names.len(), wanted.len() + 2);
    let names: BTreeSet<String> =
        names.into_iter().filter(|name| name != "." && name != "..").collect();
    assert!(names == wanted, "names are missing or made up");
    for name in &wanted {
        unlink(place.path(name)).unwrap();
    }
    assert_eq!(self::names(place).len(), 2);
}

fn listings_start_again_when_rewound(place: &Place) {
    for number in 0..50 {
        place.file(number.to_string(), "");
    }
    let folder = open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
    let first = listed(&folder);
    place.file("new", "");
    seek(&folder, SeekFrom::Start(0)).unwrap();
    let second = listed(&folder);
    assert_eq!((first.len(), second.len()), (52, 53));
}

fn listings_go_on_where_they_were_left(place: &Place) {
    const NAMES: usize = 700;
    for number in 0..NAMES {
        place.file(format!("{number:0100}"), "");
    }
    let folder = open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
    let entries: Vec<(String, i64)> = Dir::read_from(&folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().to_str().unwrap().to_owned(), entry.offset())
        })
        .collect();
    assert_eq!(entries.len(), NAMES + 2);
    for at in [0, 1, 2, 17, 350, NAMES, NAMES + 1] {
        let folder = open(place.folder(), OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
        let mut dir = Dir::read_from(&folder).unwrap();
        dir.seek(entries[at].1).unwrap();
        let next = dir.next().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
        assert_eq!(next.as_ref(), entries.get(at + 1).map(|(name, _)| name), "after {at}");
    }
}

fn removal_while_listing_removes_all(place: &Place) {
    for number in 0..2000 {
        drop(place.open_new(number.to_string()));
    }
    let mut count = 0;
    for entry in std::fs::read_dir(place.folder()).unwrap() {
        unlink(entry.unwrap().path()).unwrap();
        count += 1;
    }
    assert_eq!((count, names(place).len()), (2000, 2));
}

fn what_stays_is_listed_once_while_others_come_and_go(place: &Place) {
    let stay: BTreeSet<String> = (0..400).map(|number| format!("stays {number}")).collect();
    for name in &stay {
        drop(place.open_new(name));
    }
    let mut seen = Vec::new();
    for (number, entry) in std::fs::read_dir(place.folder()).unwrap().enumerate() {
        seen.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
        if number < 3000 {
            drop(place.open_new(format!("comes {number}")));
        }
        if number.is_multiple_of(2) {
            unlink(place.path(format!("comes {}", number / 2))).unwrap();
        }
    }
    seen.retain(|name| name.starts_with("stays"));
    let once: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(seen.len(), once.len(), "listed twice");
    assert!(once == stay, "not listed");
}

fn names_with_equal_beginnings(place: &Place) {
    let names: Vec<String> = (1..250).map(|len| "a".repeat(len)).collect();
    for name in &names {
        place.file(name, name);
    }
    let mut found = self::names(place);
    found.retain(|name| name.starts_with('a'));
    found.sort_unstable();
    assert_eq!(found, names);
    for name in &names {
        assert_eq!(&std::fs::read_to_string(place.path(name)).unwrap(), name);
    }
}
