//! `rackpool cast`: the schedules of a multicast.

mod plan_options;
mod table;

use clap::Args;
use rackpool_output::{Style, UsageError, print};
use rackpool_proto::multicast::schedule::Shape;

/// Options of the command.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Show the plan for this number of racks and blocks. Schedules: sequential, chain, tree,
    /// pipeline, hybrid. Rack 0 is the root.
    #[arg(long, required = true, num_args = 3, value_names = ["RACKS", "BLOCKS", "SCHEDULE"])]
    plan: Vec<String>,
    /// The number of racks of each pod, in order; for the hybrid schedule.
    #[arg(long, value_delimiter = ',', value_name = "RACKS")]
    pods: Vec<u16>,
}

/// Runs the command.
///
/// # Errors
/// If the numbers or the schedule are not possible.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let shape: Shape =
        plan_options::shape(&options.plan, &options.pods).map_err(UsageError::new)?;
    Ok(print(format_args!("{}", table::render(&shape, Style::of_stdout())))?)
}
