//! `rackpool-kv` and the library, compared with Redis on the same two cores.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_kv::Table as KvTable;

use crate::measure::{median, time_each};
use crate::outage::longest;
use crate::table::Table;

const ROUNDS: usize = 5;
const REQUESTS: &str = "200000";
const RECORDS: usize = 200_000;
const GETS: usize = 200_000;
const VALUE: [u8; 64] = [b'v'; 64];

/// A server on a Unix socket; killed when dropped.
pub(crate) struct Server {
    command: Command,
    process: Child,
    socket: PathBuf,
}

impl Server {
    pub(crate) fn start(program: &Path, words: &[&str], socket: PathBuf) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(words).stdout(Stdio::null());
        let process = command
            .spawn()
            .with_context(|| format!("can't start {}: see deploy/prepare.sh", program.display()))?;
        let server = Self { command, process, socket };
        let deadline = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(&server.socket).is_err() {
            ensure!(Instant::now() < deadline, "{} does not listen", program.display());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Kills the server, and restarts it at once.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = self.command.spawn()?;
        Ok(())
    }

    /// Requests per second of one command, measured by `redis-benchmark`.
    fn rate(&self, command: &str, pipeline: &str) -> anyhow::Result<f64> {
        let output = Command::new("redis-benchmark")
            .arg("-s")
            .arg(&self.socket)
            .args(["-t", command, "-n", REQUESTS, "-P", pipeline, "-r", "100000", "--csv"])
            .args(["-d", "64"])
            .output()
            .context("can't run redis-benchmark: see deploy/prepare.sh")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().last().unwrap_or_default();
        let field = line.split(',').nth(1).unwrap_or_default().trim_matches('"');
        field.parse().with_context(|| format!("redis-benchmark says {line}"))
    }

    /// `used_memory` in bytes.
    fn used(&self) -> anyhow::Result<f64> {
        let mut reader = BufReader::new(UnixStream::connect(&self.socket)?);
        reader.get_mut().write_all(b"INFO memory\r\n")?;
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(reader.read_line(&mut line)? > 0, "INFO has no used_memory");
            if let Some(used) = line.trim().strip_prefix("used_memory:") {
                return Ok(used.parse()?);
            }
        }
    }

    /// Stores the records, a hundred requests at a time.
    fn load(&self) -> anyhow::Result<()> {
        const BATCH: usize = 100;
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut answers = [0; BATCH * 5];
        for first in (0..RECORDS).step_by(BATCH) {
            let mut requests = Vec::new();
            for number in first..first + BATCH {
                write!(requests, "*3\r\n$3\r\nSET\r\n$24\r\n{}\r\n$64\r\n", key(number))?;
                requests.extend_from_slice(&VALUE);
                requests.extend_from_slice(b"\r\n");
            }
            stream.write_all(&requests)?;
            stream.read_exact(&mut answers)?;
            ensure!(answers.starts_with(b"+OK"), "a record was not stored");
        }
        Ok(())
    }

    /// Nanoseconds of a GET by one client that waits for each answer.
    fn get_ns(&self, count: usize) -> anyhow::Result<f64> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut answer = [0; 5 + 64 + 2];
        let mut failed = Ok(());
        let ns = time_each(count, || {
            failed = (0..count).try_for_each(|number| {
                let key = key(number * 7919 % RECORDS);
                stream.write_all(format!("*2\r\n$3\r\nGET\r\n$24\r\n{key}\r\n").as_bytes())?;
                stream.read_exact(&mut answer)
            });
        });
        failed?;
        Ok(ns)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A key of 24 bytes.
fn key(number: usize) -> String {
    format!("user{number:020}")
}

