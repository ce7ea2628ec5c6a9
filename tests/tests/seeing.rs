//! What operators see of a pool: live metrics, a page's history, metrics for Prometheus, thresholds
//! tried on a recorded trace, and those of the requests between racks.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_model::{FabricKind, PageId, PageSize};
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, try_wait_for, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::mount;
use rackpool_tests::pool::{PAGE, TestPool};

const SIZE: u64 = 1000;

/// The output of a command, which must succeed.
#[track_caller]
fn said(arguments: &[&str]) -> String {
    let command = Command::new(program("rackpool")).args(arguments).stdin(Stdio::null()).output();
    let output = command.unwrap();
    let [said, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    said
}

/// The error output of a command, which must fail.
#[track_caller]
fn complained(arguments: &[&str]) -> String {
    let command = Command::new(program("rackpool")).args(arguments).stdin(Stdio::null()).output();
    let output = command.unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Two racks in which a page moves as soon as it is used remotely; they serve metrics.
fn restless() -> TestPool {
    let pool = TestPool::with(|options| {
        options.daemon_arguments = vec![
            ("--hot", "1.5".into()),
            ("--rest-ms", "0".into()),
            ("--swap-pause-ms", "1".into()),
            ("--share", "off".into()),
            ("--metrics", "127.0.0.1:0".into()),
        ];
    });
    pool.wait_until_racks_meet();
    pool
}

fn page_of(addr: GlobalAddr) -> PageId {
    addr.page(PageSize::from_bytes(PAGE).unwrap()).unwrap()
}

/// Uses an object of another rack until it is in this one.
fn attract(rack: &Pool, addr: GlobalAddr) {
    wait_until("the page comes", TIMEOUT, || {
        contents::write(rack, addr, SIZE);
        contents::check(rack, addr, SIZE);
        rack.is_local(addr).unwrap()
    });
}

#[test]
fn a_page_that_moved_tells_where_it_lived_and_how_hot_it_was() {
    let pool = restless();
    let dir = pool.dir().display().to_string();
    let (home, user) = (pool.open(0), pool.open(1));
    let addr = home.alloc(SIZE).unwrap();
    contents::write(&home, addr, SIZE);
    let page = page_of(addr).0.to_string();
    let before = said(&["explain", "--dir", &dir, &page]);
    assert!(before.contains("born in   rack 0"), "{before}");
    assert!(before.contains("lives in  rack 0, it never moved"), "{before}");

    attract(&user, addr);
    let after = said(&["explain", "--dir", &dir, &addr.to_string()]);
    assert!(after.starts_with(&format!("page {page} of {PAGE} B\n")), "{after}");
    assert!(after.contains("lives in  rack 1, where swap"), "{after}");
    for told in [
        "rack 1   asks for it and offers page",
        "rack 0   agrees to give it to rack 1: hotness ",
        "rack 1   it came",
        "rack 0   it went",
    ] {
        assert!(after.contains(told), "{told}\n{after}");
    }
    assert!(complained(&["explain", "--dir", &dir, "4000000000"]).contains("no page 4000000000"));
    assert!(complained(&["explain", "--dir", &dir, "0x1"]).contains("0x1 is not an address"));
}

#[test]
fn a_page_in_which_nothing_is_allocated_lives_nowhere() {
    let pool = TestPool::small();
    let dir = pool.dir().display().to_string();
    let home = pool.open(0);
    // Page ids are assigned in runs; an object takes one page of its rack's run.
    let used = page_of(home.alloc(SIZE).unwrap()).0;
    let free = (1..=512).find(|page| {
        let said = said(&["explain", "--dir", &dir, &page.to_string()]);
        said.contains("born in   rack 0") && *page != used
    });
    let said_of = |page: u32| said(&["explain", "--dir", &dir, &page.to_string()]);
    let text = said_of(free.unwrap());
    assert!(
        text.contains("lives in  nowhere: nothing is allocated in it; its frame in rack 0 is free"),
        "{text}"
    );
    let text = said_of(used);
    assert!(text.contains("lives in  rack 0, it never moved"), "{text}");
}

#[test]
fn a_rack_that_ended_on_purpose_has_left_and_is_not_down() {
    let mut pool = TestPool::small();
    let dir = pool.dir().display().to_string();
    let daemon = pool.cluster.daemon(RackId(1)).unwrap();
    daemon.signal(Signal::SIGTERM).unwrap();
    daemon.wait().unwrap();
    let shows_left = || {
        let status = said(&["status", "--dir", &dir]);
        status.contains("\n1      left   its daemon was stopped\n")
    };
    wait_until("status says so", TIMEOUT, shows_left);
    let top = said(&["top", "--once", "--dir", &dir, "--interval", "0.1"]);
    assert!(top.starts_with("rackpool, 1 of 1 racks up, 1 left, pages of"), "{top}");
    assert!(top.contains("left: its daemon was stopped"), "{top}");
    // The store keeps it.
    pool.cluster.metadata().kill().unwrap();
    pool.cluster.restart_metadata().unwrap();
    wait_until("status says so again", TIMEOUT, shows_left);
    pool.restart_daemon(1);
    wait_until("it is up", TIMEOUT, || !said(&["status", "--dir", &dir]).contains(" left "));
}

/// A terminal of this size with a program on it; killed when dropped.
struct Terminal {
    process: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(columns: u16, arguments: &[&str], plain: bool) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let both = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(both.slave.try_clone().unwrap());
        let mut command = Command::new(program("rackpool"));
        command.args(arguments).stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm");
        command.env_remove("NO_COLOR");
        if plain {
            command.env("NO_COLOR", "1");
        }
        let process = command.spawn().unwrap();
        drop((command, both.slave));
        let keys = File::from(both.master);
        let (mut output, shown) = (keys.try_clone().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let written = Arc::clone(&shown);
        // The thread ends with the program, which holds the other end.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                written.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { process, keys, shown }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, TIMEOUT, || self.shown().contains(text));
    }

    /// The last full redraw of the screen, without escape sequences.
    fn picture(&self) -> Vec<String> {
        let shown = self.shown();
        let last = shown.rsplit("\u{1b}[H").find(|picture| picture.contains("\u{1b}[J")).unwrap();
        let plain = last.split("\u{1b}[").enumerate().map(|(index, part)| match index {
            0 => part,
            _ => part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap(),
        });
        plain.collect::<String>().lines().map(|line| line.trim_end().to_owned()).collect()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn top_takes_keys_and_fits_the_terminal() {
    let pool = TestPool::small();
    let dir = pool.dir().display().to_string();
    for (columns, has_frames) in [(40, false), (130, true)] {
        let mut top = Terminal::start(columns, &["top", "--dir", &dir, "--interval", "0.1"], false);
        top.wait_for("rackpool, 2 of 2 racks up");
        top.wait_for("\u{1b}[1mrack");
        let picture = top.picture();
        let widest = picture.iter().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns.into(), "{picture:?}");
        let heading = picture.iter().find(|line| line.starts_with("rack\u{2191}")).unwrap();
        assert_eq!(heading.contains("frames"), has_frames, "{heading}");
        // The next column, in descending order.
        top.keys.write_all(b"\x1b[C\x1b[B").unwrap();
        top.wait_for("frames\u{2193}");
        top.keys.write_all(b"q").unwrap();
        let status = wait_for("it ends", TIMEOUT, || top.process.try_wait().unwrap());
        assert!(status.success(), "{status}");
        wait_until("the screen before is back", TIMEOUT, || top.shown().ends_with("\u{1b}[?1049l"));
    }
    let top = Terminal::start(130, &["top", "--dir", &dir, "--interval", "0.1"], true);
    top.wait_for("hottest");
    assert!(!top.shown().contains("\u{1b}[1m"), "{}", top.shown());
}

#[test]
fn json_is_what_the_design_says() {
    let pool = restless();
    let dir = pool.dir().display().to_string();
    let (home, user) = (pool.open(0), pool.open(1));
    let addr = home.alloc(SIZE).unwrap();
    contents::write(&home, addr, SIZE);
    attract(&user, addr);
    home.set_root("here", None, Some(addr)).unwrap();
    let parsed = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&said(&[arguments, &["--json", "--dir", &dir]].concat())).unwrap()
    };
    let status = parsed(&["status"]);
    assert_eq!(status["page_bytes"], PAGE);
    assert_eq!(status["roots"][0]["address"], addr.to_string());
    let racks = status["racks"].as_array().unwrap();
    assert_eq!(racks.len(), 2);
    for (number, rack) in racks.iter().enumerate() {
        assert_eq!((&rack["rack"], &rack["state"]), (&number.into(), &"up".into()), "{rack}");
        assert!(rack["metrics"]["pid"].as_u64().unwrap() > 0 && rack["reason"].is_null(), "{rack}");
    }
    assert_eq!(racks[1]["metrics"]["swaps"]["arrived"], 1);

    let top = parsed(&["top", "--once", "--interval", "0.1"]);
    assert!(top["time"].as_str().unwrap().ends_with('Z'), "{top}");
    assert_eq!(top["racks"][1]["metrics"]["pages_arrived"], 1, "{top}");
    assert_eq!(top["hottest"][0]["home"], 1, "{top}");
    let lines = said(&["top", "--once", "--interval", "0.1", "--json", "--dir", &dir]);
    assert_eq!(lines.lines().count(), 1, "{lines}");

    let page = page_of(addr).0.to_string();
    let report = parsed(&["explain", &page]);
    assert_eq!(
        (&report["state"], &report["born"], &report["home"]),
        (&"allocated".into(), &0.into(), &1.into())
    );
    assert!(report["moved"]["epoch"].is_u64() && report["swap_under_way"].is_null(), "{report}");
    let history = report["history"].as_array().unwrap();
    let came = history.iter().find(|note| note["text"] == "it came").unwrap();
    assert_eq!((&came["rack"], &came["times"]), (&1.into(), &1.into()));
    let again: BTreeSet<String> =
        history.iter().map(|note| format!("{}{}", note["rack"], note["text"])).collect();
    assert_eq!(again.len(), history.len(), "{report}");
}

#[test]
fn top_prints_once_where_nobody_looks() {
    let mut pool = restless();
    let dir = pool.dir().display().to_string();
    let (home, user) = (pool.open(0), pool.open(1));
    let addr = home.alloc(SIZE).unwrap();
    contents::write(&home, addr, SIZE);
    attract(&user, addr);
    let top = said(&["top", "--dir", &dir, "--interval", "0.1", "--pages", "3"]);
    assert!(top.starts_with("rackpool, 2 of 2 racks up, pages of 64 KiB"), "{top}");
    let swaps = top.split("\nswaps ").nth(1).unwrap();
    let came: Vec<&str> = swaps.lines().nth(2).unwrap().split_whitespace().take(3).collect();
    assert_eq!((came[0], came[2]), ("1", "1"), "{top}");
    let hottest = format!("\n{:<8}    1 ", page_of(addr).0);
    assert!(top.contains(&hottest), "{hottest:?}\n{top}");

    pool.kill_daemon(0);
    wait_until("the rack's lease runs out", TIMEOUT, || {
        let top = said(&["top", "--once", "--dir", &dir, "--interval", "0.1"]);
        top.starts_with("rackpool, 1 of 2 racks up") && top.contains("down: its lease has expired")
    });
}

/// The metrics that a daemon or the metadata server serves; its log names the address.
fn scrape(log: &Path) -> String {
    let address = wait_for("it says where its metrics are", TIMEOUT, || {
        let log = std::fs::read_to_string(log).ok()?;
        let rest = log.split("metrics at http://").nth(1)?;
        rest.split("/metrics").next().map(str::to_owned)
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    text
}

#[track_caller]
fn counter(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

#[test]
fn a_daemon_serves_metrics_that_grow_with_what_it_does() {
    let pool = restless();
    let (home, user) = (pool.open(0), pool.open(1));
    let addr = home.alloc(SIZE).unwrap();
    contents::write(&home, addr, SIZE);
    attract(&user, addr);
    let text = scrape(&pool.dir().join("rack-1.log"));
    assert_eq!(counter(&text, "rackpool_rack"), 1.0);
    assert!(counter(&text, "rackpool_remote_operations_total") > 0.0);
    assert_eq!(counter(&text, "rackpool_pages_moved_total{way=\"in\"}"), 1.0);
    assert!(counter(&text, "rackpool_swap_copied_bytes_total") >= 65536.0);
    // A writer outside a swap never waits; some swap delays a writer.
    wait_until("somebody waits to write a page that moves", TIMEOUT, || {
        attract(&home, addr);
        attract(&user, addr);
        let text = scrape(&pool.dir().join("rack-1.log"));
        let pauses = counter(&text, "rackpool_swap_pause_seconds_count");
        assert_eq!(counter(&text, "rackpool_swap_pause_seconds_bucket{le=\"+Inf\"}"), pauses);
        pauses > 0.0
    });
}

#[test]
fn what_a_benchmark_did_is_recorded_and_thresholds_are_tried_on_it() {
    let pool = TestPool::with(|options| {
        options.memory = 64 << 20;
        options.page_size = 512 << 10;
        options.daemon_arguments = vec![("--swap", "off".into())];
    });
    pool.wait_until_racks_meet();
    let dir = pool.dir().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace").display().to_string();
    let run = said(&[
        "ycsb",
        "--dir",
        &dir,
        "-w",
        "a",
        "-r",
        "500",
        "--ops",
        "2000",
        "--threads",
        "2",
        "--quiet",
        "--record",
        &trace,
    ]);
    assert!(run.contains("rackpool heat replay"), "{run}");
    let table = said(&["heat", "replay", &trace, "--hot", "3", "--sweep", "hot=1..3"]);
    for row in ["no swap ", "hot 1 ", "hot 2 ", "hot 3 "] {
        assert!(table.contains(&format!("\n{row}")), "{row}\n{table}");
    }
    let json = said(&["heat", "replay", &trace, "--json"]);
    assert_eq!(json.matches("\"local_share\"").count(), 2, "{json}");
    let cut = &std::fs::read(&trace).unwrap()[..100];
    std::fs::write(&trace, cut).unwrap();
    assert!(complained(&["heat", "replay", &trace]).contains("record it again"));
    assert!(complained(&["heat", "replay", "Cargo.toml"]).contains("--record"));
}

/// Starts a program in the pool with metrics and with its log in this file. The program ends with
/// its standard input, which the caller drops.
fn start(pool: &TestPool, name: &str, arguments: &[&str], log: &Path) -> Child {
    Command::new(program(name))
        .args(arguments)
        .args(["--dir", &pool.dir().display().to_string()])
        .args(["--metrics", "127.0.0.1:0", "--stop-with-stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(File::create(log).unwrap())
        .spawn()
        .unwrap()
}

fn end(mut process: Child) {
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
}

#[test]
fn the_service_serves_metrics_that_grow_with_what_it_does() {
    let pool = TestPool::small();
    let (log, socket) = (pool.dir().join("kv.log"), pool.dir().join("kv.sock"));
    let service = start(&pool, "rackpool-kv", &["--unix", socket.to_str().unwrap()], &log);
    let before = counter(&scrape(&log), "rackpool_kv_commands_total");
    let mut client = wait_for("it serves", TIMEOUT, || UnixStream::connect(&socket).ok());
    client.write_all(b"SET a 1\r\nGET a\r\nNONSENSE\r\n").unwrap();
    let mut answers = [0; 16];
    client.read_exact(&mut answers).unwrap();
    assert_eq!(&answers, b"+OK\r\n$1\r\n1\r\n-ERR");
    wait_until("all is counted", TIMEOUT, || {
        let text = scrape(&log);
        counter(&text, "rackpool_kv_commands_total") >= before + 2.0
            && counter(&text, "rackpool_kv_errors_total") == 1.0
            && counter(&text, "rackpool_kv_connections") == 1.0
    });
    end(service);
}

#[test]
fn a_mount_serves_metrics_that_grow_with_what_it_does() {
    if let Some(reason) = mount::why_not() {
        return skipped(reason);
    }
    let pool = TestPool::small();
    let folder = tempfile::tempdir().unwrap();
    let log = pool.dir().join("mount.log");
    let served = start(&pool, "rackpool-fuse", &[folder.path().to_str().unwrap()], &log);
    let count = |kind: &str| {
        counter(&scrape(&log), &format!("rackpool_mount_requests_total{{kind=\"{kind}\"}}"))
    };
    wait_until("it is mounted", TIMEOUT, || {
        std::fs::read_to_string("/proc/mounts").unwrap().contains(folder.path().to_str().unwrap())
    });
    let before = count("write");
    std::fs::write(folder.path().join("file"), [7; 5000]).unwrap();
    assert!(count("write") > before);
    assert_eq!(counter(&scrape(&log), "rackpool_mount_failures_total"), 0.0);
    end(served);
}

/// A rack, and the other rack to which it sends requests.
const PAIRS: [[u16; 2]; 2] = [[0, 1], [1, 0]];

/// The thresholds that `rackpool status` shows for the requests of one rack to another.
fn shown(pool: &TestPool, [rack, other]: [u16; 2]) -> Option<String> {
    let said = said(&["status", "--dir", &pool.dir().display().to_string()]);
    let start = format!("rack {rack}: to rack {other}: ");
    said.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
}

/// The measured thresholds that a rack's daemons have logged for requests to another rack.
fn measured(pool: &TestPool, [rack, other]: [u16; 2]) -> Vec<String> {
    let log = std::fs::read_to_string(pool.dir().join(format!("rack-{rack}.log"))).unwrap();
    let start = format!("requests to rack {other}: ");
    let results = log.lines().filter_map(|line| line.split_once(&start));
    results.map(|(_, thresholds)| thresholds.to_owned()).collect()
}

/// Waits until both racks show the last of more than `before` results. Racks that were stopped
/// while they measured have no result, and measure again once they have reconnected.
fn wait_until_thresholds_are_shown(pool: &mut TestPool, before: [usize; 2]) {
    let are_shown = |pool: &TestPool| {
        PAIRS.into_iter().zip(before).all(|(pair, before)| {
            let measured = measured(pool, pair);
            measured.len() > before && shown(pool, pair).as_ref() == measured.last()
        })
    };
    for _ in 0..4 {
        // The racks connect when one sends the other a request.
        pool.wait_until_racks_serve();
        if try_wait_for(Duration::from_secs(10), || are_shown(pool).then_some(())).is_some() {
            return;
        }
        pool.kill_daemon(1);
        pool.restart_daemon(1);
    }
    panic!("not shown: {:?}", PAIRS.map(|pair| (shown(pool, pair), measured(pool, pair))));
}

#[test]
fn status_shows_the_thresholds_that_were_measured_until_the_racks_part() {
    let mut pool = TestPool::over(FabricKind::Tcp);
    wait_until_thresholds_are_shown(&mut pool, [0, 0]);
    let text = shown(&pool, [0, 1]).unwrap();
    assert!(text.starts_with("pure RPC up to "), "{text}");
    assert!(text.ends_with(" when the size is not known"), "{text}");
    assert_eq!(shown(&pool, [0, 0]), None);

    let before = PAIRS.map(|pair| measured(&pool, pair).len());
    pool.kill_daemon(1);
    wait_until("those to a rack that is gone are not shown", TIMEOUT, || {
        shown(&pool, [0, 1]).is_none()
    });
    pool.restart_daemon(1);
    wait_until_thresholds_are_shown(&mut pool, before);
}
