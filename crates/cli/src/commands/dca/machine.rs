use std::path::PathBuf;

use rackpool_dca::hardware::{Leftover, MsrFiles};
use rackpool_output::outln;
use rackpool_shm::host::HostFiles;

/// The machine that is looked at and changed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Machine {
    /// Use the files below this folder instead of `/sys`, `/proc`, `/dev` and `/run`: for tests.
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

impl Machine {
    pub(super) fn files(&self) -> HostFiles {
        HostFiles::at(&self.root)
    }

    pub(super) fn registers(&self) -> MsrFiles {
        MsrFiles(self.files())
    }

    /// The note of a change that is in force.
    pub(super) fn note(&self) -> PathBuf {
        self.root.join("run/rackpool-dca.restore")
    }
}

/// Says what was left because someone else had changed it.
pub(super) fn tell_left(left: &[Leftover]) -> anyhow::Result<()> {
    for Leftover(what) in left {
        outln!("left as it is: {what}")?;
    }
    Ok(())
}
