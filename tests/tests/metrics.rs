//! Metrics for Prometheus: formats, help texts, the list in docs/operating.md, and `/healthz`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::mount;
use rackpool_tests::pool::PAGE;
use tempfile::TempDir;

/// A server with metrics; killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(name: &str, arguments: &[&str]) -> Self {
        // A currently unused port.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let process = Command::new(program(name))
            .args(arguments)
            .args(["--metrics", &format!("127.0.0.1:{port}"), "--stop-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, port }
    }

    fn try_ask(&self, path: &str, accept: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// An answer: its status and headers, and its body.
    fn ask(&self, path: &str, accept: &str) -> (String, String) {
        let answer = wait_for("it serves metrics", TIMEOUT, || self.try_ask(path, accept).ok());
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), text.to_owned())
    }

    fn metrics(&self) -> String {
        self.ask("/metrics", "*/*").1
    }

    /// The value of the metric with this name and these labels.
    #[track_caller]
    fn counter(&self, name: &str) -> f64 {
        let text = self.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    fn is_well(&self) -> bool {
        self.ask("/healthz", "*/*").0.starts_with("HTTP/1.1 200 ")
    }

    /// Ends the server in the regular way.
    fn end(mut self) {
        drop(self.process.stdin.take());
        wait_until("it ends", TIMEOUT, || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A pool of two racks with credentials.
struct Pool {
    folder: TempDir,
    address: String,
    metadata: Server,
    daemons: Vec<Server>,
}

impl Pool {
    fn start() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let keys = folder.path().join("keys").display().to_string();
        let made = Command::new(program("rackpool"))
            .args(["credentials", "init", &keys, "--days", "20"])
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success());
        let metadata = Self::metadata(folder.path(), "127.0.0.1:0");
        let file = folder.path().join("metadata.addr");
        let address = wait_for("the metadata server listens", TIMEOUT, || {
            std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n'))
        });
        let mut pool =
            Self { folder, address: address.trim().to_owned(), metadata, daemons: Vec::new() };
        for rack in 0..2 {
            pool.daemons.push(pool.daemon(rack));
        }
        wait_until("both racks are there", TIMEOUT, || pool.daemons.iter().all(Server::is_well));
        pool
    }

    fn metadata(folder: &Path, listen: &str) -> Server {
        let at = |name: &str| folder.join(name).display().to_string();
        Server::start(
            "rackpool-metaserver",
            &[
                "--listen",
                listen,
                "--store",
                &at("metadata.redb"),
                "--address-file",
                &at("metadata.addr"),
                "--credentials",
                &at("keys/metadata"),
            ],
        )
    }

    fn daemon(&self, rack: u16) -> Server {
        let keys = self.folder.path().join(format!("keys/rack-{rack}")).display().to_string();
        Server::start(
            "rackpool-daemon",
            &[
                &format!("--rack={rack}"),
                "--memory=16M",
                &format!("--page-size={PAGE}"),
                "--nice=0",
                "--dir",
                self.folder.path().to_str().unwrap(),
                "--metadata",
                &self.address,
                "--credentials",
                &keys,
            ],
        )
    }

    fn dir(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    fn service(&self) -> Server {
        let socket = self.folder.path().join("kv.sock");
        let arguments = ["--dir", self.dir(), "--unix", socket.to_str().unwrap()];
        let service = Server::start("rackpool-kv", &arguments);
        wait_for("it serves", TIMEOUT, || UnixStream::connect(&socket).ok());
        service
    }

    /// Mounts the volume at this folder; `None` where mounting is impossible.
    fn mount(&self, at: &Path) -> Option<Server> {
        if let Some(reason) = mount::why_not() {
            skipped(reason);
            return None;
        }
        Some(Server::start("rackpool-fuse", &[at.to_str().unwrap(), "--dir", self.dir()]))
    }
}

/// The names of all metrics of a text, without the suffixes of histogram samples.
fn names(text: &str) -> BTreeSet<String> {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    kinds.map(|line| line.split_once(' ').unwrap().0.to_owned()).collect()
}

/// The names in the table of docs/operating.md.
fn documented() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split_once('`')).map(|(name, _)| name);
    let name = |name: &str| name.split('{').next().unwrap_or(name).to_owned();
    names
        .filter(|name| name.starts_with("rackpool_") || name.starts_with("process_"))
        .map(name)
        .collect()
}

/// The result of promtool's check; `None` where it is not installed.
fn is_approved(text: &str) -> Option<Result<(), String>> {
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let is_good = output.status.success() && said.is_empty();
    Some(if is_good { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) })
}

