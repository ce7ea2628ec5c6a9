//! Runs steps one after the other until one fails, and prints a summary.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::invocation::Invocation;
use crate::skipped::{self, Skipped};

/// One line of the summary: a piece of work, and the command that repeats it alone.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) repeat: String,
    pub(crate) work: Work,
}

/// The work of a step.
#[derive(Debug)]
pub(crate) enum Work {
    /// Runs these commands; the step fails with the first one that fails.
    Run(Vec<Invocation>),
    /// Checks the tree below the workspace root.
    Check(fn(&Path) -> Result<()>),
    /// Runs the commands, unless the function gives a reason why this machine can't. It is called
    /// when the step's turn comes, and may prepare what the commands need.
    RunUnless(fn(&Path) -> Option<String>, Vec<Invocation>),
    /// Not possible on this machine, for this reason.
    Skip(String),
}

impl Step {
    /// A step that is repeated by the same commands.
    pub(crate) fn run(name: &'static str, calls: Vec<Invocation>) -> Self {
        let lines: Vec<String> = calls.iter().map(Invocation::to_string).collect();
        Self { name, repeat: lines.join(" && "), work: Work::Run(calls) }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    Skipped(String),
    NotReached,
}

/// Runs the steps in order up to the first failure; true when none failed.
pub(crate) fn run_all(root: &Path, steps: Vec<Step>) -> bool {
    // What an earlier run has skipped does not count.
    let _ = std::fs::remove_file(skipped::file(root));
    let mut outcomes: Vec<(&'static str, Outcome)> = Vec::new();
    let mut failed: Option<String> = None;
    for step in steps {
        let outcome = match &failed {
            Some(_) => Outcome::NotReached,
            None => run_one(root, &step),
        };
        if matches!(outcome, Outcome::Failed(_)) {
            failed = Some(step.repeat);
        }
        outcomes.push((step.name, outcome));
    }
    print!("\n==== summary ====\n{}{}", summary(&outcomes), Skipped::read(root).report());
    if let Some(repeat) = &failed {
        println!("\nfailed; to repeat only this step: {repeat}");
    }
    failed.is_none()
}

fn run_one(root: &Path, step: &Step) -> Outcome {
    let start = Instant::now();
    println!("\n==== {}: {} ====", step.name, step.repeat);
    let obstacle = match &step.work {
        Work::RunUnless(obstacle, _) => obstacle(root),
        Work::Skip(reason) => Some(reason.clone()),
        Work::Run(_) | Work::Check(_) => None,
    };
    if let Some(reason) = obstacle {
        println!("!!!! {} SKIPPED: {reason} !!!!", step.name);
        skipped::note(root, &reason);
        return Outcome::Skipped(reason);
    }
    let result = match &step.work {
        Work::Run(calls) | Work::RunUnless(_, calls) => {
            calls.iter().try_for_each(|call| call.run(root))
        }
        Work::Check(check) => check(root),
        Work::Skip(_) => Ok(()),
    };
    let took = start.elapsed();
    match result {
        Ok(()) => {
            println!("---- {} passed in {} ----", step.name, seconds(took));
            Outcome::Passed(took)
        }
        Err(error) => {
            println!("---- {} FAILED after {}: {error:#} ----", step.name, seconds(took));
            Outcome::Failed(took)
        }
    }
}

fn summary(outcomes: &[(&'static str, Outcome)]) -> String {
    let width = outcomes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, outcome): &(&'static str, Outcome)| match outcome {
        Outcome::Passed(took) => format!("{name:width$}  passed   {:>9}\n", seconds(*took)),
        Outcome::Failed(took) => format!("{name:width$}  FAILED   {:>9}\n", seconds(*took)),
        Outcome::Skipped(reason) => format!("{name:width$}  SKIPPED  {reason}\n"),
        Outcome::NotReached => format!("{name:width$}  not reached\n"),
    };
    outcomes.iter().map(line).collect()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn check(name: &'static str, check: fn(&Path) -> Result<()>) -> Step {
        Step { name, repeat: format!("cargo x {name}"), work: Work::Check(check) }
    }

    #[test]
    fn nothing_runs_after_a_failure() {
        let root = Path::new(".");
        let fails = check("fails", |_| bail!("as it should"));
        let after = check("after", |_| unreachable!("the step before it failed"));
        assert!(!run_all(root, vec![check("first", |_| Ok(())), fails, after]));
    }

    #[test]
    fn a_skipped_step_is_no_failure() {
        let skip = Step {
            name: "deny",
            repeat: "cargo deny check".into(),
            work: Work::Skip("cargo-deny is not installed".into()),
        };
        assert!(run_all(Path::new("."), vec![skip, check("last", |_| Ok(()))]));
    }

    #[test]
    fn an_obstacle_is_looked_for_when_the_turn_of_its_step_comes() {
        let step = |name, obstacle: fn(&Path) -> Option<String>| Step {
            name,
            repeat: "cargo --no-such-option".into(),
            work: Work::RunUnless(obstacle, vec![Invocation::cargo("--no-such-option")]),
        };
        let skipped = step("python", |_| Some("there is no Python".into()));
        let expected = Outcome::Skipped("there is no Python".into());
        assert_eq!(run_one(Path::new("."), &skipped), expected);
        let runs = step("python", |_| None);
        assert!(matches!(run_one(Path::new("."), &runs), Outcome::Failed(_)));
        let never = step("python", |_| unreachable!("the step before it failed"));
        assert!(!run_all(Path::new("."), vec![runs, never]));
    }

    #[test]
    fn the_summary_has_a_line_for_every_step() {
        let outcomes = [
            ("fmt", Outcome::Passed(Duration::from_millis(1250))),
            ("deny", Outcome::Skipped("not installed".into())),
            ("clippy", Outcome::Failed(Duration::from_secs(61))),
            ("test", Outcome::NotReached),
        ];
        let expected = "fmt     passed       1.2 s\n\
                        deny    SKIPPED  not installed\n\
                        clippy  FAILED      61.0 s\n\
                        test    not reached\n";
        assert_eq!(summary(&outcomes), expected);
    }
}
