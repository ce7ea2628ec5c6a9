//! The mount compared with a FUSE file system that passes all operations through to files on tmpfs,
//! both driven by `fio`: the costs of the kernel and of `/dev/fuse` are the same for both.

mod fio;
mod peer;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::helper::Helper;
use crate::measure::median;
use crate::outage::longest;
use crate::table::Table;
use fio::{Access, Job};

pub use peer::be_peer;

/// The argument with which this program is the pass-through file system.
pub const ARGUMENT: &str = "--fuse-peer";
/// Pairs of runs of each job; medians are compared.
const ROUNDS: usize = 7;
/// Bytes of the file: several times the size of processor caches.
const FILE_BYTES: u64 = 512 << 20;

/// Name of a job, the job, and the least ratio of its rates.
const JOBS: [(&str, Job, f64); 8] = [
    ("1 MiB writes in order", Job::new(Access::Write, 1 << 20, false), 0.8),
    ("1 MiB reads in order", Job::new(Access::Read, 1 << 20, false), 0.8),
    ("1 MiB writes in order, O_DIRECT", Job::new(Access::Write, 1 << 20, true), 0.8),
    ("1 MiB reads in order, O_DIRECT", Job::new(Access::Read, 1 << 20, true), 0.8),
    ("4 KiB random writes", Job::new(Access::RandomWrite, 4 << 10, false), 1.0),
    ("4 KiB random reads", Job::new(Access::RandomRead, 4 << 10, false), 1.0),
    ("4 KiB random writes, O_DIRECT", Job::new(Access::RandomWrite, 4 << 10, true), 1.0),
    ("4 KiB random reads, O_DIRECT", Job::new(Access::RandomRead, 4 << 10, true), 1.0),
];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("fio on the mount, against a pass-through FUSE file system over tmpfs");
    if let Some(reason) = missing() {
        table.not_measured(&reason);
        return Ok(());
    }
    let mut options = ClusterOptions::ephemeral()?;
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.racks = 1;
    options.memory = 2 << 30;
    let cluster = Cluster::start(options)?;
    let folders = Folders::make(&cluster.options().dir)?;
    let ours = Ours::start(&cluster.options().dir, &folders.ours)?;
    let peer = PeerMount::start(&folders.backing, &folders.peer)?;
    for (name, job, limit) in JOBS {
        compare(table, name, &job, limit, &folders)?;
    }
    drop((ours, peer));
    cluster.stop()
}

/// Kills a mount of a pool under load and mounts again; measures how long programs get no answer.
pub fn kills(table: &mut Table, pool: &Path) -> anyhow::Result<()> {
    const ROUNDS: usize = 5;
    if !Path::new("/dev/fuse").exists() {
        table.not_measured("there is no /dev/fuse");
        return Ok(());
    }
    let folders = Folders::make(pool)?;
    let mut mount = Ours::start(pool, &folders.ours)?;
    let files = folders.ours.join("files");
    std::fs::create_dir(&files)?;
    for client in 0..4 {
        std::fs::write(files.join(client.to_string()), [0; 8])?;
    }
    let mut slowest = 0.0_f64;
    for _ in 0..ROUNDS {
        let gap = longest(
            |client| writes(files.join(client.to_string())),
            || {
                mount.0.kill()?;
                mount.0.wait()?;
                mount = Ours::start(pool, &folders.ours)?;
                Ok(())
            },
        )?;
        slowest = slowest.max(gap);
    }
    let detail = format!("longest of 4 programs, {ROUNDS} times");
    table.at_most("kill -9 of a mount under load, no right answer for", slowest, 1.0, "s", &detail);
    Ok(())
}

/// Writes a number into a file and reads it back; reopens the file after an error.
fn writes(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> + Send {
    let mut open = None;
    move |number| {
        let file = match open.take() {
            Some(file) => file,
            // Does not create the file: the folder beneath the mount stays empty.
            None => File::options().read(true).write(true).open(&path)?,
        };
        let (new, mut read) = (number.to_le_bytes(), [0; 8]);
        file.write_all_at(&new, 0)?;
        file.read_exact_at(&mut read, 0)?;
        open = Some(file);
        if read == new { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

fn missing() -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse".into());
    }
    let version = Command::new("fio").arg("--version").output();
    version.is_err().then(|| "fio is not installed".into())
}

/// Runs a job on both file systems in turn.
fn compare(
    table: &mut Table,
    name: &str,
    job: &Job,
    limit: f64,
    folders: &Folders,
) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    job.run(&folders.ours)?;
    job.run(&folders.peer)?;
    for _ in 0..ROUNDS {
        rounds.push((job.run(&folders.ours)?, job.run(&folders.peer)?));
    }
    let ratio = median(rounds.iter().map(|(ours, peer)| ours / peer).collect());
    let ours = median(rounds.iter().map(|(ours, _)| *ours).collect());
    let peer = median(rounds.iter().map(|(_, peer)| *peer).collect());
    let detail = format!("{} against {}", job.describe(ours), job.describe(peer));
    table.at_least(name, ratio, limit, "x", &detail);
    Ok(())
}

/// The mount points and the backing folder, inside the pool's folder, which is removed with the
/// pool.
pub(crate) struct Folders {
    pub(crate) ours: PathBuf,
    peer: PathBuf,
    backing: PathBuf,
}

impl Folders {
    pub(crate) fn make(dir: &Path) -> anyhow::Result<Self> {
        let [ours, peer, backing] = ["mount", "peer", "backing"].map(|name| dir.join(name));
        for folder in [&ours, &peer, &backing] {
            std::fs::create_dir(folder).with_context(|| folder.display().to_string())?;
        }
        Ok(Self { ours, peer, backing })
    }
}

/// The process of rackpool's mount. Dropping it asks the process to end, and waits.
pub(crate) struct Ours(Child);

impl Ours {
    pub(crate) fn start(pool: &Path, at: &Path) -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let program = own
            .ancestors()
            .map(|folder| folder.join("rackpool-fuse"))
            .find(|path| path.is_file())
            .context("rackpool-fuse is not built")?;
        let mut command = Command::new(program);
        let mut process = command.arg(at).arg("--dir").arg(pool).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().context("its output")?;
        BufReader::new(output).read_line(&mut line)?;
        anyhow::ensure!(line.contains("is mounted"), "the mount did not start");
        Ok(Self(process))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Ok(id) = i32::try_from(self.0.id()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

/// The pass-through file system and its mount; dropping it unmounts.
struct PeerMount {
    at: PathBuf,
    _process: Helper,
}

impl PeerMount {
    fn start(backing: &Path, at: &Path) -> anyhow::Result<Self> {
        let arguments = [backing, at].map(|path| path.display().to_string());
        let mut process = Helper::start(ARGUMENT, &arguments)?;
        anyhow::ensure!(process.hear()? == "mounted", "the peer did not start");
        Ok(Self { at: at.to_owned(), _process: process })
    }
}

impl Drop for PeerMount {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}
