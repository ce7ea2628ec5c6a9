//! Runs a plan: the load, then each workload, with all threads at once.

mod crew;
mod gather;
mod phase;

use super::chooser::KeyChooser;
use super::generator::AcknowledgedCounter;
use super::plan::Plan;
use super::progress::Progress;
use super::run_error::RunError;
use super::store::StoreFactory;
use super::summary::{Session, WorkloadResult};
use super::timeline;
use crew::Shared;
use phase::{Job, Phase};

/// Runs the plan on the stores of `factory`.
///
/// Operations that find no record, and values that fail verification, are counted: see
/// [`Session::problems`].
///
/// # Errors
/// The error of the first store that cannot be opened or fails an operation; the other workers then
/// stop.
pub fn run(
    plan: &Plan,
    factory: &dyn StoreFactory,
    progress: Progress,
) -> Result<Session, RunError> {
    let records = AcknowledgedCounter::new(plan.records);
    let phase = |number, job| Phase { plan, factory, records: &records, number, job };
    let load = plan.load.then(|| run_phase(&phase(0, Job::Load), progress)).transpose()?;
    let workloads = plan
        .workloads
        .iter()
        .enumerate()
        .map(|(i, workload)| run_phase(&phase(i + 1, Job::Run(workload)), progress))
        .collect::<Result<_, _>>()?;
    Ok(Session { store: factory.label(), load, workloads })
}

fn run_phase(phase: &Phase<'_>, progress: Progress) -> Result<WorkloadResult, RunError> {
    let present = phase.present();
    let chooser = match phase.job {
        Job::Load => None,
        Job::Run(workload) => Some(KeyChooser::new(workload, present, phase.plan.operations)),
    };
    let shared = Shared::new(phase.plan.threads, chooser);
    let bar = progress.bar(&phase.title(), phase.operations());
    let (reports, timeline) =
        phase.run_threads(&shared, |finished| timeline::watch(finished, &shared.done, &bar))?;
    Ok(phase.gather(present, reports, timeline))
}

#[cfg(test)]
mod tests;
