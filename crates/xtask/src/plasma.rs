//! The tests of Plasma that pyarrow brings, against `rackpool-plasma`. pyarrow comes from PyPI into
//! a virtual environment below cargo's target folder.

use std::env;
use std::path::Path;

use anyhow::{Context, Result};

use crate::invocation::Invocation;
use crate::runner::{Step, Work};
use crate::steps::{absolute_target, build_tested};
use crate::virtual_environment::VirtualEnvironment;

/// pyarrow, and what its tests import.
const REQUIREMENTS: &str = "crates/plasma/tests/pyarrow/requirements.txt";
/// Lets the tests start `rackpool-plasma`.
const RUN: &str = "crates/plasma/tests/pyarrow/run.py";
/// Succeeds if there are wheels of pyarrow 11 for this Python, and it makes virtual environments.
const PROBE: &str = "import ensurepip, sys; sys.exit(not (3, 7) <= sys.version_info < (3, 12))";
/// The limit for the tests, in seconds: several times their duration.
const LIMIT_S: &str = "300";

/// What a reason begins with for which the step is skipped.
pub(crate) const NOT_RUN: &str = "pyarrow's tests of Plasma were NOT RUN";

/// The step of `cargo x ci`.
pub(crate) fn step(root: &Path) -> Result<Step> {
    let own = env::current_exe().context("can't find this program's own file")?;
    // Processes that the tests leave running fail the step.
    let test = Invocation::built(own.to_string_lossy())
        .with("within")
        .with(LIMIT_S)
        .with(environment(root).tool("python"))
        .with(RUN)
        .with(format!("{}/debug/rackpool-plasma", absolute_target(root)))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let calls = vec![build_tested(), test];
    let Step { name, repeat, .. } = Step::run("plasma", calls.clone());
    Ok(Step { name, repeat, work: Work::RunUnless(obstacle, calls) })
}

/// Makes the virtual environment; the reason if that is not possible.
fn obstacle(root: &Path) -> Option<String> {
    const NEEDS: &str = "pyarrow 11 needs a python3 of version 3.7 to 3.11 with its module venv";
    let reason = environment(root).obstacle(root, PROBE, NEEDS)?;
    Some(format!("{NOT_RUN}: {reason}"))
}

fn environment(root: &Path) -> VirtualEnvironment {
    VirtualEnvironment::new(root, "plasma", REQUIREMENTS)
}

/// The environment of the benchmark, apart from that of the tests: these replace Plasma's store.
pub(crate) fn environment_of_peer(root: &Path) -> VirtualEnvironment {
    VirtualEnvironment::new(root, "peers/plasma", REQUIREMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pyarrow_s_tests_start_the_program_that_was_built() {
        let line = step(Path::new("/root")).unwrap().repeat;
        let (build, run) = line.split_once(" && ").unwrap();
        assert_eq!(build, build_tested().to_string());
        assert!(
            run.contains("/plasma/venv/bin/python crates/plasma/tests/pyarrow/run.py "),
            "{run}"
        );
        assert!(run.ends_with("/debug/rackpool-plasma"), "{run}");
    }
}
