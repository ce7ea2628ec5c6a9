//! chmod(2), chown(2), and the mode bits that changes clear.

use std::os::unix::fs::FileExt;

use rustix::fs::{FileType, symlink};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{
    Place, chmod, chown, mode, open, refused, set_mode, sets_times, stat, times,
};
use crate::files::user::{NOBODY, OTHER, as_user};

pub(super) const RULES: &[Rule] = rules![
    chmod_sets_all_twelve_bits,
    chmod_sets_the_change_time_only,
    chmod_follows_links,
    chmod_of_nothing_is_enoent,
    chmod_is_for_owners,
    chmod_by_other_users_to_the_group_drops_set_group,
    chown_sets_user_and_group,
    chown_leaves_what_is_not_named,
    chown_sets_the_change_time_only,
    chown_is_for_root,
    chown_to_the_own_group_is_for_owners,
    chown_takes_set_id_bits_away,
    chown_to_nobody_takes_set_id_bits_away_too,
    writes_of_users_take_set_id_bits_away,
    truncation_by_users_takes_set_id_bits_away,
    links_have_owners_of_their_own,
    stat_through_descriptors_sees_changes,
];

fn chmod_sets_all_twelve_bits(place: &Place) {
    let (file, folder) = (place.file("a", ""), place.subfolder("b"));
    for bits in [0, 0o777, 0o4755, 0o2755, 0o1777, 0o7777, 0o644] {
        set_mode(&file, bits);
        set_mode(&folder, bits);
        assert_eq!((mode(&file), mode(&folder)), (bits, bits));
    }
    assert_eq!(FileType::from_raw_mode(stat(&file).st_mode), FileType::RegularFile);
}

fn chmod_sets_the_change_time_only(place: &Place) {
    let a = place.file("a", "");
    sets_times(&a, "c", || set_mode(&a, 0o600));
}

fn chmod_follows_links(place: &Place) {
    let a = place.file("a", "");
    symlink("a", place.path("link")).unwrap();
    set_mode(&place.path("link"), 0o604);
    assert_eq!((mode(&a), mode(&place.path("link"))), (0o604, 0o777));
}

fn chmod_of_nothing_is_enoent(place: &Place) {
    refused(chmod(&place.path("a"), 0o600), Errno::NOENT);
    refused(chown(&place.path("a"), Some(0), None), Errno::NOENT);
}

fn chmod_is_for_owners(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(NOBODY), Some(NOBODY)).unwrap();
    as_user(OTHER, OTHER, || refused(chmod(&a, 0o777), Errno::PERM));
    as_user(NOBODY, NOBODY, || set_mode(&a, 0o640));
    assert_eq!(mode(&a), 0o640);
}

fn chmod_by_other_users_to_the_group_drops_set_group(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(NOBODY), Some(1234)).unwrap();
    as_user(NOBODY, NOBODY, || set_mode(&a, 0o2755));
    assert_eq!(mode(&a), 0o755);
    chown(&a, None, Some(NOBODY)).unwrap();
    as_user(NOBODY, NOBODY, || set_mode(&a, 0o2755));
    assert_eq!(mode(&a), 0o2755);
}

fn chown_sets_user_and_group(place: &Place) {
    for path in [place.file("a", ""), place.subfolder("b")] {
        chown(&path, Some(4_000_000_000), Some(123_456)).unwrap();
        assert_eq!((stat(&path).st_uid, stat(&path).st_gid), (4_000_000_000, 123_456));
    }
}

fn chown_leaves_what_is_not_named(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(1), Some(2)).unwrap();
    chown(&a, Some(3), None).unwrap();
    chown(&a, None, Some(4)).unwrap();
    chown(&a, None, None).unwrap();
    assert_eq!((stat(&a).st_uid, stat(&a).st_gid), (3, 4));
}

fn chown_sets_the_change_time_only(place: &Place) {
    let a = place.file("a", "");
    sets_times(&a, "c", || chown(&a, Some(1), Some(1)).unwrap());
}

fn chown_is_for_root(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(NOBODY), Some(NOBODY)).unwrap();
    as_user(NOBODY, NOBODY, || {
        refused(chown(&a, Some(OTHER), None), Errno::PERM);
        refused(chown(&a, None, Some(OTHER)), Errno::PERM);
    });
    as_user(OTHER, OTHER, || refused(chown(&a, None, Some(OTHER)), Errno::PERM));
}

