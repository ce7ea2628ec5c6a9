//! `cargo x lab`: two racks as guests of this computer, see docs/design/lab.md.

mod accelerator;
mod cache;
mod ctrl_c;
mod folder;
mod guest;
mod kernel;
mod programs;
mod racks;
mod suite;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::invocation::quoted;
use ctrl_c::Interrupts;
use racks::Errand;

const RACKS: [usize; 2] = [0, 1];

const USAGE: &str = "usage: cargo x lab [step NAME ...], or cargo x lab [--seconds N] run LINE [LINE], \
                     or cargo x lab [--seconds N] script FILE [arguments]";
/// The default limit for commands that are run by hand.
const BY_HAND: Duration = Duration::from_secs(120);

/// Runs all steps of the lab.
///
/// # Errors
/// When a step failed, or when the lab can't run on this machine.
pub(crate) fn check(root: &Path) -> Result<()> {
    run_steps(root, &suite::steps(root)?)
}

/// Runs the commands of the arguments in both racks.
///
/// # Errors
/// When a command fails in a rack, and when the arguments or the lab are invalid.
pub(crate) fn by_hand(root: &Path, arguments: &[String]) -> Result<()> {
    if let [first, steps @ ..] = arguments
        && first == "step"
    {
        return run_steps(root, &suite::chosen(root, steps)?);
    }
    let errand = parse(root, arguments)?;
    programs::require()?;
    racks::run(&lab_folder(root), &errand, &Interrupts::catch()?)
}

fn run_steps(root: &Path, steps: &[String]) -> Result<()> {
    programs::require()?;
    // Before signals are caught, so that a signal which stops this program also stops cargo.
    let errand = suite::errand(root, steps)?;
    let lab = lab_folder(root);
    racks::run(&lab, &errand, &Interrupts::catch()?)?;
    suite::verify(&lab.join("logs"), steps)
}

fn parse(root: &Path, arguments: &[String]) -> Result<Errand> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (limit, words) = match words.as_slice() {
        ["--seconds", seconds, rest @ ..] => {
            (Duration::from_secs(seconds.parse().context(USAGE)?), rest)
        }
        rest => (BY_HAND, rest),
    };
    let mut environment = environment(root);
    let scripts = match words {
        ["run", both] => [both, both].map(|line| format!("{line}\n")),
        ["run", zero, one] => [zero, one].map(|line| format!("{line}\n")),
        ["script", file, arguments @ ..] => {
            let arguments: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
            environment += &format!("LAB_ARGUMENTS=({})\n", arguments.join(" "));
            let script =
                fs::read_to_string(file).with_context(|| format!("{file} can't be read"))?;
            [script.clone(), script]
        }
        _ => bail!(USAGE),
    };
    Ok(Errand { scripts, environment, limit })
}

/// Variables for every script: the paths of the workspace and of cargo's target folder, which are
/// the same on the host and in the guests.
fn environment(root: &Path) -> String {
    assignment("LAB_WORKSPACE", root) + &assignment("LAB_TARGET", &target_folder(root))
}

/// A line of bash that exports a variable.
fn assignment(name: &str, value: &Path) -> String {
    format!("export {name}={}\n", quoted(&value.to_string_lossy()))
}

fn lab_folder(root: &Path) -> PathBuf {
    target_folder(root).join("lab")
}

fn target_folder(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Errand> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        parse(Path::new("/a b"), &words)
    }

    #[test]
    fn one_line_is_for_both_racks_and_two_are_one_for_each() {
        let both = parsed(&["run", "uname -r"]).unwrap();
        assert_eq!(
            (both.scripts, both.limit),
            (["uname -r\n".into(), "uname -r\n".into()], BY_HAND)
        );
        let apart = parsed(&["--seconds", "7", "run", "true", "false"]).unwrap();
        assert_eq!(apart.scripts, ["true\n", "false\n"]);
        assert_eq!(apart.limit, Duration::from_secs(7));
        assert!(apart.environment.contains("export LAB_WORKSPACE='/a b'\n"));
    }

    #[test]
    fn a_script_gets_its_arguments_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        fs::write(&file, "echo \"$@\"\n").unwrap();
        let errand = parsed(&["script", file.to_str().unwrap(), "a b", "it's"]).unwrap();
        assert_eq!(errand.scripts[1], "echo \"$@\"\n");
        let line = r"LAB_ARGUMENTS=('a b' 'it'\''s')";
        assert!(errand.environment.contains(line), "{}", errand.environment);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_usage() {
        let wrong: [&[&str]; 5] = [
            &["run"],
            &["run", "a", "b", "c"],
            &["--seconds", "many", "run", "true"],
            &["--seconds", "3"],
            &["shell"],
        ];
        for words in wrong {
            let error = format!("{:#}", parsed(words).unwrap_err());
            assert!(error.contains("usage: cargo x lab"), "{error}");
        }
        let error = parsed(&["script", "/nowhere"]).unwrap_err().to_string();
        assert_eq!(error, "/nowhere can't be read");
    }
}
