//! A pool belongs to one user of its host, whatever other users do there.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_tests::client::program;
use rackpool_tests::skip::skipped;
use rackpool_tests::wait::{PATIENCE, wait_until};
use tempfile::TempDir;

const STRANGER: u32 = 65534;

/// A folder in memory where everybody may make folders, as in `/dev/shm` itself.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    folder
}

/// What a command that fails says.
#[track_caller]
fn complaint(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} goes on: {said}");
    said
}

#[test]
fn a_folder_that_another_user_has_made_is_not_used() {
    let folder = open_folder();
    let dir = folder.path().join("pool");
    for made in [dir.clone(), dir.join("rack-0")] {
        fs::create_dir(&made).unwrap();
        if chown(&made, Some(STRANGER), Some(STRANGER)).is_err() {
            skipped("only root can make a folder of another user");
            return;
        }
    }
    let (own, link) = (folder.path().join("own"), folder.path().join("link"));
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let (store, own_store) = (dir.join("metadata.redb"), own.join("metadata.redb"));
    for dir in [&dir, &link] {
        let of_dir = |name: &str, arguments: &[&str]| {
            let mut command = Command::new(program(name));
            command.args(arguments).arg("--dir").arg(dir);
            command
        };
        let daemon = ["--rack", "0", "--metadata", "127.0.0.1:9", "--memory", "64M"];
        let mut commands = [
            of_dir("rackpool-daemon", &daemon),
            of_dir("rackpool-kv", &["--rack", "0", "--listen", "127.0.0.1:0"]),
            of_dir("rackpool-fuse", &[folder.path().to_str().unwrap(), "--rack", "0"]),
            of_dir("rackpool", &["up", "--store", own_store.to_str().unwrap()]),
            of_dir("rackpool", &["status"]),
        ];
        for command in &mut commands {
            let said = complaint(command);
            assert!(said.contains("pool belongs to user 65534"), "{command:?}: {said}");
            assert!(said.contains("name another folder"), "{command:?}: {said}");
        }
        let error = Pool::open(ClientOptions::new(dir, RackId(0))).unwrap_err().to_string();
        assert!(error.contains("pool belongs to user 65534"), "{error}");
    }
    let mut server = Command::new(program("rackpool-metaserver"));
    let said = complaint(server.args(["--listen", "127.0.0.1:0", "--store"]).arg(&store));
    assert!(said.contains("pool belongs to user 65534"), "{said}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing was made there");
}

/// A process that is stopped when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let id = i32::try_from(self.0.id()).unwrap();
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Starts a program that makes files for everybody, as far as it leaves that to its umask.
fn without_umask(name: &str, arguments: &[&str]) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(program(name)).args(arguments);
    Running(shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// All that lies in a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let mut found = if path.is_dir() { below(&path) } else { Vec::new() };
            found.push(path);
            found
        })
        .collect()
}

#[test]
fn files_and_sockets_are_for_their_user_alone_whatever_the_umask_is() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (dir, store, socket) = (at("pool"), at("state/metadata.redb"), at("kv.sock"));
    let up = ["up", "--dir", &dir, "--store", &store, "--racks", "1", "--memory", "64M"];
    let _up = without_umask("rackpool", &up);
    let daemon = Path::new(&dir).join("rack-0/daemon.sock");
    wait_until("the daemon listens", PATIENCE, || daemon.exists());
    let service = ["--dir", &dir, "--rack", "0", "--unix", &socket];
    let _service = without_umask("rackpool-kv", &service);
    wait_until("the service listens", PATIENCE, || Path::new(&socket).exists());
    let (mut sockets, mut names) = (0, Vec::new());
    for path in below(folder.path()) {
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let mode = found.permissions().mode() & 0o777;
        sockets += usize::from(found.file_type().is_socket());
        names.extend(path.file_name().map(std::ffi::OsStr::to_owned));
        let allowed = if path.ends_with("metadata.addr") { 0o644 } else { 0o700 };
        assert_eq!(mode & !allowed, 0, "{} has mode {mode:o}", path.display());
    }
    assert_eq!(sockets, 3, "of the daemon, its fabric and the service: {names:?}");
    for name in ["lock", "metadata.addr", "metadata.redb", "metadata.log", "rack-0.log", "frames"] {
        assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
    }
}
