//! `rackpool cast`: copies an object into many racks, or shows how.

mod object;
mod plan_options;
mod progress;
mod table;

use clap::Args;
use rackpool_objects::CastSchedule;
use rackpool_output::{Style, UsageError, print};
use rackpool_proto::multicast::schedule::Shape;

use super::objects::Id;

/// Options of the command.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Id of the object, written as `rackpool objects ls` shows it.
    #[arg(required_unless_present = "plan", conflicts_with = "plan")]
    id: Option<Id>,
    #[command(flatten)]
    object: object::ObjectOptions,
    /// Copy nothing, but show the plan for this number of racks and blocks. Schedules: sequential,
    /// chain, tree, pipeline, interleaved, hybrid. Rack 0 is the root.
    #[arg(long, num_args = 3, value_names = ["RACKS", "BLOCKS", "SCHEDULE"])]
    plan: Option<Vec<String>>,
    /// The number of racks of each pod, in order; for the hybrid schedule.
    #[arg(long, value_delimiter = ',', value_name = "RACKS")]
    pods: Vec<u16>,
}

/// Runs the command.
///
/// # Errors
/// If the options are not possible, the pool fails, or a rack does not get the object.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let Options { id, object, plan, pods } = options;
    match (id, plan) {
        (Some(id), _) => object::run(id, object, pods),
        (None, plan) => {
            let plan = plan.as_deref().unwrap_or_default();
            let shape: Shape = plan_options::shape(plan, pods).map_err(UsageError::new)?;
            Ok(print(format_args!("{}", table::render(&shape, Style::of_stdout())))?)
        }
    }
}

/// The schedule of this name.
fn schedule(name: &str) -> Result<CastSchedule, String> {
    CastSchedule::ALL.into_iter().find(|one| one.name() == name).ok_or_else(|| {
        let names = CastSchedule::ALL.map(CastSchedule::name).join(", ");
        format!("'{name}' is no schedule: choose one of {names}")
    })
}
