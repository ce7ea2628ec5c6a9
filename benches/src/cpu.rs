//! Binding to cores, and use of processor time and memory.

use std::path::Path;

use anyhow::Context;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Binds the calling thread to a core.
pub(crate) fn pin_self(core: usize) -> anyhow::Result<()> {
    pin(Pid::from_raw(0), core)
}

/// The cores on which the calling thread may run.
pub(crate) fn usable() -> anyhow::Result<Vec<usize>> {
    cores_of(Pid::from_raw(0))
}

/// The cores on which the process's first thread may run: that thread binds itself to none.
pub(crate) fn of_process() -> anyhow::Result<Vec<usize>> {
    cores_of(Pid::this())
}

fn cores_of(thread: Pid) -> anyhow::Result<Vec<usize>> {
    let cores = sched_getaffinity(thread)?;
    Ok((0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap_or(false)).collect())
}

/// Keeps the calling thread, and all threads and processes that it starts, off a core.
pub(crate) fn keep_off(core: usize) -> anyhow::Result<()> {
    let mut cores = sched_getaffinity(Pid::from_raw(0))?;
    cores.unset(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores)
        .with_context(|| format!("can't keep off core {core}: is there another one?"))
}

fn pin(thread: Pid, core: usize) -> anyhow::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(thread, &cores).with_context(|| format!("can't bind to core {core}"))
}

/// Binds every thread of a process to a core.
pub(crate) fn pin_process(process: u32, core: usize) -> anyhow::Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let name = thread?.file_name();
        let id = name.to_str().and_then(|name| name.parse().ok()).context("a thread id")?;
        pin(Pid::from_raw(id), core)?;
    }
    Ok(())
}

/// Seconds of processor time that a process has used.
pub(crate) fn used_seconds(process: u32) -> anyhow::Result<f64> {
    // schedstat counts nanoseconds; the ticks of `stat` are too coarse for an idle process.
    let mut total = 0.0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let ns: f64 = text.split_whitespace().next().context("a figure")?.parse()?;
        total += ns / 1e9;
    }
    Ok(total)
}

/// What all cores together have done, in ticks: not idle, and in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy([u64; 2]);

impl Busy {
    /// Until now.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).context("a line")?;
        // User, nice, system, idle, waiting for devices, interrupts of two kinds, stolen.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>()?;
        let [_, _, _, idle, waiting, ..] = ticks[..] else { anyhow::bail!("figures: {line}") };
        let all = ticks.iter().sum::<u64>();
        Ok(Self([all - idle - waiting, all]))
    }

    /// The part of the time since then in which the cores were not idle, from 0 to 1.
    pub(crate) fn since(self) -> anyhow::Result<f64> {
        let Self([busy, all]) = Self::now()?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let [busy, all] = [busy - self.0[0], all - self.0[1]].map(|ticks| ticks as f64);
        Ok(busy / all.max(1.0))
    }
}

/// Bytes of private (anonymous) resident memory of a process.
pub(crate) fn private_bytes(process: u32) -> anyhow::Result<u64> {
    field(&Path::new("/proc").join(process.to_string()).join("status"), "RssAnon:")
}

fn field(file: &Path, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
    let kib: u64 = line.split_whitespace().next().context("a figure")?.parse()?;
    Ok(kib << 10)
}
