//! The test suite of the lab: the steps in deploy/lab/steps, and the programs that they need.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::racks::Errand;
use super::{RACKS, environment};
use crate::abi;
use crate::invocation::{Invocation, quoted};

const SUITE: &str = include_str!("../../../../deploy/lab/suite.sh");
const STEPS: &str = "deploy/lab/steps";
/// The limit for all steps together, emulated on two processors that others use as well. On an
/// otherwise idle machine they take 8 to 17 minutes.
const LIMIT: Duration = Duration::from_secs(2400);

/// Tests that run in the guests: the package's folder, the test's name, and the variable that holds
/// the path of its program.
const TESTS: &[(&str, &str, &str)] = &[
    ("crates/shm", "memory_kinds", "LAB_TEST_MEMORY_KINDS"),
    ("crates/fabric", "conformance", "LAB_TEST_FABRICS"),
    ("crates/fabric-verbs", "conformance", "LAB_TEST_VERBS_CONFORMANCE"),
    ("crates/fabric-verbs", "counts", "LAB_TEST_VERBS_COUNTS"),
    ("crates/fabric-verbs", "hosts", "LAB_TEST_VERBS_HOSTS"),
    ("crates/fabric-verbs", "limits", "LAB_TEST_VERBS_LIMITS"),
    ("crates/fabric-verbs", "processes", "LAB_TEST_VERBS_PROCESSES"),
    ("crates/fabric-verbs", "registration", "LAB_TEST_VERBS_REGISTRATION"),
    ("crates/fabric-verbs", "unauthenticated_peers", "LAB_TEST_VERBS_UNAUTHENTICATED"),
    ("crates/rrpc", "verbs", "LAB_TEST_RRPC_VERBS"),
    ("tests", "fencing", "LAB_TEST_FENCING"),
];

/// The step with the peer that is written with the package ibverbs; its test, in `tests/abi`; and
/// the variable that holds the path of the test's program, empty where it can't be built.
const PEER: (&str, &str, &str) = ("52-peer", "peer", "LAB_TEST_ABI_PEER");

/// Builds the programs that the steps need, and returns the work of the racks.
pub(super) fn errand(root: &Path, steps: &[String]) -> Result<Errand> {
    let cargo = Invocation::cargo;
    cargo("build --quiet --locked --workspace --exclude rackpool-xtask --bins").run(root)?;
    let mut environment = environment(root);
    environment += &format!("LAB_ARGUMENTS=({})\n", steps.join(" "));
    // All packages at once, as the step `test` builds them; other features would cause a rebuild.
    let build = cargo("test --quiet --locked --workspace --no-run --message-format json");
    let names: BTreeSet<&str> = TESTS.iter().map(|(_, test, _)| *test).collect();
    let build = names.into_iter().fold(build, |build, test| build.with("--test").with(test));
    let messages = build.output(root)?;
    for (folder, test, variable) in TESTS {
        let manifest = root.join(folder).join("Cargo.toml");
        let program = executable(&messages, &manifest, test)
            .with_context(|| format!("cargo names no program for the test {test} in {folder}"))?;
        environment += &format!("export {variable}={}\n", quoted(&program));
    }
    let (step, _, variable) = PEER;
    if steps.iter().any(|name| name == step) {
        environment += &format!("export {variable}={}\n", quoted(&peer(root)?));
    }
    Ok(Errand { scripts: [SUITE.into(), SUITE.into()], environment, limit: LIMIT })
}

/// Builds the peer that is written with ibverbs. Returns the path of its program, or nothing where
/// it can't be built.
fn peer(root: &Path) -> Result<String> {
    let (call, missing) = abi::test(Path::new("/"));
    if let Some(why) = missing {
        println!("!!!! lab: the peer written with ibverbs is SKIPPED: {why} !!!!");
        return Ok(String::new());
    }
    let (_, test, _) = PEER;
    let arguments = ["--quiet", "--no-run", "--message-format", "json", "--test", test];
    let messages = arguments.into_iter().fold(call, Invocation::with).output(root)?;
    executable(&messages, &root.join(abi::MANIFEST), test)
        .with_context(|| format!("cargo names no program for the test {test} in tests/abi"))
}

/// The names of all steps, sorted.
pub(super) fn steps(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(STEPS)).context(STEPS)? {
        let name = entry?.file_name().into_string();
        names.extend(name.iter().filter_map(|name| name.strip_suffix(".sh")).map(str::to_owned));
    }
    names.sort();
    ensure!(!names.is_empty(), "{STEPS} has no steps");
    Ok(names)
}

