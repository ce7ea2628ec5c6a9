//! Long campaigns of the fuzz targets; `cargo test` replays their corpora.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::invocation::Invocation;
use crate::runner::{Step, Work};

const USAGE: &str = "usage: cargo x fuzz [--builtin] <target> [seconds] [seed]; the targets are the \
                     folders in fuzz/corpus";
const SECONDS: &str = "60";

/// Fuzzes one target: under libFuzzer, or with `--builtin` by mutations of its corpus only.
///
/// # Errors
/// When the arguments name no target, or an argument after it is not a number.
pub(crate) fn step(root: &Path, arguments: &[String]) -> Result<Step> {
    let (is_builtin, rest) = match arguments.split_first() {
        Some((first, rest)) if first == "--builtin" => (true, rest),
        _ => (false, arguments),
    };
    let (target, numbers) = rest.split_first().context(USAGE)?;
    let is_target = !target.contains(['/', '.']) && root.join("fuzz/corpus").join(target).is_dir();
    ensure!(is_target, "there is no target `{target}`; {USAGE}");
    let most = if is_builtin { 2 } else { 1 };
    let are_numbers = numbers.iter().all(|number| number.parse::<u64>().is_ok());
    ensure!(numbers.len() <= most && are_numbers, "{USAGE}");
    if is_builtin {
        return Ok(Step::run("fuzz", vec![builtin(target, numbers)]));
    }
    let mut step = Step::run("fuzz", vec![under_libfuzzer(target, numbers)]);
    if !Invocation::cargo("fuzz --version").succeeds(root) {
        step.work = Work::Skip(format!(
            "cargo-fuzz is not installed (cargo install --locked cargo-fuzz); without it: \
             cargo x fuzz --builtin {target} {SECONDS}"
        ));
    }
    if let Work::Run(_) = step.work {
        // libFuzzer does not create folders.
        std::fs::create_dir_all(root.join(found_inputs(target)))?;
    }
    Ok(step)
}

/// The folder for inputs that libFuzzer decides to keep.
fn found_inputs(target: &str) -> String {
    format!("fuzz/artifacts/corpus-{target}")
}

fn builtin(target: &str, numbers: &[String]) -> Invocation {
    // The test profile, since it checks arithmetic overflow.
    let run = Invocation::cargo("run --quiet -p rackpool-fuzz --").with(target);
    let run = if numbers.is_empty() { run.with(SECONDS) } else { run };
    numbers.iter().fold(run, |run, number| run.with(number))
}

fn under_libfuzzer(target: &str, numbers: &[String]) -> Invocation {
    let seconds = numbers.first().map_or(SECONDS, String::as_str);
    Invocation::cargo("fuzz run --fuzz-dir fuzz/libfuzzer")
        .with(target)
        // libFuzzer writes new inputs to the first folder and only reads the committed ones.
        .with(found_inputs(target))
        .with(format!("fuzz/corpus/{target}"))
        .with("--")
        .with(format!("-max_total_time={seconds}"))
        .with("-max_len=4096")
        // The sanitizer needs flags that a stable compiler accepts only with this variable.
        .env("RUSTC_BOOTSTRAP", "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(arguments: &[&str]) -> Result<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        step(&root, &arguments).map(|step| step.repeat)
    }

    #[test]
    fn targets_are_folders_of_the_corpus() {
        assert!(repeat(&[]).is_err());
        assert!(repeat(&["no-such-target"]).is_err());
        assert!(repeat(&["../corpus"]).is_err());
        assert!(repeat(&["slab", "long"]).is_err());
        assert!(repeat(&["slab", "1", "2"]).is_err());
        assert_eq!(
            repeat(&["--builtin", "slab", "5", "7"]).unwrap(),
            "cargo run --quiet -p rackpool-fuzz -- slab 5 7"
        );
        let line = repeat(&["slab", "9"]).unwrap();
        assert!(line.starts_with("RUSTC_BOOTSTRAP=1 cargo fuzz run "), "{line}");
        assert!(line.ends_with("fuzz/corpus/slab -- -max_total_time=9 -max_len=4096"), "{line}");
    }
}
