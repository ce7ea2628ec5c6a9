//! What a demo tells about the programs for people who write no code.

use serde::{Deserialize, Serialize};

use crate::ycsb::WorkloadResult;

/// The key-value service and the mount at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Companions {
    /// YCSB through the service.
    pub service: Vec<WorkloadResult>,
    /// What was done in the mounts, in order.
    pub mount: Vec<MountStep>,
    /// What could not be run on this machine, and why.
    pub left_out: Vec<String>,
}

/// Something that was done in a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountStep {
    /// What, in words.
    pub what: String,
    /// Bytes of contents; 0 where they don't count.
    pub bytes: u64,
    /// Files.
    pub files: u64,
    /// How long it took.
    pub seconds: f64,
}

impl MountStep {
    /// How much it was.
    #[must_use]
    pub fn amount(&self) -> String {
        match (self.bytes, self.files) {
            (0, files) => format!("{} small files", crate::ycsb::grouped(files)),
            (bytes, _) => format!("a file of {} MiB", bytes >> 20),
        }
    }

    /// How fast it was.
    #[must_use]
    pub fn rate(&self) -> String {
        let seconds = self.seconds.max(f64::MIN_POSITIVE);
        match self.bytes {
            0 => {
                let rate = crate::ycsb::rounded(self.files as f64 / seconds);
                format!("{} files/s", crate::ycsb::grouped(rate))
            }
            bytes => {
                let rate = crate::ycsb::rounded(bytes as f64 / seconds / 1e6);
                format!("{} MB/s", crate::ycsb::grouped(rate))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_in_files_or_in_bytes() {
        let step = |bytes, files| MountStep { what: String::new(), bytes, files, seconds: 0.5 };
        let large = step(64 << 20, 1);
        assert_eq!((large.amount(), large.rate()), ("a file of 64 MiB".into(), "134 MB/s".into()));
        let small = step(0, 1000);
        assert_eq!(
            (small.amount(), small.rate()),
            ("1,000 small files".into(), "2,000 files/s".into())
        );
    }
}
