//! `rackpool dca`: the last-level cache into which network cards write.

mod machine;
mod recording;
mod restore;
mod sensitivity;
mod set;
mod sim;
mod sim_options;
mod status;

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
    /// Show what this machine has: processor, ways for devices, masks of programs.
    Status(status::Options),
    /// Give devices more ways of the cache until this command ends.
    Set(set::Options),
    /// Undo the change of a `set` that was killed.
    Restore(restore::Options),
    /// Run a command with more ways for devices and without, in turn, and compare the times.
    Sensitivity(sensitivity::Options),
}

/// Runs the command.
///
/// # Errors
/// If an option can't be, or a file can't be read.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.command {
        Command::Sim(options) => sim::run(options, Style::of_stdout()),
        Command::Status(options) => status::run(options),
        Command::Set(options) => set::run(options),
        Command::Restore(options) => restore::run(options),
        Command::Sensitivity(options) => sensitivity::run(options),
    }
}
