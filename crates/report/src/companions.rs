//! The part of a demo that shows the key-value service and the mount.

use serde::{Deserialize, Serialize};

use rackpool_output::numbers::{counted, grouped, rounded};
use rackpool_ycsb::WorkloadResult;

/// Results of the key-value service and the mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Companions {
    /// YCSB through the service.
    pub service: Vec<WorkloadResult>,
    /// The steps in the mounts, in order.
    pub mount: Vec<MountStep>,
    /// Parts that could not run on this machine, and why.
    pub left_out: Vec<String>,
}

/// A step in a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountStep {
    /// Description of the step.
    pub what: String,
    /// Bytes of contents; 0 if the files count instead.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl MountStep {
    /// The amount as text.
    #[must_use]
    pub fn amount(&self) -> String {
        match (self.bytes, self.files) {
            (0, files) => counted(files, "small file", "small files"),
            (bytes, _) => format!("a file of {} MiB", bytes >> 20),
        }
    }

    /// The rate as text.
    #[must_use]
    pub fn rate(&self) -> String {
        let seconds = self.seconds.max(f64::MIN_POSITIVE);
        match self.bytes {
            0 => {
                let rate = rounded(self.files as f64 / seconds);
                format!("{} files/s", grouped(rate))
            }
            bytes => {
                let rate = rounded(bytes as f64 / seconds / 1e6);
                format!("{} MB/s", grouped(rate))
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
