//! A pool belongs to one user of its host, whatever other users do there.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, setfsuid};
use rackpool_admin::MetadataServer;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::Service;
use tempfile::TempDir;

const OTHER_USER: u32 = 65534;

/// A folder in memory in which every user may create folders, as in `/dev/shm` itself.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
    folder
}

/// The error output of a command that must fail.
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
        if chown(&made, Some(OTHER_USER), Some(OTHER_USER)).is_err() {
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

/// Starts a program with a umask of 0, so that its files are open to everybody unless it restricts
/// them itself.
fn without_umask(name: &str, arguments: &[&str]) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(program(name)).args(arguments);
    Running(shell.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// All paths below a folder.
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
    wait_until("the daemon listens", TIMEOUT, || daemon.exists());
    let service = ["--dir", &dir, "--rack", "0", "--unix", &socket];
    let _service = without_umask("rackpool-kv", &service);
    wait_until("the service listens", TIMEOUT, || Path::new(&socket).exists());
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

/// Runs `act` in a thread whose sockets belong to another user; `None` where that is impossible.
fn as_other_user<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    if !Uid::effective().is_root() {
        skipped("only root can act as another user");
        return None;
    }
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            setfsuid(Uid::from_raw(OTHER_USER));
            act()
        });
        Some(acting.join().unwrap())
    })
}

/// The answer of a service at this port to `PING`, or a refusal before it.
fn ping(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // The connection may have been refused already.
    let _ = stream.write_all(b"PING\r\n");
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line.trim_end().to_owned()
}

/// A port that was unused an instant ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_service_without_a_password_serves_its_own_user_alone() {
    let pool = TestPool::small();
    let listen = ["--listen", "127.0.0.1:0"];
    let service = |options: &[&str]| Service::start(&pool, 0, &[&listen, options].concat());
    let closed = service(&[]);
    let port = closed.port();
    assert_eq!(ping(port), "+PONG");
    let Some(said) = as_other_user(|| ping(port)) else { return };
    assert!(said.starts_with("-DENIED"), "{said}");
    assert!(said.contains("--password-file") && said.contains("user 65534"), "{said}");
    assert_eq!(ping(port), "+PONG", "the others are served on");
    drop(closed);
    let open = service(&["--any-user"]);
    let port = open.port();
    assert_eq!(as_other_user(|| ping(port)).unwrap(), "+PONG");
    drop(open);
    // With a password other users may use the port.
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let _with_password = Service::start(&pool, 0, &["--listen", &listen, "--password", "word"]);
    let said = as_other_user(|| ping(port)).unwrap();
    assert!(said.starts_with("-NOAUTH"), "{said}");
}

#[test]
fn a_daemon_of_another_user_is_not_let_into_the_pool() {
    let pool = TestPool::small();
    let folder = open_folder();
    let daemon = |dir: &Path| {
        let mut command = Command::new(program("rackpool-daemon"));
        command.uid(OTHER_USER).gid(OTHER_USER).arg("--dir").arg(dir);
        command.args(["--rack", "7", "--memory", "16M", "--page-size", "64K"]);
        command.args(["--metadata", pool.cluster.metadata_address(), "--fabric", "tcp"]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let version = daemon(folder.path()).arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return skipped("only root can start programs of another user, if that one may read them");
    }
    let process = daemon(&folder.path().join("theirs")).spawn().unwrap();
    let mut process = Running(process);
    let mut said = String::new();
    let mut log = BufReader::new(process.0.stderr.take().unwrap());
    while !said.contains("belongs to user") {
        assert!(log.read_line(&mut said).unwrap() > 0, "it ended without that: {said}");
    }
    assert!(said.contains("rackpool credentials init"), "{said}");
    let members = MetadataServer::at(pool.cluster.metadata_address()).status().unwrap().members;
    assert!(members.iter().all(|member| member.rack != RackId(7)), "{members:?}");
}
