//! Folders whose names are not UTF-8 work, or are refused where they are given.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_testing::skipped;
use rackpool_tests::client::program;
use rackpool_tests::mount;
use rackpool_tests::pool::TestPool;

fn odd() -> &'static Path {
    Path::new(OsStr::from_bytes(b"no \xff text"))
}

#[track_caller]
fn refused(status: i32, command: &mut Command, reason: &str) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(reason), "'{reason}' is not in: {said}");
}

#[test]
fn a_pools_folder_that_is_no_text_is_refused_and_not_made() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (dir, link) = (folder.path().join(odd()), folder.path().join("link"));
    let store = folder.path().join("metadata.redb");
    let up = |dir: &Path| {
        let mut command = Command::new(program("rackpool"));
        command.arg("up").arg("--dir").arg(dir).arg("--store").arg(&store);
        command
    };
    let daemon = |dir: &Path| {
        let mut command = Command::new(program("rackpool-daemon"));
        command.args(["--rack", "0", "--metadata", "127.0.0.1:9"]).arg("--dir").arg(dir);
        command
    };
    let reason = "is not UTF-8, and other processes are told it as text: name another folder";
    refused(2, &mut up(&dir), reason);
    refused(2, &mut daemon(&dir), reason);
    assert!(!dir.exists(), "nothing is made");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    refused(1, &mut up(&link), reason);
    refused(1, &mut daemon(&link), reason);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing is made");
}

/// A process that has printed its first line; ended when this is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, until: &str) -> Self {
        let mut process =
            Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains(until) {
            assert!(output.read_line(&mut said).unwrap() > 0, "it ended: {said}");
        }
        // Keeps reading, so that the process can write until its end.
        std::thread::spawn(move || output.lines().count());
        process
    }

    fn end(&mut self) {
        let id = i32::try_from(self.0.id()).unwrap();
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_store_whose_folder_is_no_text_serves() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = folder.path().join(odd()).join("metadata.redb");
    let mut up = Command::new(program("rackpool"));
    up.args(["up", "--racks", "1", "--memory", "64M", "--dir"]).arg(folder.path().join("pool"));
    let _up = Running::start(up.arg("--store").arg(&store), "stop with Ctrl-C");
    assert!(store.exists() && store.with_extension("logs").join("metadata.log").exists());
}

#[test]
fn a_mount_point_that_is_no_text_is_mounted_at_once_and_found_there() {
    if let Some(why) = mount::why_not() {
        return skipped(why);
    }
    let (pool, folder) = (TestPool::small(), tempfile::tempdir().unwrap());
    let point = folder.path().join(odd());
    fs::create_dir(&point).unwrap();
    let fuse = || {
        let mut command = Command::new(program("rackpool-fuse"));
        command.arg(&point).arg("--dir").arg(pool.dir()).args(["--rack", "0"]);
        command
    };
    let mut mounted = Running::start(&mut fuse(), "\n");
    fs::write(point.join(odd()), "contents").unwrap();
    assert_eq!(fs::read(point.join(odd())).unwrap(), b"contents");
    // Should it mount all the same, it ends with its input.
    refused(1, fuse().arg("--stop-with-stdin"), "is mounted already");
    mounted.end();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "it is unmounted");
}
