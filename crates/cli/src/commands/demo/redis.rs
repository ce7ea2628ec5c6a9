//! The same workloads through Redis, where this machine has it.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rackpool_shm::folder;

use super::{Leftovers, Options, plans};
use crate::cluster::{unique_name, wait_for};
use crate::report::Redis;
use crate::ycsb::{self, Progress, RespStores, WorkloadResult};

const PROGRAM: &str = "redis-server";
/// How long the server may take until it serves.
const START: Duration = Duration::from_secs(20);

/// Runs the workloads through a Redis server of the demo's own.
///
/// # Errors
/// If the workloads can't be planned. A Redis that is missing or fails is a result.
pub(super) fn run(options: &Options, leftovers: &Leftovers) -> anyhow::Result<Redis> {
    let (points, scans) = plans(options)?;
    let server = match version(PROGRAM) {
        Ok(server) => server,
        Err(why) => return Ok(Redis::NotCompared { why }),
    };
    let progress = Progress::new(options.quiet);
    let measured = measure(&points, &scans, progress, leftovers);
    Ok(match measured {
        Ok(results) => Redis::Compared { server, results },
        Err(error) => Redis::NotCompared { why: format!("{server} did not serve ({error:#})") },
    })
}

fn measure(
    points: &ycsb::Plan,
    scans: &ycsb::Plan,
    progress: Progress,
    leftovers: &Leftovers,
) -> anyhow::Result<Vec<WorkloadResult>> {
    let folder = std::env::temp_dir().join(unique_name()?);
    let running = leftovers.start_redis(|| Server::start(&folder))?;
    let socket = socket(&folder);
    let serves = || UnixStream::connect(&socket).is_ok();
    if !wait_for(START, || running.has_ended() || serves()) || running.has_ended() {
        let log = std::fs::read_to_string(log(&folder)).unwrap_or_default();
        anyhow::bail!("its last line: {}", log.trim_end().lines().last().unwrap_or_default());
    }
    let stores = RespStores::new(vec![ycsb::Server::unix(socket)], points);
    let mut session = ycsb::run(points, &stores, progress)?;
    session.workloads.extend(ycsb::run(scans, &stores, progress)?.workloads);
    Ok(session.load.into_iter().chain(session.workloads).collect())
}

/// Returns name and version of the server, or why there is none.
fn version(program: &str) -> Result<String, String> {
    let output = match Command::new(program).arg("--version").output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("Redis is not installed ({program} is not in PATH)"));
        }
        Err(error) => return Err(format!("{program} can't be started ({error})")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).ok_or_else(|| format!("{program} does not say its version"))
}

/// Parses `Redis server v=7.0.15 sha=...`; a fork of Redis has another name.
fn parse_version(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let name = words.next()?;
    let version = words.find_map(|word| word.strip_prefix("v="))?;
    Some(format!("{name} {version}"))
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("redis.sock")
}

fn log(folder: &Path) -> PathBuf {
    folder.join("redis.log")
}

/// A Redis server without persistence, in a folder of its own. Both go when it is dropped.
pub(super) struct Server {
    process: Child,
    folder: PathBuf,
}

impl Server {
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder::create(folder)?;
        let started = Self::spawn(&folder);
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        Ok(Self { process: started?, folder })
    }

    fn spawn(folder: &Path) -> anyhow::Result<Child> {
        let log = File::create(log(folder)).context("can't write its log")?;
        let mut command = Command::new(PROGRAM);
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(folder);
        command.arg("--unixsocket").arg(socket(folder)).args(["--unixsocketperm", "700"]);
        let output = log.try_clone()?;
        command.stdin(Stdio::null()).stdout(output).stderr(log);
        // A Ctrl-C in the terminal is for the parent.
        command.process_group(0).spawn().context("can't start it")
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It keeps nothing, so it is not asked to end. One that has ended needs no signal.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_redis_says_so() {
        let why = version("no-redis-server-here").unwrap_err();
        assert_eq!(why, "Redis is not installed (no-redis-server-here is not in PATH)");
        assert_eq!(version("false").unwrap_err(), "false does not say its version");
    }

    #[test]
    fn versions_have_the_name_of_the_server() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64\n";
        assert_eq!(parse_version(redis).unwrap(), "Redis 7.0.15");
        assert_eq!(parse_version("Valkey server v=8.0.1 sha=0").unwrap(), "Valkey 8.0.1");
        assert_eq!(parse_version("redis-server: no such option"), None);
    }

    /// `sleep` stands for the server.
    #[test]
    fn a_stopped_server_leaves_neither_process_nor_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("redis");
        std::fs::create_dir(&folder).unwrap();
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        let id = process.id();
        let leftovers = Leftovers::default();
        let server = Server { process, folder: folder.clone() };
        let running = leftovers.start_redis(|| Ok(server)).unwrap();
        assert!(!running.has_ended() && Path::new(&format!("/proc/{id}")).exists());
        drop(running);
        assert!(!folder.exists() && !Path::new(&format!("/proc/{id}")).exists());
    }
}
