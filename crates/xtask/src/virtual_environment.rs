//! A virtual environment of Python below cargo's target folder, with packages of PyPI.

use std::path::Path;

use crate::invocation::Invocation;
use crate::steps::absolute_target;

/// A virtual environment.
pub(crate) struct VirtualEnvironment {
    folder: String,
    /// The file with the packages and their versions.
    requirements: &'static str,
}

impl VirtualEnvironment {
    /// The environment in the folder `NAME/venv` below cargo's target folder.
    pub(crate) fn new(root: &Path, name: &str, requirements: &'static str) -> Self {
        Self { folder: format!("{}/{name}/venv", absolute_target(root)), requirements }
    }

    /// A program of the environment.
    pub(crate) fn tool(&self, name: &str) -> String {
        format!("{}/bin/{name}", self.folder)
    }

    /// The calls that make the environment and install its packages.
    pub(crate) fn make(&self) -> [Invocation; 2] {
        let environment =
            Invocation::built("python3").with("-m").with("venv").with(self.folder.as_str());
        let packages = Invocation::built(self.tool("pip"))
            .with("install")
            .with("--quiet")
            .with("--disable-pip-version-check")
            .with("--only-binary")
            .with(":all:")
            .with("-r")
            .with(self.requirements);
        [environment, packages]
    }

    /// Makes the environment if `probe` succeeds, a program for the Python of this machine. Returns
    /// why that is not possible: `needs`, or the call that failed.
    pub(crate) fn obstacle(&self, root: &Path, probe: &str, needs: &str) -> Option<String> {
        if !Invocation::built("python3").with("-c").with(probe).succeeds(root) {
            return Some(needs.to_owned());
        }
        let failed = self.make().into_iter().find(|call| !call.succeeds(root))?;
        Some(format!("`{failed}` fails; it needs PyPI or a mirror"))
    }
}
