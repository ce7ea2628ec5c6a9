//! Programs whose output can't be written: servers keep serving, commands end quietly.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::mount;
use rackpool_tests::pool::{PAGE, TestPool};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// An output to which nothing can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowhere {
    /// A device that is always full.
    Full,
    /// A pipe whose reader has ended.
    ReaderGone,
    /// A full pipe whose reader does not read.
    ReaderStands,
}

const ALL: [Nowhere; 3] = [Nowhere::Full, Nowhere::ReaderGone, Nowhere::ReaderStands];

/// The writing end, and the reader, which must be kept for as long as it is to block writers.
fn nowhere(kind: Nowhere) -> (Stdio, Option<PipeReader>) {
    if kind == Nowhere::Full {
        return (File::options().write(true).open("/dev/full").unwrap().into(), None);
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    if kind == Nowhere::ReaderGone {
        return (writer.into(), None);
    }
    fcntl_setpipe_size(&writer, 4096).unwrap();
    let mut filled = File::from(writer.try_clone().unwrap());
    while filled.write(&[b'x'; 512]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (writer.into(), Some(reader.into()))
}

/// A server without a writable output; killed when dropped.
struct Server {
    process: Child,
    _readers: [Option<PipeReader>; 2],
}

impl Server {
    fn start(name: &str, kind: Nowhere, arguments: &[&str]) -> Self {
        let ((output, first), (complaints, second)) = (nowhere(kind), nowhere(kind));
        let process = Command::new(program(name))
            .args(arguments)
            .env("RUST_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(complaints)
            .spawn()
            .unwrap();
        Self { process, _readers: [first, second] }
    }

    #[track_caller]
    fn lives(&mut self) {
        assert_eq!(self.process.try_wait().unwrap(), None, "it has ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A currently unused port.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The number of lines that the program with metrics at this port could not write.
fn lost_lines(port: u16) -> f64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("rackpool_log_lines_lost_total "));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// A pool of one rack whose metadata server and daemon have no writable output.
struct Pool1 {
    folder: tempfile::TempDir,
    metadata: Server,
    daemon: Server,
    metrics: u16,
}

impl Pool1 {
    fn start(kind: Nowhere) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let metadata = Self::metadata(kind, folder.path(), "127.0.0.1:0");
        let address = wait_for("the metadata server listens", TIMEOUT, || {
            std::fs::read_to_string(at("metadata.addr")).ok().filter(|text| text.ends_with('\n'))
        });
        let metrics = free_port();
        let daemon = Server::start(
            "rackpool-daemon",
            kind,
            &[
                "--rack=0",
                "--memory=16M",
                &format!("--page-size={PAGE}"),
                "--nice=0",
                "--dir",
                folder.path().to_str().unwrap(),
                "--metadata",
                address.trim(),
                "--metrics",
                &format!("127.0.0.1:{metrics}"),
            ],
        );
        Self { folder, metadata, daemon, metrics }
    }

    fn metadata(kind: Nowhere, folder: &Path, listen: &str) -> Server {
        let at = |name: &str| folder.join(name).display().to_string();
        let arguments = [
            "--listen",
            listen,
            "--store",
            &at("metadata.redb"),
            "--address-file",
            &at("metadata.addr"),
        ];
        Server::start("rackpool-metaserver", kind, &arguments)
    }

    fn address(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("metadata.addr")).unwrap();
        text.trim().to_owned()
    }

    fn open(&self) -> Pool {
        let options = ClientOptions::new(self.folder.path(), RackId(0));
        wait_for("the daemon serves", TIMEOUT, || Pool::open(options.clone()).ok())
    }
}

/// Sends garbage as unauthenticated peers, about which a server logs warnings.
fn complain(address: &str) {
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(&[0xff; 64]);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.read(&mut [0; 64]);
    }
}

fn servers_serve_on(kind: Nowhere) {
    let mut pool = Pool1::start(kind);
    let client = pool.open();
    let addr = client.alloc(1000).unwrap();
    contents::write(&client, addr, 1000);
    let address = pool.address();
    complain(&address);
    pool.metadata.lives();
    // The daemon warns when the metadata server becomes unavailable, and logs its return.
    pool.metadata.process.kill().unwrap();
    pool.metadata.process.wait().unwrap();
    wait_until("the daemon misses it", TIMEOUT, || client.root("x").is_err());
    pool.metadata = Pool1::metadata(kind, pool.folder.path(), &address);
    wait_for("roots can be set again", TIMEOUT, || client.set_root("x", None, Some(addr)).ok());
    contents::check(&client, addr, 1000);
    pool.daemon.lives();
    pool.metadata.lives();
    if kind != Nowhere::ReaderStands {
        assert!(lost_lines(pool.metrics) > 2.0);
    }

    let socket = pool.folder.path().join("kv.sock");
    let dir = pool.folder.path().to_str().unwrap().to_owned();
    let arguments = ["--dir", &dir, "--unix", socket.to_str().unwrap()];
    let mut service = Server::start("rackpool-kv", kind, &arguments);
    let mut wire = wait_for("the service listens", TIMEOUT, || UnixStream::connect(&socket).ok());
    wire.set_read_timeout(Some(TIMEOUT)).unwrap();
    wire.write_all(b"SET a 1\r\nGET a\r\n").unwrap();
    let mut answers = [0; 12];
    wire.read_exact(&mut answers).unwrap();
    assert_eq!(&answers, b"+OK\r\n$1\r\n1\r\n");
    service.lives();
}

#[test]
fn servers_serve_on_when_the_disk_of_their_log_is_full() {
    servers_serve_on(Nowhere::Full);
}

#[test]
fn servers_serve_on_when_the_reader_of_their_log_has_gone() {
    servers_serve_on(Nowhere::ReaderGone);
}

#[test]
fn servers_serve_on_when_the_reader_of_their_log_stands_still() {
    servers_serve_on(Nowhere::ReaderStands);
}

#[test]
fn a_mount_serves_on_when_its_log_can_not_be_written() {
    if let Some(reason) = mount::why_not() {
        return skipped(reason);
    }
    let pool = TestPool::small();
    for kind in ALL {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().to_str().unwrap();
        let dir = pool.dir().display().to_string();
        let mut served = Server::start("rackpool-fuse", kind, &[point, "--dir", &dir]);
        wait_until("it is mounted", TIMEOUT, || {
            std::fs::read_to_string("/proc/mounts").unwrap().contains(point)
        });
        std::fs::write(folder.path().join("file"), [7; 5000]).unwrap();
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), [7; 5000], "{kind:?}");
        served.lives();
        // Busy for an instant while another test starts a process, which holds the test's files
        // until its exec.
        wait_until("it is unmounted", TIMEOUT, || nix::mount::umount(folder.path()).is_ok());
        wait_until("its process ends", TIMEOUT, || {
            served.process.try_wait().unwrap().is_some_and(|status| status.success())
        });
    }
}

