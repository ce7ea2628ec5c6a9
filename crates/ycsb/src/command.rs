//! The command `rackpool ycsb`, from its options to its output.

use std::path::PathBuf;

use super::plan::PlanError;
use super::progress::Progress;
use super::run_error::RunError;
use super::runner::run;
use super::store::StoreFactory;
use super::summary::Session;
use super::table::render;
use super::ycsb_options::YcsbOptions;
use rackpool_output::Style;

/// Why `rackpool ycsb` failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The options are invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The run could not be finished.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The results file could not be written.
    #[error("results could not be written to {}: {cause}", file.display())]
    Write {
        /// The file given.
        file: PathBuf,
        /// The reason.
        cause: std::io::Error,
    },
    /// The table could not be printed.
    #[error("{0}")]
    Output(#[from] rackpool_output::OutputError),
    /// The run finished, but records were missing or wrong.
    #[error("records were missing or wrong, see below the table")]
    Unclean {
        /// One line for each kind of problem and workload.
        problems: Vec<String>,
    },
}

/// Runs the plan of the options, prints the table on standard output and writes `--json`.
///
/// # Errors
/// If the options are invalid, the run or the output fails, or records were missing or wrong. In
/// the last case table and JSON are written nevertheless.
pub fn command(options: &YcsbOptions, factory: &dyn StoreFactory) -> Result<Session, CommandError> {
    let plan = options.plan()?;
    for warning in &plan.warnings {
        rackpool_output::note(format_args!("warning: {warning}"));
    }
    let session = run(&plan, factory, Progress::new(options.quiet))?;
    if let Some(file) = &options.json {
        let write = serde_json::to_string_pretty(&session)
            .map_err(std::io::Error::from)
            .and_then(|json| std::fs::write(file, json + "\n"));
        write.map_err(|cause| CommandError::Write { file: file.clone(), cause })?;
    }
    rackpool_output::print(format_args!("{}", render(&session, Style::of_stdout())))?;
    let problems = session.problems();
    if problems.is_empty() { Ok(session) } else { Err(CommandError::Unclean { problems }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkloadName;
    use crate::memory_store::MemoryStores;

    fn options(json: PathBuf) -> YcsbOptions {
        YcsbOptions {
            workloads: vec![WorkloadName::A, WorkloadName::F],
            records: 200,
            operations: 1000,
            verify: true,
            json: Some(json),
            quiet: true,
            ..YcsbOptions::default()
        }
    }

    #[test]
    fn json_holds_the_whole_session() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results.json");
        let session = command(&options(file.clone()), &MemoryStores::default()).unwrap();
        let read: Session = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(read.store, session.store);
        let counts = |session: &Session| -> Vec<_> {
            session
                .phases()
                .map(|phase| (phase.name.clone(), phase.overall.buckets.clone()))
                .collect()
        };
        assert_eq!(counts(&read), counts(&session));
    }

    #[test]
    fn a_wrong_value_fails_the_command_after_writing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results.json");
        let stores = MemoryStores { corrupt_every: 10, ..MemoryStores::default() };
        let error = command(&options(file.clone()), &stores).unwrap_err();
        assert!(matches!(error, CommandError::Unclean { .. }), "{error}");
        assert!(file.exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = command(&options("/nowhere/at/all.json".into()), &MemoryStores::default());
        assert!(error.unwrap_err().to_string().contains("/nowhere/at/all.json"));
    }
}
