//! A Redis server of the demo's own.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rackpool_shm::folder;

/// The program.
pub(super) const PROGRAM: &str = "redis-server";

/// Returns name and version of the server, or why there is none.
pub(super) fn version(program: &str) -> Result<String, String> {
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

/// The socket of the server in this folder.
pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("redis.sock")
}

/// The log of the server in this folder.
pub(super) fn log(folder: &Path) -> PathBuf {
    folder.join("redis.log")
}

/// A Redis server without persistence, in a folder of its own. Both go when it is dropped.
pub(super) struct RedisServer {
    pub(super) process: Child,
    pub(super) folder: PathBuf,
}

impl RedisServer {
    /// Starts a server in a new folder.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
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

impl Drop for RedisServer {
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
}