#[test]
fn every_metric_of_every_server_is_described_and_documented() {
    let pool = Pool::start();
    let folder = tempfile::tempdir().unwrap();
    let mount = pool.mount(folder.path());
    let service = pool.service();
    let servers = [&pool.metadata, &pool.daemons[0], &service];
    let mut found = BTreeSet::new();
    for server in servers.into_iter().chain(&mount) {
        let (head, text) = server.ask("/metrics", "text/plain;version=0.0.4");
        assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4;"), "{head}");
        for name in names(&text) {
            assert!(text.contains(&format!("# HELP {name} ")), "{name} is not described");
            found.insert(name);
        }
        for sample in text.lines().filter(|line| !line.starts_with('#')) {
            let name = sample.split(['{', ' ']).next().unwrap();
            let ends = ["", "_bucket", "_sum", "_count"];
            let is_known = |end| name.strip_suffix(end).is_some_and(|name| found.contains(name));
            assert!(ends.into_iter().any(is_known), "{sample} has no type");
        }
        match is_approved(&text) {
            Some(approved) => assert_eq!(approved, Ok(())),
            None => skipped("promtool is not installed: apt-get install prometheus"),
        }
        let (head, text) = server.ask("/metrics", "application/openmetrics-text; version=1.0.0");
        assert!(head.contains("\r\nContent-Type: application/openmetrics-text;"), "{head}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
    let documented = documented();
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/operating.md: {missing:?}");
    let has_ended: Vec<_> = documented.difference(&found).collect();
    let only_of_mounts = has_ended.iter().all(|name| name.starts_with("rackpool_mount_"));
    assert!(has_ended.is_empty() || mount.is_none() && only_of_mounts, "no metrics: {has_ended:?}");
}

#[test]
fn a_process_tells_what_it_is_and_when_its_certificate_expires() {
    let pool = Pool::start();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let in_days = |seconds: f64| (seconds - now.as_secs_f64()) / 86_400.0;
    for server in [&pool.metadata, &pool.daemons[1]] {
        let days = in_days(server.counter("rackpool_certificate_expiry_timestamp_seconds"));
        assert!((19.0..=20.1).contains(&days), "{days}");
        let age = -86_400.0 * in_days(server.counter("process_start_time_seconds"));
        assert!((-1.0..600.0).contains(&age), "{age}");
        assert!(server.counter("process_cpu_seconds_total") > 0.0);
        assert!(server.counter("process_resident_memory_bytes") > 100_000.0);
        let open = server.counter("process_open_fds");
        assert!(open > 3.0 && open < server.counter("process_max_fds"), "{open}");
        assert_eq!(server.counter("rackpool_log_lines_lost_total"), 0.0);
        let text = server.metrics();
        let build = text.lines().find(|line| line.starts_with("rackpool_build_info{")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            build.starts_with(&format!("rackpool_build_info{{version=\"{version}\",commit=\""))
        );
        assert!(!build.contains("commit=\"\"") && build.ends_with("\"} 1"), "{build}");
    }
}

#[test]
fn health_and_racks_follow_what_happens() {
    let mut pool = Pool::start();
    let service = pool.service();
    let up =
        |pool: &Pool, rack| pool.metadata.counter(&format!("rackpool_rack_up{{rack=\"{rack}\"}}"));
    assert_eq!([0, 1].map(|rack| up(&pool, rack)), [1.0, 1.0]);
    assert!(pool.metadata.is_well() && service.is_well());

    // A killed rack is down.
    drop(pool.daemons.remove(1));
    wait_until("its lease runs out", TIMEOUT, || up(&pool, 1) == 0.0);
    assert_eq!(pool.metadata.counter("rackpool_racks_left"), 0.0);
    // A rack that ended regularly does not count as missing.
    let again = pool.daemon(1);
    wait_until("it is back", TIMEOUT, || again.is_well() && up(&pool, 1) == 1.0);
    again.end();
    wait_until("it has left", TIMEOUT, || pool.metadata.counter("rackpool_racks_left") == 1.0);
    assert!(!pool.metadata.metrics().contains("rackpool_rack_up{rack=\"1\"}"));

    // Without a metadata server a daemon is unhealthy.
    drop(pool.metadata);
    let daemon = &pool.daemons[0];
    wait_until("it notices", TIMEOUT, || !daemon.is_well());
    let (head, reason) = daemon.ask("/healthz", "*/*");
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(reason.contains("the metadata server is away"), "{reason}");
    assert_eq!(daemon.counter("rackpool_member"), 0.0);

    // Without a daemon a service is unhealthy.
    drop(pool.daemons);
    wait_until("it notices", TIMEOUT, || !service.is_well());
}
