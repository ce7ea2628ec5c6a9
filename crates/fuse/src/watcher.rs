//! The process that detaches a mount after its process was killed. Until the mount is detached,
//! programs that open files there fail with "transport endpoint is not connected".
//!
//! The watcher holds the lock of the mount point: the next process that mounts there waits until
//! the watcher has looked, and the watcher never detaches another mount.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

use crate::MountOptions;
use crate::mount_point::{MountPoint, detach_dead};

/// A running watcher. It looks for a dead mount when this is dropped, or when this process is
/// killed.
#[derive(Debug)]
pub(crate) struct Watcher {
    process: Child,
    alive: Option<ChildStdin>,
}

impl Watcher {
    /// Starts the watcher process.
    pub(crate) fn start(mount_point: &MountPoint) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("can't find this program's own file")?;
        let folder: File = mount_point.folder.try_clone()?;
        let mut process = Command::new(own)
            .arg("--watch")
            .arg(&mount_point.path)
            .stdin(Stdio::piped())
            // Nothing is written to it: the descriptor passes the lock on to the watcher.
            .stdout(Stdio::from(folder))
            // A Ctrl-C in the terminal is for the mount.
            .process_group(0)
            .current_dir("/")
            .spawn()
            .context("can't start the process that detaches the mount after a kill")?;
        let alive = process.stdin.take();
        Ok(Self { process, alive })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.alive.take());
        // If the mount has been unmounted the watcher has nothing to do.
        let _ = self.process.wait();
    }
}

/// Runs the watcher: waits for the end of its standard input, which the mount's process holds open.
pub(crate) fn watch(options: &MountOptions) -> anyhow::Result<()> {
    wait_for_end_of_input();
    detach_dead(&options.mount_point)
}

/// Reads standard input until it ends.
pub(crate) fn wait_for_end_of_input() {
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
}
