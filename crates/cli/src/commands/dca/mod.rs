//! `rackpool dca`: the last-level cache into which network cards write.

mod recording;
mod sim;
mod sim_options;

use rackpool_output::Style;

use sim_options::SimOptions;

/// What is done with the cache into which cards write.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

/// The ways.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Simulate the cache: how many of a card's writes hit it, what leaks to memory before a
    /// program reads it, and what packets wait, for each combination of the values given.
    Sim(Box<SimOptions>),
}

/// Runs the command.
///
/// # Errors
/// If an option can't be, or a file can't be read.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Command::Sim(options) = &options.command;
    sim::run(options, Style::of_stdout())
}
