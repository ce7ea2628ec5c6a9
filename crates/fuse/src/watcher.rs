//! The process that detaches a mount whose process was killed: who opens a file there would be told
//! that the "transport endpoint is not connected" until somebody did.
//!
//! It holds the lock of the mount point. So whoever mounts there next waits until it has looked,
//! and it never detaches a mount that is not its own.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context;

use crate::Options;
use crate::mount_point::{MountPoint, detach_dead};

/// A running watcher; it looks when this is dropped, or its process killed.
#[derive(Debug)]
pub(crate) struct Watcher {
    process: Child,
    alive: Option<ChildStdin>,
}

impl Watcher {
    /// Starts it.
    pub(crate) fn start(mount_point: &MountPoint) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("can't find this program's own file")?;
        let folder: File = mount_point.folder.try_clone()?;
        let mut process = Command::new(own)
            .arg("--watch")
            .arg(&mount_point.path)
            .stdin(Stdio::piped())
            // Nothing is written there: it is how the lock gets to the watcher.
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
        // It has nothing to do when the mount has ended well.
        let _ = self.process.wait();
    }
}

/// What the watcher does: waits for the end of its standard input, which is that of the mount.
pub(crate) fn watch(options: &Options) -> anyhow::Result<()> {
    wait_for_end_of_input();
    detach_dead(&options.mount_point)
}

/// Reads standard input until nothing can come any more.
pub(crate) fn wait_for_end_of_input() {
    let mut ignored = [0; 64];
    while std::io::stdin().read(&mut ignored).is_ok_and(|read| read > 0) {}
}
