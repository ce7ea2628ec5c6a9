//! A mount of a test pool's file system, served by a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::io::Errno;

use crate::client::program;
use crate::pool::TestPool;
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_until};

/// Most mounts of dead processes, one over another, that cleaning up removes.
const LAYERS: u32 = 8;
/// How long a process may take to end after `SIGTERM` before it is killed.
const END: Duration = Duration::from_secs(10);

/// A folder, and the process that serves the mount there. Dropping it removes both.
#[derive(Debug)]
pub struct TestMount {
    folder: PathBuf,
    pool: PathBuf,
    rack: u16,
    process: Option<Child>,
}

/// Why this process can't mount; `None` when it can.
#[must_use]
pub fn why_not() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse: load the kernel's module fuse");
    }
    let is_root = nix::unistd::geteuid().is_root();
    (!is_root).then_some("only root can try what other users may do in a mount")
}

impl TestMount {
    /// Mounts the pool's file system through a rack.
    #[must_use]
    pub fn start(pool: &TestPool, rack: u16) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rackpool-mount-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder to mount at");
        let mut mount = Self { folder, pool: pool.dir().to_owned(), rack, process: None };
        mount.mount();
        mount
    }

    /// Mounts again after the process of the earlier mount has ended.
    pub fn mount(&mut self) {
        self.try_mount().expect("a mount");
    }

    /// Tries to mount.
    ///
    /// # Errors
    /// What the process printed instead of its ready message.
    pub fn try_mount(&mut self) -> Result<(), String> {
        let mut process = Command::new(program("rackpool-fuse"))
            .arg(&self.folder)
            .arg("--dir")
            .arg(&self.pool)
            .arg("--rack")
            .arg(self.rack.to_string())
            // The process ends with the test process, however that ends.
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("a program that starts");
        let output = process.stdout.take().expect("a piped output");
        let mut line = String::new();
        let said = BufReader::new(output).read_line(&mut line);
        if said.is_ok_and(|bytes| bytes > 0) {
            self.process = Some(process);
            return Ok(());
        }
        let status = process.wait().expect("a process that ends");
        Err(format!("{status}"))
    }

    /// The root of the mounted file system.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.folder
    }

    /// The path of `name` in the mount.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// Kills the process as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a mount");
        process.kill().expect("a process to kill");
        process.wait().expect("a process that ends");
    }

    /// Stops the process with `SIGSTOP`, until [`go_on`](Self::go_on).
    pub fn stop(&self) {
        signal(self.process.as_ref().expect("a mount"), Signal::SIGSTOP);
    }

    /// Resumes the stopped process.
    pub fn go_on(&self) {
        signal(self.process.as_ref().expect("a mount"), Signal::SIGCONT);
    }

    /// Ends the process with `SIGTERM`; returns true if it succeeded.
    pub fn end(&mut self) -> bool {
        let mut process = self.process.take().expect("a mount");
        signal(&process, Signal::SIGTERM);
        let mut status = None;
        wait_until("the mount ends", TIMEOUT, || {
            status = process.try_wait().expect("a process");
            status.is_some()
        });
        status.is_some_and(|status| status.success())
    }

    /// Returns true if the folder reports that the process of its mount is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let gone = [Errno::NOTCONN, Errno::CONNABORTED];
        matches!(rustix::fs::stat(&self.folder), Err(error) if gone.contains(&error))
    }
}

fn signal(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id()).expect("a process id");
    // The process may have ended.
    let _ = kill(Pid::from_raw(id), signal);
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            signal(&process, Signal::SIGTERM);
            try_wait_until(END, || !matches!(process.try_wait(), Ok(None)));
            let _ = process.kill();
            let _ = process.wait();
        }
        for _ in 0..LAYERS {
            if !self.is_dead() {
                break;
            }
            let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
        }
        // Removes only an empty folder: what is mounted stays.
        let _ = std::fs::remove_dir(&self.folder);
    }
}
