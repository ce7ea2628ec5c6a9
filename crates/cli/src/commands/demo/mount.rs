//! A file system in the pool, mounted in every rack: files written through one mount are read
//! through another.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_cluster::{Child, Cluster};
use rackpool_report::MountStep;

use super::leftovers::Leftovers;

/// How long a mount may take to be ready.
const START: Duration = Duration::from_secs(20);
/// Bytes of one write or read.
const CHUNK: usize = 1 << 20;
const CHUNKS: u32 = 64;
const SMALL_FILES: usize = 1000;

/// Returns why this machine can't mount; `None` if it can.
pub(super) fn hindrance() -> Option<String> {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("the mount: /dev/fuse is not there or not ours to open".into());
    }
    let helper = Command::new("fusermount3").arg("--version").output().is_ok();
    let allowed = helper || nix::unistd::geteuid().is_root();
    (!allowed).then(|| "the mount: only root mounts without fusermount3 (package fuse3)".into())
}

/// Mounts, writes and reads. The pool has at least two racks.
pub(super) fn run(cluster: &Cluster, leftovers: &Leftovers) -> anyhow::Result<Vec<MountStep>> {
    let mut mounts = Mounts::start(cluster, leftovers)?;
    let steps = steps(&mounts.points);
    mounts.stop()?;
    steps
}

fn steps(points: &[PathBuf]) -> anyhow::Result<Vec<MountStep>> {
    let [here, there] = [points.first(), points.last()].map(|point| point.cloned());
    let (here, there) = here.zip(there).context("no mounts")?;
    let bytes = u64::from(CHUNKS) * CHUNK as u64;
    let mut steps = Vec::new();
    let mut step = |what: &str, bytes: u64, files: usize, work: &dyn Fn() -> anyhow::Result<()>| {
        let began = Instant::now();
        work().with_context(|| what.to_owned())?;
        let seconds = began.elapsed().as_secs_f64();
        steps.push(MountStep { what: what.to_owned(), bytes, files: files as u64, seconds });
        anyhow::Ok(())
    };
    step("written through rack 0, and synced", bytes, 1, &|| write_large(&here.join("large")))?;
    step("read through another rack, every byte checked", bytes, 1, &|| {
        check_large(&there.join("large"))
    })?;
    step("made through rack 0", 0, SMALL_FILES, &|| write_small(&here.join("small")))?;
    step("found and read through another rack", 0, SMALL_FILES, &|| {
        check_small(&there.join("small"))
    })?;
    Ok(steps)
}

/// Bytes that differ from chunk to chunk.
fn chunk(number: u32) -> Vec<u8> {
    let mut word = number;
    let mut next = || {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word
    };
    (0..CHUNK / 4).flat_map(|_| next().to_le_bytes()).collect()
}

fn write_large(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    (0..CHUNKS).try_for_each(|number| file.write_all(&chunk(number)))?;
    Ok(file.sync_all()?)
}

fn check_large(path: &Path) -> anyhow::Result<()> {
    let mut file = File::open(path)?;
    let mut found = vec![0; CHUNK];
    for number in 0..CHUNKS {
        file.read_exact(&mut found)?;
        ensure!(found == chunk(number), "wrong bytes in MiB {number}");
    }
    ensure!(file.read(&mut found)? == 0, "the file is longer than it was written");
    Ok(())
}

fn small(number: usize) -> (String, String) {
    (format!("file-{number}"), format!("contents of {number}\n"))
}

fn write_small(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    for (name, contents) in (0..SMALL_FILES).map(small) {
        std::fs::write(folder.join(name), contents)?;
    }
    Ok(())
}

fn check_small(folder: &Path) -> anyhow::Result<()> {
    let found = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?.len();
    ensure!(found == SMALL_FILES, "{found} files instead of {SMALL_FILES}");
    for (name, contents) in (0..SMALL_FILES).map(small) {
        ensure!(std::fs::read_to_string(folder.join(&name))? == contents, "wrong bytes in {name}");
    }
    Ok(())
}

/// One mount in every rack.
struct Mounts {
    processes: Vec<Child>,
    points: Vec<PathBuf>,
}

impl Mounts {
    fn start(cluster: &Cluster, leftovers: &Leftovers) -> anyhow::Result<Self> {
        let options = cluster.options();
        let folder = options.store.parent().context("the store lies in no folder")?;
        let mut mounts = Self { processes: Vec::new(), points: Vec::new() };
        for rack in 0..options.racks {
            let point = folder.join(format!("mount-{rack}"));
            std::fs::create_dir(&point)?;
            leftovers.add_mount(&point);
            let arguments = [
                ("--dir", options.dir.display().to_string()),
                ("--rack", rack.to_string()),
                ("--volume", "demo".to_owned()),
            ];
            let log = options.dir.join(format!("mount-{rack}.log"));
            let mut process = Child::start_on("rackpool-fuse", Some(&point), &arguments, &log)?;
            process.wait_until(START, || is_mounted(&point))?;
            mounts.processes.push(process);
            mounts.points.push(point);
        }
        Ok(mounts)
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().for_each(Child::terminate);
        self.processes.iter_mut().try_for_each(Child::wait_or_kill)
    }
}

/// Whether a folder is the root of another file system than its parent.
fn is_mounted(point: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev());
    match (device(point), point.parent().map(device)) {
        (Ok(own), Some(Ok(above))) => own != above,
        _ => false,
    }
}
