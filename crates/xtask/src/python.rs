//! The Python wheel, which is a package apart from the workspace, and its tests. Tools come from
//! PyPI into a virtual environment below cargo's target folder.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::invocation::Invocation;
use crate::runner::{Step, Work};
use crate::steps::{absolute_target, build_tested};
use crate::virtual_environment::VirtualEnvironment;

/// The manifest of the package.
pub(crate) const MANIFEST: &str = "python/Cargo.toml";
/// The versions of maturin, which builds the wheel, and of what the tests import.
const REQUIREMENTS: &str = "python/tests/requirements.txt";
/// Succeeds if this Python is not too old and makes virtual environments.
const PROBE: &str = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))";
/// The limit for the tests, in seconds: several times their duration.
const LIMIT_S: &str = "150";

/// What a reason begins with for which the step is skipped.
pub(crate) const NOT_TESTED: &str = "the Python wheel was NOT built and tested";

/// The step of `cargo x ci`: lints, builds, installs and tests the wheel.
pub(crate) fn step(root: &Path) -> Result<Step> {
    let own = env::current_exe().context("can't find this program's own file")?;
    let target = absolute_target(root);
    let python = folder(root);
    let wheels = tested(root);
    let lint = Invocation::cargo("clippy --locked --all-targets --manifest-path")
        .with(MANIFEST)
        .with("--")
        .with("-D")
        .with("warnings")
        .env("CARGO_TARGET_DIR", python.as_str())
        .env("PYO3_PYTHON", environment(root).tool("python"));
    let install = Invocation::built(environment(root).tool("pip"))
        .with("install")
        .with("--quiet")
        .with("--force-reinstall")
        .with("--no-deps")
        .with("--no-index")
        .with("--find-links")
        .with(wheels.as_str())
        .with("rackpool");
    // Processes that the tests leave running fail the step. The script pytest, unlike
    // `python -m pytest`, does not put this folder before the installed package.
    let test = Invocation::built(own.to_string_lossy())
        .with("within")
        .with(LIMIT_S)
        .with(environment(root).tool("pytest"))
        .with("-q")
        .with("-p")
        .with("no:cacheprovider")
        .with("python/tests")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RACKPOOL_BINARIES", format!("{target}/debug"));
    let calls = vec![
        build_tested(),
        lint,
        build(root, &wheels).with("--profile").with("dev"),
        install,
        test,
    ];
    let Step { name, repeat, .. } = Step::run("python", calls.clone());
    Ok(Step { name, repeat, work: Work::RunUnless(obstacle, calls) })
}

/// Builds the wheel for users.
pub(crate) fn wheel(root: &Path) -> Step {
    // `wheels` is where maturin puts wheels that `pip install ./python` builds.
    let wheels = format!("{}/dist", folder(root));
    let build = build(root, &wheels).with("--release");
    Step::run("wheel", environment(root).make().into_iter().chain([build]).collect())
}

/// Makes the virtual environment; the reason if that is not possible.
fn obstacle(root: &Path) -> Option<String> {
    const NEEDS: &str = "there is no python3 of version 3.11 or later with its module venv \
                         (bash deploy/prepare.sh test)";
    // An older wheel may have a name that pip prefers. Without one there is no folder.
    let _ = fs::remove_dir_all(tested(root));
    let reason = environment(root).obstacle(root, PROBE, NEEDS)?;
    Some(format!("{NOT_TESTED}: {reason}"))
}

fn environment(root: &Path) -> VirtualEnvironment {
    VirtualEnvironment::new(root, "python", REQUIREMENTS)
}

/// A call of maturin that puts a wheel into `wheels`.
fn build(root: &Path, wheels: &str) -> Invocation {
    Invocation::built(environment(root).tool("maturin"))
        .with("build")
        .with("--manifest-path")
        .with(MANIFEST)
        .with("--interpreter")
        .with(environment(root).tool("python"))
        .with("--out")
        .with(wheels)
        .env("CARGO_TARGET_DIR", folder(root))
}

/// The folder of the wheel that the step tests.
fn tested(root: &Path) -> String {
    format!("{}/tested", folder(root))
}

/// The folder in cargo's target folder: other dependencies than the workspace's.
fn folder(root: &Path) -> String {
    format!("{}/python", absolute_target(root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_that_was_built_is_installed_and_tested_with_the_programs_of_the_workspace() {
        let line = step(Path::new("/root")).unwrap().repeat;
        let parts: Vec<&str> = line.split(" && ").collect();
        assert_eq!(parts.len(), 5, "{line}");
        assert_eq!(parts[0], build_tested().to_string());
        let wheels = tested(Path::new("/root"));
        assert!(parts[2].contains(&format!("--out {wheels} --profile dev")), "{line}");
        assert!(parts[3].contains(&format!("--no-index --find-links {wheels} rackpool")), "{line}");
        assert!(parts[4].contains("/debug ") && parts[4].ends_with("python/tests"), "{line}");
    }

    #[test]
    fn the_wheel_for_users_is_another_file() {
        let line = wheel(Path::new("/root")).repeat;
        assert!(line.contains("/dist --release") && !line.contains("/tested"), "{line}");
    }
}
