//! Times: utimensat(2), and the operations that update them.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, symlink, utimensat};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{
    Place, chown, open, refused, refused_with_one_of, set_mode, sets_times, times,
};
use crate::files::user::{NOBODY, OTHER, as_user};

pub(super) const RULES: &[Rule] = rules![
    times_are_set_to_the_nanosecond,
    times_before_1970_and_after_2038,
    one_time_can_be_left_alone,
    times_can_be_now,
    setting_times_sets_the_change_time,
    times_of_links_are_their_own,
    times_that_are_no_times_are_einval,
    setting_times_is_for_owners,
    setting_times_to_now_is_for_writers,
    writing_sets_times,
    writing_nothing_sets_no_times,
    truncating_sets_times,
    creating_sets_the_times_of_the_parent,
    reading_sets_no_modification_time,
    times_are_seen_through_descriptors_too,
    times_set_by_hand_stay_after_close,
];

fn set(path: &Path, access: (i64, i64), modified: (i64, i64)) -> rustix::io::Result<()> {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let both = Timestamps { last_access: spec(access), last_modification: spec(modified) };
    utimensat(CWD, path, &both, AtFlags::SYMLINK_NOFOLLOW)
}

const fn joined(seconds: i64, nanoseconds: i64) -> i128 {
    seconds as i128 * 1_000_000_000 + nanoseconds as i128
}

fn times_are_set_to_the_nanosecond(place: &Place) {
    for path in [place.file("a", ""), place.subfolder("b")] {
        set(&path, (1_000_000_000, 123_456_789), (1_234_567_890, 999_999_999)).unwrap();
        let times = times(&path);
        assert_eq!(times.access, joined(1_000_000_000, 123_456_789));
        assert_eq!(times.modified, joined(1_234_567_890, 999_999_999));
    }
}

fn times_before_1970_and_after_2038(place: &Place) {
    let a = place.file("a", "");
    for seconds in [-1, -1_000_000, 0, 1 << 32, 5_000_000_000] {
        set(&a, (seconds, 250_000_000), (seconds, 1)).unwrap();
        let times = times(&a);
        assert_eq!(times.access, joined(seconds, 250_000_000), "{seconds}");
        assert_eq!(times.modified, joined(seconds, 1), "{seconds}");
    }
}

fn one_time_can_be_left_alone(place: &Place) {
    let a = place.file("a", "");
    set(&a, (1000, 1), (2000, 2)).unwrap();
    set(&a, (0, UTIME_OMIT), (3000, 3)).unwrap();
    assert_eq!((times(&a).access, times(&a).modified), (joined(1000, 1), joined(3000, 3)));
    set(&a, (4000, 4), (0, UTIME_OMIT)).unwrap();
    assert_eq!((times(&a).access, times(&a).modified), (joined(4000, 4), joined(3000, 3)));
    set(&a, (0, UTIME_OMIT), (0, UTIME_OMIT)).unwrap();
    assert_eq!((times(&a).access, times(&a).modified), (joined(4000, 4), joined(3000, 3)));
}

fn times_can_be_now(place: &Place) {
    let a = place.file("a", "");
    set(&a, (1000, 1), (2000, 2)).unwrap();
    set(&a, (0, UTIME_NOW), (0, UTIME_NOW)).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = i128::try_from(now.as_nanos()).unwrap();
    let minute = 60_000_000_000;
    assert!((times(&a).access - now).abs() < minute && (times(&a).modified - now).abs() < minute);
}

fn setting_times_sets_the_change_time(place: &Place) {
    let a = place.file("a", "");
    set(&a, (1000, 1), (2000, 2)).unwrap();
    sets_times(&a, "c", || set(&a, (1000, 1), (2000, 2)).unwrap());
}

fn times_of_links_are_their_own(place: &Place) {
    let a = place.file("a", "");
    symlink("a", place.path("link")).unwrap();
    let before = times(&a);
    set(&place.path("link"), (1000, 1), (2000, 2)).unwrap();
    assert_eq!(times(&place.path("link")).modified, joined(2000, 2));
    assert_eq!(times(&a), before);
}

fn times_that_are_no_times_are_einval(place: &Place) {
    let a = place.file("a", "");
    refused(set(&a, (0, 1_000_000_000), (0, 0)), Errno::INVAL);
    refused(set(&a, (0, 0), (0, -1)), Errno::INVAL);
    refused(set(&place.path("nothing"), (0, 0), (0, 0)), Errno::NOENT);
}

fn setting_times_is_for_owners(place: &Place) {
    let a = place.file("a", "");
    set_mode(&a, 0o666);
    as_user(NOBODY, NOBODY, || refused(set(&a, (0, 0), (0, 0)), Errno::PERM));
    chown(&a, Some(NOBODY), None).unwrap();
    as_user(NOBODY, NOBODY, || set(&a, (0, 0), (0, 0)).unwrap());
}

fn setting_times_to_now_is_for_writers(place: &Place) {
    let a = place.file("a", "");
    let now = (0, UTIME_NOW);
    set_mode(&a, 0o644);
    as_user(OTHER, OTHER, || {
        refused_with_one_of(set(&a, now, now), &[Errno::ACCESS, Errno::PERM]);
    });
    set_mode(&a, 0o666);
    as_user(OTHER, OTHER, || set(&a, now, now).unwrap());
}

fn writing_sets_times(place: &Place) {
    let file = place.open_new("a");
    let a = place.path("a");
    sets_times(&a, "mc", || file.write_all_at(b"grows", 0).unwrap());
    sets_times(&a, "mc", || file.write_all_at(b"stays", 0).unwrap());
}

fn writing_nothing_sets_no_times(place: &Place) {
    let file = place.open_new("a");
    sets_times(&place.path("a"), "", || assert_eq!(file.write_at(b"", 0).unwrap(), 0));
}

fn truncating_sets_times(place: &Place) {
    let a = place.file("a", "contents");
    let file = open(&a, rustix::fs::OFlags::RDWR, 0).unwrap();
    sets_times(&a, "mc", || rustix::fs::ftruncate(&file, 3).unwrap());
    sets_times(&a, "mc", || rustix::fs::ftruncate(&file, 30).unwrap());
    sets_times(&a, "mc", || drop(std::fs::File::create(&a).unwrap()));
}

fn creating_sets_the_times_of_the_parent(place: &Place) {
    let folder = place.subfolder("folder");
    sets_times(&folder, "mc", || drop(place.file("folder/a", "")));
    sets_times(&folder, "", || drop(place.file("folder/a", "other")));
    sets_times(&folder, "mc", || symlink("x", folder.join("b")).unwrap());
}

fn reading_sets_no_modification_time(place: &Place) {
    let a = place.file("a", "contents");
    sets_times(&a, "", || {
        let mut read = String::new();
        std::fs::File::open(&a).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "contents");
    });
}

fn times_are_seen_through_descriptors_too(place: &Place) {
    let file = place.open_new("a");
    set(&place.path("a"), (1000, 1), (2000, 2)).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (2000, 2));
}

fn times_set_by_hand_stay_after_close(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(b"contents", 0).unwrap();
    set(&place.path("a"), (1000, 1), (2000, 2)).unwrap();
    drop(file);
    assert_eq!(times(&place.path("a")).modified, joined(2000, 2));
}
