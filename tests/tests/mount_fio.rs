//! `fio` on mounts: it reads back and verifies all that it wrote.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::process::Command;

use rackpool_testing::skipped;
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;

const MEMORY: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    engine: &'static str,
    access: &'static str,
    block: &'static str,
    direct: bool,
    /// Processes, each with a file of its own.
    jobs: u8,
    /// Concurrent requests of one process.
    depth: u8,
}

impl Run {
    const fn new(engine: &'static str, access: &'static str, block: &'static str) -> Self {
        Self { engine, access, block, direct: false, jobs: 1, depth: 1 }
    }

    const fn direct(self) -> Self {
        Self { direct: true, ..self }
    }

    const fn jobs(self, jobs: u8) -> Self {
        Self { jobs, ..self }
    }

    const fn depth(self, depth: u8) -> Self {
        Self { depth, ..self }
    }

    /// Runs it in a folder; panics with `fio`'s output if the verification fails.
    fn check(&self, folder: &Path, more: &[&str]) {
        let output = Command::new("fio")
            .args(["--name=job", "--thread", "--size=6M", "--verify=crc32c", "--verify_fatal=1"])
            // Otherwise it leaves files in the current folder.
            .arg("--verify_state_save=0")
            .arg(format!("--ioengine={}", self.engine))
            .arg(format!("--rw={}", self.access))
            .arg(format!("--bs={}", self.block))
            .arg(format!("--direct={}", u8::from(self.direct)))
            .arg(format!("--numjobs={}", self.jobs))
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--directory={}", folder.display()))
            .args(more)
            .output()
            .unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(output.status.success(), "{self:?}: {}", said.concat());
        let sound = said[0].matches("err= 0").count();
        assert_eq!(sound, usize::from(self.jobs), "{self:?}: {}", said.concat());
    }
}

/// A pool with mounts in its first racks; `None`, reported as skipped, where mounting is
/// impossible.
fn mounted(racks: u16) -> Option<(TestPool, Vec<TestMount>)> {
    if let Some(reason) = why_not() {
        skipped(reason);
        return None;
    }
    if Command::new("fio").arg("--version").output().is_err() {
        skipped("fio is not installed: bash deploy/prepare.sh test");
        return None;
    }
    let pool = TestPool::start(MEMORY, PAGE);
    pool.wait_until_racks_meet();
    let mounts = (0..racks).map(|rack| TestMount::start(&pool, rack)).collect();
    Some((pool, mounts))
}

#[test]
fn fio_reads_what_it_wrote() {
    let Some((_pool, mounts)) = mounted(1) else { return };
    for run in [
        Run::new("psync", "write", "1m"),
        Run::new("psync", "write", "64k").direct().jobs(2),
        Run::new("psync", "write", "3k"),
        Run::new("psync", "randwrite", "16k").jobs(2),
        Run::new("psync", "randrw", "4k").jobs(3),
        Run::new("psync", "randrw", "4k").direct().jobs(3),
        Run::new("vsync", "randrw", "8k"),
        Run::new("mmap", "write", "64k"),
        Run::new("mmap", "randrw", "4k").jobs(2),
        Run::new("libaio", "randwrite", "4k").direct().depth(16),
        Run::new("libaio", "randrw", "128k").direct().depth(4).jobs(2),
        Run::new("posixaio", "randwrite", "4k").depth(8),
    ] {
        let folder = tempfile::tempdir_in(mounts[0].root()).unwrap();
        run.check(folder.path(), &["--do_verify=1"]);
    }
}

#[test]
fn fio_changes_one_file_from_many_processes() {
    let Some((_pool, mounts)) = mounted(1) else { return };
    // Each has its own part of the file, whose blocks and clusters border on its neighbours'.
    let parts = ["--filename=shared", "--offset_increment=1100k", "--size=1100k", "--do_verify=1"];
    for run in [
        Run::new("psync", "randwrite", "4k").jobs(4),
        Run::new("psync", "randwrite", "4k").direct().jobs(4),
        Run::new("psync", "randrw", "12k").jobs(4),
    ] {
        let folder = tempfile::tempdir_in(mounts[0].root()).unwrap();
        run.check(folder.path(), &parts);
    }
}

#[test]
fn fio_reads_in_one_rack_what_it_wrote_in_the_other() {
    let Some((_pool, mounts)) = mounted(2) else { return };
    for (number, run) in [
        Run::new("psync", "randwrite", "4k").jobs(2),
        Run::new("mmap", "randwrite", "16k"),
        Run::new("psync", "write", "512k").direct(),
    ]
    .iter()
    .enumerate()
    {
        let name = number.to_string();
        let (writer, reader) = (&mounts[number % 2], &mounts[1 - number % 2]);
        std::fs::create_dir(writer.path(&name)).unwrap();
        run.check(&writer.path(&name), &["--do_verify=0"]);
        run.check(&reader.path(&name), &["--verify_only=1"]);
    }
}
