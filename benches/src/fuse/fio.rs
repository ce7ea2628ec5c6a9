//! Jobs of `fio`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::FILE_BYTES;

/// What a job does with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Writes a new one from start to end.
    Write,
    /// Reads it from start to end, with nothing of it in the page cache.
    Read,
    /// Overwrites pieces, each once.
    RandomWrite,
    /// Reads pieces, each once, with nothing of them in the page cache.
    RandomRead,
}

/// A job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    access: Access,
    block_bytes: u64,
    direct: bool,
}

/// Pieces of a random job: some seconds of them.
const PIECES: u64 = 60_000;

impl Job {
    pub(super) const fn new(access: Access, block_bytes: u64, direct: bool) -> Self {
        Self { access, block_bytes, direct }
    }

    /// Runs it on the file in a folder; bytes per second.
    pub(super) fn run(&self, folder: &Path) -> anyhow::Result<f64> {
        let file = folder.join("fio");
        let (name, section, amount) = match self.access {
            Access::Write => ("write", "write", FILE_BYTES),
            Access::Read => ("read", "read", FILE_BYTES),
            Access::RandomWrite => ("randwrite", "write", PIECES * self.block_bytes),
            Access::RandomRead => ("randread", "read", PIECES * self.block_bytes),
        };
        if self.access == Access::Write {
            // What is not there is fine.
            let _ = std::fs::remove_file(&file);
        }
        let output = Command::new("fio")
            .args(["--name=job", "--ioengine=psync", "--fallocate=none", "--thread"])
            .args(["--output-format=json", "--randrepeat=0"])
            .arg(format!("--filename={}", file.display()))
            .arg(format!("--rw={name}"))
            .arg(format!("--bs={}", self.block_bytes))
            .arg(format!("--size={FILE_BYTES}"))
            .arg(format!("--io_size={amount}"))
            .arg(format!("--direct={}", u8::from(self.direct)))
            .output()
            .context("fio can't be run")?;
        ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        // Warnings may stand before it.
        let json = text.find('{').map_or("", |start| &text[start..]);
        let result: serde_json::Value = serde_json::from_str(json).context("fio's answer")?;
        let job = &result["jobs"][0];
        ensure!(job["error"] == 0, "fio: the job failed: {}", job["error"]);
        job[section]["bw_bytes"].as_f64().context("fio's bandwidth")
    }

    /// A rate in the mode of the job.
    pub(super) fn describe(&self, bytes_per_second: f64) -> String {
        match self.access {
            Access::Write | Access::Read => format!("{:.2} GB/s", bytes_per_second / 1e9),
            #[expect(clippy::cast_precision_loss, reason = "a size far below 2^52")]
            Access::RandomWrite | Access::RandomRead => {
                format!("{:.0} k/s", bytes_per_second / self.block_bytes as f64 / 1e3)
            }
        }
    }
}