/// The path of a built service.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(3).map(|dir| dir.join(name));
    found
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not built: cargo build --release --bins"))
}

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.racks = 1;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let pool_dir = dir.display().to_string();
    let sockets = ["kv.sock", "redis.sock"].map(|name| dir.join(name));
    let [own, other] = sockets.each_ref().map(|path| path.display().to_string());
    let words = ["--dir", &pool_dir, "--rack", "0", "--unix", &own, "--threads", "1"];
    let mut ours = Server::start(&program("rackpool-kv")?, &words, sockets[0].clone())?;
    let words = ["--port", "0", "--unixsocket", &other, "--save", "", "--dir", &pool_dir];
    let redis = Server::start(Path::new("redis-server"), &words, sockets[1].clone())?;

    table.section(
        "rackpool-kv with one thread against Redis; requests/s of redis-benchmark, 50 connections",
    );
    for (pipeline, limit) in [("1", 1.0), ("16", 1.3)] {
        for command in ["get", "set"] {
            let mut rates = Vec::new();
            for _ in 0..ROUNDS {
                rates.push((ours.rate(command, pipeline)?, redis.rate(command, pipeline)?));
            }
            let ratio = median(rates.iter().map(|(ours, redis)| ours / redis).collect());
            let detail = format!(
                "{:.0} against {:.0}",
                median(rates.iter().map(|rate| rate.0).collect()),
                median(rates.iter().map(|rate| rate.1).collect())
            );
            let name = format!("{command} -P {pipeline}");
            table.at_least(&name, ratio, limit, "x", &detail);
        }
    }
    memory_and_library(table, &ours, &redis, &dir)?;
    let mut slowest = 0.0_f64;
    for _ in 0..ROUNDS {
        let socket = ours.socket.clone();
        slowest = slowest.max(longest(|client| reads(&socket, client), || ours.restart())?);
    }
    let detail = format!("longest of 4 clients, {ROUNDS} times, {RECORDS} records");
    table.at_most("kill -9 under load, no right answer for", slowest, 1.0, "s", &detail);
    drop((ours, redis));
    crate::fuse::kills(table, &dir)?;
    cluster.stop()
}

/// Stores a record and reads another, over a connection that is reopened after an error.
fn reads(socket: &Path, client: usize) -> impl FnMut(u64) -> io::Result<()> + Send {
    let socket = socket.to_owned();
    let mut open = None;
    move |_| {
        let mut stream = match open.take() {
            Some(stream) => stream,
            None => UnixStream::connect(&socket)?,
        };
        let (own, any) = (key(RECORDS + client), key(RECORDS / 2));
        let mut requests = format!("*3\r\n$3\r\nSET\r\n$24\r\n{own}\r\n$64\r\n").into_bytes();
        requests.extend_from_slice(&VALUE);
        requests.extend_from_slice(format!("\r\n*2\r\n$3\r\nGET\r\n$24\r\n{any}\r\n").as_bytes());
        stream.write_all(&requests)?;
        let mut answers = [0; 5 + 5 + 64 + 2];
        stream.read_exact(&mut answers)?;
        let is_right =
            answers.starts_with(b"+OK\r\n$64\r\n") && answers.get(10..74) == Some(&VALUE);
        open = Some(stream);
        if is_right { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

fn memory_and_library(
    table: &mut Table,
    ours: &Server,
    redis: &Server,
    dir: &Path,
) -> anyhow::Result<()> {
    let mut per_record = Vec::new();
    for server in [ours, redis] {
        let before = server.used()?;
        server.load()?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        per_record.push((server.used()? - before) / RECORDS as f64);
    }
    let detail = format!("{:.0} B against {:.0} B", per_record[0], per_record[1]);
    table.at_most("memory per record", per_record[0] / per_record[1], 1.3, "x", &detail);

    let pool = Arc::new(Pool::open(ClientOptions::new(dir, RackId(0)))?);
    let addr = pool.root("kv")?.context("the service's table")?;
    let mut handle = KvTable::open(Arc::clone(&pool), addr)?.handle();
    let keys: Vec<String> = (0..GETS).map(|number| key(number * 7919 % RECORDS)).collect();
    let mut found = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let own = time_each(keys.len(), || {
            for key in &keys {
                assert!(handle.get(key.as_bytes(), &mut found).is_ok_and(|there| there));
                black_box(&found);
            }
        });
        rounds.push((own, redis.get_ns(GETS / 10)?));
    }
    let detail = format!(
        "{:.0} ns against {:.0} ns",
        median(rounds.iter().map(|round| round.0).collect()),
        median(rounds.iter().map(|round| round.1).collect())
    );
    let ratio = median(rounds.iter().map(|(own, redis)| redis / own).collect());
    table.at_least("get of the library, one client", ratio, 50.0, "x", &detail);
    Ok(())
}