fn chown_to_the_own_group_is_for_owners(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(NOBODY), Some(1234)).unwrap();
    as_user(NOBODY, NOBODY, || chown(&a, None, Some(NOBODY)).unwrap());
    assert_eq!(stat(&a).st_gid, NOBODY);
}

fn chown_takes_set_id_bits_away(place: &Place) {
    let a = place.file("a", "");
    chown(&a, Some(NOBODY), Some(1234)).unwrap();
    set_mode(&a, 0o6755);
    as_user(NOBODY, NOBODY, || chown(&a, None, Some(NOBODY)).unwrap());
    assert_eq!(mode(&a), 0o755);
    let folder = place.subfolder("b");
    set_mode(&folder, 0o2755);
    chown(&folder, Some(NOBODY), None).unwrap();
    assert_eq!(mode(&folder), 0o2755);
}

fn chown_to_nobody_takes_set_id_bits_away_too(place: &Place) {
    let a = place.file("a", "contents");
    for owner in [0, NOBODY] {
        chown(&a, Some(owner), Some(owner)).unwrap();
        set_mode(&a, 0o6755);
        as_user(owner, owner, || chown(&a, None, None).unwrap());
        assert_eq!(mode(&a), 0o755, "by path");
        set_mode(&a, 0o6755);
        let file = std::fs::File::open(&a).unwrap();
        as_user(owner, owner, || rustix::fs::fchown(&file, None, None).unwrap());
        assert_eq!(mode(&a), 0o755, "by descriptor");
    }
    // No other operation that leaves mode and owner alone clears the bits, nor does a write or
    // truncation by a privileged user.
    set_mode(&a, 0o6755);
    let file = open(&a, rustix::fs::OFlags::RDWR, 0).unwrap();
    rustix::io::pwrite(&file, b"x", 0).unwrap();
    rustix::fs::ftruncate(&file, 3).unwrap();
    rustix::fs::fsync(&file).unwrap();
    assert_eq!(mode(&a), 0o6755);
    let folder = place.subfolder("b");
    set_mode(&folder, 0o2755);
    chown(&folder, None, None).unwrap();
    assert_eq!(mode(&folder), 0o2755);
}

fn writes_of_users_take_set_id_bits_away(place: &Place) {
    let a = place.file("a", "contents");
    for owner in [NOBODY, OTHER] {
        chown(&a, Some(owner), Some(owner)).unwrap();
        set_mode(&a, 0o6777);
        as_user(NOBODY, NOBODY, || {
            let file = std::fs::File::options().write(true).open(&a).unwrap();
            file.write_all_at(b"x", 0).unwrap();
        });
        assert_eq!(mode(&a), 0o777);
    }
    assert_eq!(std::fs::read(&a).unwrap(), b"xontents");
}

fn truncation_by_users_takes_set_id_bits_away(place: &Place) {
    let a = place.file("a", "contents");
    chown(&a, Some(OTHER), Some(OTHER)).unwrap();
    set_mode(&a, 0o6777);
    as_user(NOBODY, NOBODY, || {
        std::fs::File::options().write(true).open(&a).unwrap().set_len(3).unwrap();
    });
    assert_eq!((mode(&a), stat(&a).st_size), (0o777, 3));
}

fn links_have_owners_of_their_own(place: &Place) {
    place.file("a", "");
    symlink("a", place.path("link")).unwrap();
    chown(&place.path("link"), Some(NOBODY), Some(OTHER)).unwrap();
    assert_eq!((stat(&place.path("link")).st_uid, stat(&place.path("a")).st_uid), (NOBODY, 0));
}

fn stat_through_descriptors_sees_changes(place: &Place) {
    let a = place.file("a", "12345");
    let file = open(&a, rustix::fs::OFlags::RDWR, 0).unwrap();
    set_mode(&a, 0o4711);
    let before = times(&a);
    let stat = rustix::fs::fstat(&file).unwrap();
    assert_eq!((stat.st_mode & 0o7777, stat.st_size), (0o4711, 5));
    rustix::fs::fchown(&file, Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
    assert_eq!(self::stat(&a).st_uid, 7);
    assert!(times(&a).changed >= before.changed);
}
