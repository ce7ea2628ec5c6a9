//! The program of a campaign.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A program that stays the same whenever it is started, because its file stays open. A build puts
/// another file at the program's path; offsets that were measured in the earlier file are not those
/// of instructions of the new one, and a breakpoint there changes what an instruction does.
#[derive(Debug)]
pub struct Executable(File);

impl Executable {
    /// Opens the program at this path.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        Self(File::open(path).expect("a readable program"))
    }

    /// A path to the open file, for this process and those that it starts.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
    }
}
