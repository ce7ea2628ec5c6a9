use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::{AHEAD, LARGE, Reader, SMALL};
use crate::measure::in_turn;
use crate::table::Table;

const PROGRAM: &str = "ucx_perftest";
/// The most time until the server listens.
const START: Duration = Duration::from_secs(10);

/// Compares the fabric with UCX over TCP.
pub(super) fn run(table: &mut Table, reader: &mut Reader) -> anyhow::Result<()> {
    if Command::new(PROGRAM).arg("-h").output().is_err() {
        let reason = format!("{PROGRAM} is not installed (Debian: apt-get install ucx-utils)");
        table.not_measured(&reason);
        return Ok(());
    }
    // The first measurement shows whether UCX works here.
    measure(&GET)?;
    for (test, trips) in [(&GET, 1.0), (&PING, 2.0)] {
        // UCX reports half of a ping-pong's time.
        let trip = in_turn(
            || reader.round_trips().expect("an open endpoint"),
            || measure(test).expect("it has just worked").latency_us * trips,
        );
        let detail = format!("p50 {:.1} us against {:.1} us", trip.ours, trip.peer);
        let name = format!("64 B read / {} of UCX over TCP", test.what);
        table.at_most(&name, trip.ratio, 1.0, "x", &detail);
    }
    let mut rates = |test| {
        in_turn(
            || reader.bandwidth().expect("an open endpoint"),
            || measure(test).expect("it has just worked").gigabytes_per_second,
        )
    };
    let bulk = rates(&GETS);
    let detail = format!("{:.2} GB/s against {:.2} GB/s", bulk.ours, bulk.peer);
    table.at_least("1 MiB reads / ucp_get of UCX over TCP", bulk.ratio, 1.0, "x", &detail);
    let bulk = rates(&MESSAGES);
    let detail = format!(
        "{:.2} GB/s against {:.2} GB/s; messages need not keep words whole",
        bulk.ours, bulk.peer
    );
    table.figure("1 MiB reads / 1 MiB messages of UCX", bulk.ratio, "x", &detail);
    Ok(())
}

/// A test of `ucx_perftest`.
struct Test {
    what: &'static str,
    name: &'static str,
    bytes: u32,
    /// Operations in flight together.
    ahead: u64,
    times: u32,
}

const GET: Test = Test { what: "ucp_get", name: "ucp_get", bytes: SMALL, ahead: 1, times: 200 };
const PING: Test = Test { what: "ping-pong", name: "tag_lat", bytes: SMALL, ahead: 1, times: 5000 };
const GETS: Test =
    Test { what: "ucp_get", name: "ucp_get", bytes: LARGE, ahead: AHEAD, times: 100 };
const MESSAGES: Test =
    Test { what: "messages", name: "tag_bw", bytes: LARGE, ahead: AHEAD, times: 100 };

/// Results that UCX reports.
struct Measured {
    latency_us: f64,
    gigabytes_per_second: f64,
}

/// A server process; dropping this ends it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // After a measurement it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures between two processes on the same cores as the fabric's.
fn measure(test: &Test) -> anyhow::Result<Measured> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let on_core = |core: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", core, PROGRAM, "-p", &port]);
        command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo");
        command.stdin(Stdio::null());
        command
    };
    let server = on_core("1").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let _server = Server(server);
    let start = Instant::now();
    while !listens(&port)? {
        anyhow::ensure!(start.elapsed() < START, "{PROGRAM} does not start to listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (size, count, ahead) =
        (test.bytes.to_string(), test.times.to_string(), test.ahead.to_string());
    let arguments = ["127.0.0.1", "-t", test.name, "-s", &size, "-n", &count, "-O", &ahead, "-f"];
    let output = on_core("0").args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{PROGRAM}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // One line: iterations, median, average and overall latency in us, two rates in MB/s of 2^20.
    let last = text.lines().last().context("a line of figures")?;
    let figures: Vec<f64> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [_, latency_us, _, _, _, rate, ..] = figures[..] else { bail!("no figures: {text}") };
    Ok(Measured { latency_us, gigabytes_per_second: rate * 1.048_576 / 1000.0 })
}

/// Returns true if a server listens on the port. Does not connect, since the server accepts only
/// one connection.
fn listens(port: &str) -> anyhow::Result<bool> {
    let port = format!(":{:04X}", port.parse::<u16>()?);
    let listening = |table: String| {
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().is_some_and(|local| local.ends_with(&port));
            local && words.nth(1) == Some("0A")
        })
    };
    Ok(["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .any(listening))
}