/// The steps with these names.
pub(super) fn chosen(root: &Path, names: &[String]) -> Result<Vec<String>> {
    let all = steps(root)?;
    let unknown = names.iter().find(|name| !all.contains(name));
    if let Some(unknown) = unknown {
        bail!("there is no step `{unknown}`; there are {}", all.join(", "));
    }
    ensure!(!names.is_empty(), "name a step: {}", all.join(", "));
    Ok(all.into_iter().filter(|step| names.contains(step)).collect())
}

/// The program of the test `name` of a package, from cargo's messages: one JSON value in each line.
fn executable(messages: &str, manifest: &Path, name: &str) -> Option<String> {
    let of_package =
        |value: &Value| value["manifest_path"].as_str().map(Path::new) == Some(manifest);
    let values = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut of_test = values.filter(|value| of_package(value) && value["target"]["name"] == name);
    of_test.find_map(|value| value["executable"].as_str().map(str::to_owned))
}

/// Checks the racks' logs.
///
/// # Errors
/// When the logs do not say of every step that it passed in both racks.
pub(super) fn verify(logs: &Path, steps: &[String]) -> Result<()> {
    for rack in RACKS {
        let log = logs.join(format!("rack{rack}/output"));
        let log = fs::read_to_string(&log).with_context(|| format!("{} is gone", log.display()))?;
        let missing = not_passed(&log, steps);
        ensure!(
            missing.is_empty(),
            "rack {rack} does not say that it passed {}",
            missing.join(", ")
        );
    }
    for rack in RACKS {
        // Only some steps write a report.
        let report = fs::read_to_string(logs.join(format!("rack{rack}/report")));
        report
            .iter()
            .flat_map(|text| text.lines())
            .for_each(|line| println!("rack {rack}: {line}"));
    }
    println!("lab: {} steps passed in both racks", steps.len());
    Ok(())
}

fn not_passed<'a>(log: &str, steps: &'a [String]) -> Vec<&'a str> {
    let passed = |step: &str| log.lines().any(|line| line.strip_prefix("passed ") == Some(step));
    steps.iter().map(String::as_str).filter(|step| !passed(step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_test_is_found_in_what_cargo_prints() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/a","target":{"name":"hosts"},"executable":null}"#,
            "\nwarning: not JSON\n",
            r#"{"manifest_path":"/a","target":{"name":"other"},"executable":"/t/other-1"}"#,
            "\n",
            r#"{"manifest_path":"/b","target":{"name":"hosts"},"executable":"/t/hosts-2"}"#,
            "\n",
            r#"{"manifest_path":"/a","target":{"name":"hosts"},"executable":"/t/hosts-3"}"#,
        );
        let found = |manifest: &str, name| executable(messages, Path::new(manifest), name);
        assert_eq!(found("/a", "hosts").unwrap(), "/t/hosts-3");
        assert_eq!(found("/b", "hosts").unwrap(), "/t/hosts-2");
        assert_eq!(found("/b", "other"), None);
    }

    #[test]
    fn the_peer_has_its_step_and_its_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let (step, test, variable) = PEER;
        let script = root.join(STEPS).join(format!("{step}.sh"));
        assert!(fs::read_to_string(script).unwrap().contains(&format!("${variable}")));
        let manifest = root.join(abi::MANIFEST);
        assert!(manifest.with_file_name("tests").join(format!("{test}.rs")).exists());
    }

    #[test]
    fn a_step_that_a_rack_does_not_speak_of_has_not_passed() {
        let steps = ["10-devices".to_owned(), "20-memory".into()];
        assert!(not_passed("passed 10-devices\npassed 20-memory\n", &steps).is_empty());
        assert_eq!(not_passed("passed 10-devices\nfailed 20-memory\n", &steps), ["20-memory"]);
        assert_eq!(not_passed("passed 10-devices-too\n", &steps).len(), 2);
    }

    #[test]
    fn the_steps_are_those_of_the_folder_in_order() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(STEPS);
        fs::create_dir_all(&folder).unwrap();
        assert!(steps(root.path()).is_err());
        for name in ["20-memory.sh", "10-devices.sh", "notes.md"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(steps(root.path()).unwrap(), ["10-devices", "20-memory"]);
        let chosen = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            chosen(root.path(), &names)
        };
        assert_eq!(chosen(&["20-memory"]).unwrap(), ["20-memory"]);
        assert!(chosen(&[]).is_err());
        let error = chosen(&["30-pool"]).unwrap_err().to_string();
        assert_eq!(error, "there is no step `30-pool`; there are 10-devices, 20-memory");
    }
}
