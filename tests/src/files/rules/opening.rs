//! open(2) and its flags.

use std::io::{Read, Write};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, linkat, mknodat};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, is_missing, open, refused, refused_with_one_of, stat};

pub(super) const RULES: &[Rule] = rules![
    open_of_nothing_is_enoent,
    open_creates_with_the_mode_less_the_umask,
    open_exclusively_refuses_what_is_there,
    open_exclusively_refuses_links_to_nothing,
    open_truncates,
    open_for_reading_leaves_contents,
    open_of_a_folder_for_writing_is_eisdir,
    open_of_a_file_as_a_folder_is_enotdir,
    open_below_a_file_is_enotdir,
    open_without_following_links_is_eloop,
    open_through_links_creates_their_target,
    a_pipe_without_a_name_is_there_for_who_has_it_open,
    open_of_a_pipe_without_readers_is_enxio,
    open_of_a_socket_is_enxio,
    what_is_open_for_reading_refuses_writes,
    what_is_open_for_writing_refuses_reads,
    files_without_a_name_get_one_or_go,
    a_read_only_file_can_be_created_and_written_through_its_first_descriptor,
];

fn open_of_nothing_is_enoent(place: &Place) {
    refused(open(&place.path("nothing"), OFlags::RDONLY, 0), Errno::NOENT);
    refused(open(&place.path("nothing/a"), OFlags::CREATE | OFlags::WRONLY, 0o644), Errno::NOENT);
    refused(open("".as_ref(), OFlags::RDONLY, 0), Errno::NOENT);
}

fn open_creates_with_the_mode_less_the_umask(place: &Place) {
    let path = place.path("a");
    drop(open(&path, OFlags::CREATE | OFlags::WRONLY, 0o600).unwrap());
    let stat = stat(&path);
    assert_eq!(stat.st_mode & 0o7777, 0o600);
    assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile);
    assert_eq!((stat.st_size, stat.st_nlink, stat.st_blocks), (0, 1, 0));
}

fn open_exclusively_refuses_what_is_there(place: &Place) {
    let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    for path in [place.file("a", "x"), place.subfolder("b")] {
        refused(open(&path, exclusive, 0o644), Errno::EXIST);
    }
    assert_eq!(std::fs::read(place.path("a")).unwrap(), b"x");
}

fn open_exclusively_refuses_links_to_nothing(place: &Place) {
    std::os::unix::fs::symlink("target", place.path("link")).unwrap();
    let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    refused(open(&place.path("link"), exclusive, 0o644), Errno::EXIST);
    assert!(is_missing(&place.path("target")));
}

fn open_truncates(place: &Place) {
    let path = place.file("a", vec![7; 10_000]);
    let file = open(&path, OFlags::WRONLY | OFlags::TRUNC, 0).unwrap();
    assert_eq!((fstat(&file).unwrap().st_size, fstat(&file).unwrap().st_blocks), (0, 0));
    assert_eq!(std::fs::read(path).unwrap(), b"");
}

fn open_for_reading_leaves_contents(place: &Place) {
    let path = place.file("a", "contents");
    drop(open(&path, OFlags::CREATE | OFlags::RDWR, 0o600).unwrap());
    assert_eq!(std::fs::read(path).unwrap(), b"contents");
}

fn open_of_a_folder_for_writing_is_eisdir(place: &Place) {
    let folder = place.subfolder("a");
    refused(open(&folder, OFlags::WRONLY, 0), Errno::ISDIR);
    refused(open(&folder, OFlags::RDWR, 0), Errno::ISDIR);
    refused(open(&folder, OFlags::RDONLY | OFlags::CREATE, 0o644), Errno::ISDIR);
    open(&folder, OFlags::RDONLY | OFlags::DIRECTORY, 0).unwrap();
}

fn open_of_a_file_as_a_folder_is_enotdir(place: &Place) {
    let file = place.file("a", "");
    refused(open(&file, OFlags::RDONLY | OFlags::DIRECTORY, 0), Errno::NOTDIR);
}

fn open_below_a_file_is_enotdir(place: &Place) {
    place.file("a", "");
    refused(open(&place.path("a/b"), OFlags::RDONLY, 0), Errno::NOTDIR);
    refused(open(&place.path("a/b"), OFlags::CREATE | OFlags::WRONLY, 0o644), Errno::NOTDIR);
}

fn open_without_following_links_is_eloop(place: &Place) {
    place.file("a", "");
    std::os::unix::fs::symlink("a", place.path("link")).unwrap();
    refused(open(&place.path("link"), OFlags::RDONLY | OFlags::NOFOLLOW, 0), Errno::LOOP);
    open(&place.path("link"), OFlags::RDONLY, 0).unwrap();
}

