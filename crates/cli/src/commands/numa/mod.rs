//! `rackpool numa`: the effect of NUMA placement on one-sided operations.

mod study;
mod study_figures;
mod study_options;
mod study_table;

use rackpool_output::Style;

use study_options::StudyArguments;

/// What is done about NUMA placement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

/// The ways.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Measure one-sided operations, or a key-value server, with the registered memory on the
    /// card's NUMA node and on another one, for each combination of the values given.
    Study(Box<StudyArguments>),
}

/// Runs the command.
///
/// # Errors
/// If an option can't be, the machine has one NUMA node (without --model), memory does not lie
/// where it should, or a fabric fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Command::Study(arguments) = &options.command;
    study::run(arguments, Style::of_stdout())
}