/// Runs a command with this output to its end; returns its exit status and error output.
#[track_caller]
fn ran(arguments: &[&str], output: Stdio) -> (Option<i32>, String) {
    let complaints = tempfile::tempfile().unwrap();
    let mut process = Command::new(program("rackpool"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(complaints.try_clone().unwrap())
        .spawn()
        .unwrap();
    let status = wait_for("the command ends", 3 * TIMEOUT, || process.try_wait().unwrap());
    let mut text = String::new();
    io::Seek::rewind(&mut &complaints).unwrap();
    (&complaints).read_to_string(&mut text).unwrap();
    (status.code(), text)
}

#[test]
fn commands_whose_reader_has_gone_end_quietly_and_a_full_disk_is_an_error() {
    let pool = TestPool::start(64 << 20, 512 << 10);
    let client = pool.open(0);
    let addr = client.alloc(100).unwrap().to_string();
    let dir = pool.dir().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (trace, keys, more_keys) = (at("trace"), at("keys"), at("more-keys"));
    let small = ["-w", "a", "-r", "100", "--ops", "100", "--threads", "1", "--quiet"];
    let ycsb = [&["ycsb", "--dir", dir, "--record", &trace][..], &small].concat();
    let commands = |keys| {
        vec![
            ycsb.clone(),
            vec!["status", "--dir", dir],
            vec!["top", "--once", "--interval", "0.1", "--dir", dir],
            vec!["explain", "--dir", dir, &addr],
            vec!["doctor", "--quick", "--dir", dir],
            vec!["heat", "replay", &trace],
            vec!["credentials", "init", keys],
        ]
    };
    // The trace is recorded before it is read: a command that fails to print has still done its
    // work.
    for command in commands(keys.as_str()) {
        let ended = ran(&command, nowhere(Nowhere::ReaderGone).0);
        assert_eq!(ended, (Some(0), String::new()), "{command:?}");
    }
    assert!(PathBuf::from(&keys).join("rack-1").exists());
    for command in commands(more_keys.as_str()) {
        let (status, complaints) = ran(&command, nowhere(Nowhere::Full).0);
        let said = "rackpool: can't write to standard output: No space left on device";
        assert!(complaints.starts_with(said), "{command:?}: {complaints}");
        assert_eq!((status, complaints.lines().count()), (Some(1), 1), "{command:?}: {complaints}");
    }
}

/// Kills a running `up` and removes its folders.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn blocks_sigterm(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & (1 << 14) != 0)
}

#[test]
fn a_pool_stays_up_when_nobody_reads_what_up_says() {
    for kind in ALL {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let ((output, _first), (complaints, _second)) = (nowhere(kind), nowhere(kind));
        let arguments = [
            "up",
            "--racks=1",
            "--memory=16M",
            "--dir",
            &at("pool"),
            "--store",
            &at("metadata.redb"),
        ];
        let process = Command::new(program("rackpool"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(complaints)
            .spawn()
            .unwrap();
        let mut up = Up(process);
        let options = ClientOptions::new(folder.path().join("pool"), RackId(0));
        let client = wait_for("it is up", TIMEOUT, || Pool::open(options.clone()).ok());
        client.alloc(100).unwrap();
        drop(client);
        // It handles signals once everything is started.
        wait_until("it waits for signals", TIMEOUT, || blocks_sigterm(up.0.id()));
        let id = nix::unistd::Pid::from_raw(up.0.id().try_into().unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
        let status = wait_for("it stops", 2 * TIMEOUT, || up.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{kind:?}");
    }
}