fn open_through_links_creates_their_target(place: &Place) {
    std::os::unix::fs::symlink("target", place.path("link")).unwrap();
    drop(open(&place.path("link"), OFlags::CREATE | OFlags::WRONLY, 0o644).unwrap());
    assert_eq!(stat(&place.path("target")).st_size, 0);
}

fn open_of_a_pipe_without_readers_is_enxio(place: &Place) {
    let path = place.path("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused(open(&path, OFlags::WRONLY | OFlags::NONBLOCK, 0), Errno::NXIO);
    let mut reader =
        std::fs::File::from(open(&path, OFlags::RDONLY | OFlags::NONBLOCK, 0).unwrap());
    let mut writer =
        std::fs::File::from(open(&path, OFlags::WRONLY | OFlags::NONBLOCK, 0).unwrap());
    writer.write_all(b"through").unwrap();
    let mut read = [0; 7];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"through");
}

fn a_pipe_without_a_name_is_there_for_who_has_it_open(place: &Place) {
    let path = place.path("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let mut pipe = std::fs::File::from(open(&path, OFlags::RDWR | OFlags::NONBLOCK, 0).unwrap());
    rustix::fs::unlink(&path).unwrap();
    let stat = fstat(&pipe).unwrap();
    assert_eq!((FileType::from_raw_mode(stat.st_mode), stat.st_nlink), (FileType::Fifo, 0));
    rustix::fs::fchmod(&pipe, Mode::RUSR).unwrap();
    assert_eq!(fstat(&pipe).unwrap().st_mode & 0o777, 0o400);
    pipe.write_all(b"through").unwrap();
    let mut read = [0; 7];
    pipe.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"through");
}

fn open_of_a_socket_is_enxio(place: &Place) {
    // Paths of sockets are limited to fewer bytes than other paths.
    let socket = std::os::unix::net::UnixListener::bind(place.path("s"));
    if socket.is_ok() {
        assert_eq!(FileType::from_raw_mode(stat(&place.path("s")).st_mode), FileType::Socket);
        refused(open(&place.path("s"), OFlags::RDONLY, 0), Errno::NXIO);
        std::os::unix::net::UnixStream::connect(place.path("s")).unwrap();
    }
    mknodat(CWD, place.path("t"), FileType::Socket, Mode::RWXU, 0).unwrap();
    refused(open(&place.path("t"), OFlags::RDONLY, 0), Errno::NXIO);
}

fn what_is_open_for_reading_refuses_writes(place: &Place) {
    let file = open(&place.file("a", "x"), OFlags::RDONLY, 0).unwrap();
    refused(rustix::io::write(&file, b"y"), Errno::BADF);
    refused_with_one_of(rustix::fs::ftruncate(&file, 0), &[Errno::INVAL, Errno::BADF]);
}

fn what_is_open_for_writing_refuses_reads(place: &Place) {
    let file = open(&place.file("a", "x"), OFlags::WRONLY, 0).unwrap();
    let mut read = [0; 1];
    refused(rustix::io::read(&file, &mut read), Errno::BADF);
}

fn files_without_a_name_get_one_or_go(place: &Place) {
    let make = |more| open(place.folder(), OFlags::TMPFILE | OFlags::RDWR | more, 0o600).unwrap();
    let link = |file: &rustix::fd::OwnedFd| {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        linkat(CWD, path, CWD, place.path("a"), AtFlags::SYMLINK_FOLLOW)
    };
    let file = make(OFlags::empty());
    assert_eq!(
        (fstat(&file).unwrap().st_nlink, fstat(&file).unwrap().st_mode & 0o7777),
        (0, 0o600)
    );
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
    assert_eq!(rustix::io::write(&file, b"written before").unwrap(), 14);
    link(&file).unwrap();
    assert_eq!(fstat(&file).unwrap().st_nlink, 1);
    assert_eq!(std::fs::read(place.path("a")).unwrap(), b"written before");
    refused(link(&file), Errno::EXIST);
    std::fs::remove_file(place.path("a")).unwrap();
    refused(link(&file), Errno::NOENT);
    // `O_EXCL` with `O_TMPFILE` forbids linking the file.
    refused(link(&make(OFlags::EXCL)), Errno::NOENT);
    drop(make(OFlags::empty()));
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
}

fn a_read_only_file_can_be_created_and_written_through_its_first_descriptor(place: &Place) {
    let path = place.path("a");
    let file = open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, 0o000).unwrap();
    assert_eq!(rustix::io::write(&file, b"written").unwrap(), 7);
    assert_eq!(stat(&path).st_size, 7);
    assert_eq!(stat(&path).st_mode & 0o7777, 0);
}
