//! What the demo removes when it is interrupted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackpool_cluster::ClusterOptions;

use super::detach::detach;
use super::redis_server::RedisServer;
use crate::commands::signals::Interrupts;

/// Files, mounts and the Redis server to remove if the demo is interrupted. The other processes end
/// with this one.
#[derive(Clone, Default)]
pub(super) struct Leftovers(Arc<Mutex<Left>>);

#[derive(Default)]
struct Left {
    pools: Vec<ClusterOptions>,
    mounts: Vec<PathBuf>,
    redis: Option<RedisServer>,
}

impl Leftovers {
    /// From now on Ctrl-C ends the demo and removes everything that it has created.
    pub(super) fn remove_when_interrupted(&self) -> anyhow::Result<()> {
        let (interrupts, all) = (Interrupts::catch()?, self.clone());
        std::thread::spawn(move || {
            if matches!(interrupts.wait(|| None::<()>), Ok(None)) {
                let mut left = all.left();
                // The mounts first: their detachment needs files that are removed next.
                left.mounts.iter().for_each(|point| detach(point));
                left.pools.iter().for_each(ClusterOptions::remove_files);
                drop(left.redis.take());
                rackpool_output::note("\ninterrupted");
                std::process::exit(130);
            }
        });
        Ok(())
    }

    /// Adds a pool of the demo.
    pub(super) fn add(&self, pool: &ClusterOptions) {
        self.left().pools.push(pool.clone());
    }

    /// Adds a mount point of the demo.
    pub(super) fn add_mount(&self, point: &Path) {
        self.left().mounts.push(point.into());
    }

    /// Starts a Redis server, which is stopped with the guard or when the demo is interrupted.
    pub(super) fn start_redis(
        &self,
        start: impl FnOnce() -> anyhow::Result<RedisServer>,
    ) -> anyhow::Result<StopRedis<'_>> {
        let mut left = self.left();
        left.redis = Some(start()?);
        drop(left);
        Ok(StopRedis(self))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops the Redis server of the demo when it is dropped.
pub(super) struct StopRedis<'a>(&'a Leftovers);

impl StopRedis<'_> {
    /// Whether the server's process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.0.left().redis.as_mut().is_none_or(RedisServer::has_ended)
    }
}

impl Drop for StopRedis<'_> {
    fn drop(&mut self) {
        drop(self.0.left().redis.take());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// `sleep` stands for the server.
    #[test]
    fn a_stopped_server_leaves_neither_process_nor_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("redis");
        std::fs::create_dir(&folder).unwrap();
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        let id = process.id();
        let leftovers = Leftovers::default();
        let server = RedisServer { process, folder: folder.clone() };
        let running = leftovers.start_redis(|| Ok(server)).unwrap();
        assert!(!running.has_ended() && Path::new(&format!("/proc/{id}")).exists());
        drop(running);
        assert!(!folder.exists() && !Path::new(&format!("/proc/{id}")).exists());
    }
}
