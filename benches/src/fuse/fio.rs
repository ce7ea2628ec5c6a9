//! Jobs of `fio`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::FILE_BYTES;

/// The access pattern of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Writes a new file sequentially.
    Write,
    /// Reads the file sequentially, with none of it in the page cache.
    Read,
    /// Overwrites blocks in random order, each once.
    RandomWrite,
    /// Reads blocks in random order, each once, with none of them in the page cache.
    RandomRead,
}

/// A job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    access: Access,
    block_bytes: u64,
    direct: bool,
}

/// Blocks of a random job: enough for some seconds.
const PIECES: u64 = 60_000;

impl Job {
    pub(super) const fn new(access: Access, block_bytes: u64, direct: bool) -> Self {
        Self { access, block_bytes, direct }
    }

    /// Runs the job on a file in this folder; returns bytes per second.
    pub(super) fn run(&self, folder: &Path) -> anyhow::Result<f64> {
        let file = folder.join("fio");
        let (name, section, amount) = match self.access {
            Access::Write => ("write", "write", FILE_BYTES),
            Access::Read => ("read", "read", FILE_BYTES),
            Access::RandomWrite => ("randwrite", "write", PIECES * self.block_bytes),
            Access::RandomRead => ("randread", "read", PIECES * self.block_bytes),
        };
        if self.access == Access::Write {
            // The file may not exist.
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
        // Warnings may precede the JSON.
        let json = text.find('{').map_or("", |start| &text[start..]);
        let result: serde_json::Value = serde_json::from_str(json).context("fio's answer")?;
        let job = &result["jobs"][0];
        ensure!(job["error"] == 0, "fio: the job failed: {}", job["error"]);
        job[section]["bw_bytes"].as_f64().context("fio's bandwidth")
    }

    /// The rate in the job's unit.
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
