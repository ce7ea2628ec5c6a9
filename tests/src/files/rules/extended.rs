//! Extended attributes of the `user` namespace.

use std::io::Write;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, chown, refused, refused_with_one_of, set_mode, sets_times};
use crate::files::user::{NOBODY, as_user};

pub(super) const RULES: &[Rule] = rules![
    attributes_are_kept,
    attributes_are_listed,
    creating_and_replacing_are_told_apart,
    missing_attributes_are_enodata,
    small_buffers_are_erange,
    attributes_of_folders_and_through_renames,
    attributes_set_the_change_time,
    attributes_have_bounds,
    attributes_of_others_are_refused,
    attributes_of_unknown_kinds_are_refused,
    many_attributes,
    capabilities_go_with_a_write,
];

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 65_536];
    let len = listxattr(path, &mut names[..]).unwrap();
    let names = String::from_utf8(names[..len].to_vec()).unwrap();
    let own = names.split_terminator('\0').filter(|name| name.starts_with("user."));
    let mut names: Vec<String> = own.map(str::to_owned).collect();
    names.sort_unstable();
    names
}

fn attributes_are_kept(place: &Place) {
    let a = place.file("a", "");
    for value in [&b""[..], b"value", &[0, 255, 0], &[7; 3000]] {
        set(&a, "user.name", value).unwrap();
        assert_eq!(get(&a, "user.name").unwrap(), value);
    }
}

fn attributes_are_listed(place: &Place) {
    let a = place.file("a", "");
    assert_eq!(list(&a), Vec::<String>::new());
    for name in ["user.c", "user.a", "user.b"] {
        set(&a, name, b"x").unwrap();
    }
    removexattr(&a, "user.b").unwrap();
    assert_eq!(list(&a), ["user.a", "user.c"]);
}

fn creating_and_replacing_are_told_apart(place: &Place) {
    let a = place.file("a", "");
    refused(setxattr(&a, "user.a", b"x", XattrFlags::REPLACE), Errno::NODATA);
    setxattr(&a, "user.a", b"x", XattrFlags::CREATE).unwrap();
    refused(setxattr(&a, "user.a", b"y", XattrFlags::CREATE), Errno::EXIST);
    setxattr(&a, "user.a", b"z", XattrFlags::REPLACE).unwrap();
    assert_eq!(get(&a, "user.a").unwrap(), b"z");
}

fn missing_attributes_are_enodata(place: &Place) {
    let a = place.file("a", "");
    refused(get(&a, "user.a"), Errno::NODATA);
    refused(removexattr(&a, "user.a"), Errno::NODATA);
    refused(get(&place.path("nothing"), "user.a"), Errno::NOENT);
}

fn small_buffers_are_erange(place: &Place) {
    let a = place.file("a", "");
    set(&a, "user.a", b"0123456789").unwrap();
    let mut small = [0; 9];
    refused(getxattr(&a, "user.a", &mut small[..]), Errno::RANGE);
    let mut small = [0; 3];
    refused(listxattr(&a, &mut small[..]), Errno::RANGE);
}

fn attributes_of_folders_and_through_renames(place: &Place) {
    let (file, folder) = (place.file("a", ""), place.subfolder("b"));
    set(&folder, "user.a", b"folder").unwrap();
    set(&file, "user.a", b"file").unwrap();
    rustix::fs::link(&file, place.path("c")).unwrap();
    rustix::fs::rename(&file, folder.join("moved")).unwrap();
    assert_eq!(get(&folder, "user.a").unwrap(), b"folder");
    assert_eq!(get(&folder.join("moved"), "user.a").unwrap(), b"file");
    assert_eq!(get(&place.path("c"), "user.a").unwrap(), b"file");
}

fn attributes_set_the_change_time(place: &Place) {
    let a = place.file("a", "");
    sets_times(&a, "c", || set(&a, "user.a", b"x").unwrap());
    sets_times(&a, "", || assert_eq!(get(&a, "user.a").unwrap(), b"x"));
    sets_times(&a, "c", || removexattr(&a, "user.a").unwrap());
}

fn attributes_have_bounds(place: &Place) {
    let a = place.file("a", "");
    let name = |len: usize| format!("user.{}", "n".repeat(len - 5));
    set(&a, &name(255), b"x").unwrap();
    assert_eq!(get(&a, &name(255)).unwrap(), b"x");
    refused(set(&a, &name(256), b"x"), Errno::RANGE);
    refused_with_one_of(set(&a, "user.a", &vec![0; 65_537]), &[Errno::TOOBIG, Errno::NOSPC]);
    refused_with_one_of(set(&a, "user.", b"x"), &[Errno::INVAL, Errno::OPNOTSUPP]);
}

fn attributes_of_others_are_refused(place: &Place) {
    let a = place.file("a", "");
    set(&a, "user.a", b"x").unwrap();
    set_mode(&a, 0o644);
    as_user(NOBODY, NOBODY, || {
        refused(set(&a, "user.a", b"y"), Errno::ACCESS);
        assert_eq!(get(&a, "user.a").unwrap(), b"x");
    });
    set_mode(&a, 0o600);
    as_user(NOBODY, NOBODY, || refused(get(&a, "user.a"), Errno::ACCESS));
    chown(&a, Some(NOBODY), None).unwrap();
    as_user(NOBODY, NOBODY, || set(&a, "user.a", b"y").unwrap());
    assert_eq!(get(&a, "user.a").unwrap(), b"y");
}

fn attributes_of_unknown_kinds_are_refused(place: &Place) {
    let a = place.file("a", "");
    for name in ["nothing", "unknown.a"] {
        refused(set(&a, name, b"x"), Errno::OPNOTSUPP);
    }
    // Pipes have no `user` attributes.
    let pipe = place.path("pipe");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    );
    made.unwrap();
    refused(set(&pipe, "user.a", b"x"), Errno::PERM);
}

fn many_attributes(place: &Place) {
    let a = place.file("a", "");
    let names: Vec<String> = (0..40).map(|number| format!("user.{number:02}")).collect();
    for name in &names {
        set(&a, name, name.as_bytes()).unwrap();
    }
    assert_eq!(list(&a), names);
    for name in &names {
        assert_eq!(get(&a, name).unwrap(), name.as_bytes());
        removexattr(&a, &name[..]).unwrap();
    }
    assert_eq!(list(&a), Vec::<String>::new());
}

/// A write removes the file's capabilities: a changed program must not keep the rights that were
/// granted to the earlier one.
fn capabilities_go_with_a_write(place: &Place) {
    // Version 2 of the format, with CAP_CHOWN.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let a = place.file("a", "contents");
    for appends in [false, true] {
        match set(&a, "security.capability", &CAPABILITY) {
            // Needs CAP_SETFCAP.
            Err(Errno::PERM) => return,
            set => set.unwrap(),
        }
        assert_eq!(get(&a, "security.capability").unwrap(), CAPABILITY);
        let mut file = std::fs::OpenOptions::new().write(true).append(appends).open(&a).unwrap();
        file.write_all(b"other").unwrap();
        refused(get(&a, "security.capability"), Errno::NODATA);
    }
}
