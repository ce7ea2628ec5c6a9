//! `rackpool numa`: what the NUMA nodes of memory and threads cost.

mod output;
mod study;
mod study_options;

use rackpool_output::Style;

use study_options::StudyOptions;

/// What is done about NUMA nodes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

/// The ways.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Measure one-sided operations with the registered memory on the card's node and on another
    /// one, in pairs, for each combination of the values given.
    Study(Box<StudyOptions>),
}

/// Runs the command.
///
/// # Errors
/// If an option can't be, or a measurement fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Command::Study(options) = &options.command;
    study::run(options, Style::of_stdout())
}
