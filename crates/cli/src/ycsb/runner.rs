//! Runs a plan: the load, then each workload, with all threads at once.

use super::chooser::KeyChooser;
use super::generator::AcknowledgedCounter;
use super::plan::Plan;
use super::progress::Progress;
use super::store::{StoreError, StoreFactory};
use super::summary::{Session, WorkloadResult};
use super::timeline;
use super::workload::{Operation, Workload};
use crew::Shared;

mod crew;
mod gather;

/// Why a run could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker's store could not be opened.
    #[error("worker {thread} could not open its store: {cause}")]
    Open {
        /// The worker.
        thread: usize,
        /// The store's reason.
        cause: StoreError,
    },
    /// A store failed to execute an operation.
    #[error("{operation} of {key} failed in worker {thread}, after {done} operations: {cause}")]
    Operation {
        /// The worker.
        thread: usize,
        /// The operation.
        operation: Operation,
        /// The key of the operation.
        key: String,
        /// Operations that this worker had done in this phase.
        done: u64,
        /// The store's reason.
        cause: StoreError,
    },
    /// A worker panicked: a bug in the store or here.
    #[error("a worker panicked; its message is above")]
    Panicked,
}

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
    let load = plan.load.then(|| phase(0, Job::Load).run(progress)).transpose()?;
    let workloads = plan
        .workloads
        .iter()
        .enumerate()
        .map(|(i, workload)| phase(i + 1, Job::Run(workload)).run(progress))
        .collect::<Result<_, _>>()?;
    Ok(Session { store: factory.label(), load, workloads })
}

/// The job of a phase's threads.
#[derive(Debug, Clone, Copy)]
enum Job<'a> {
    Load,
    Run(&'a Workload),
}

/// The load, or one workload.
struct Phase<'a> {
    plan: &'a Plan,
    factory: &'a dyn StoreFactory,
    records: &'a AcknowledgedCounter,
    number: usize,
    job: Job<'a>,
}

impl Phase<'_> {
    fn run(&self, progress: Progress) -> Result<WorkloadResult, RunError> {
        let present = self.present();
        let chooser = match self.job {
            Job::Load => None,
            Job::Run(workload) => Some(KeyChooser::new(workload, present, self.plan.operations)),
        };
        let shared = Shared::new(self.plan.threads, chooser);
        let bar = progress.bar(&self.title(), self.operations());
        let (reports, timeline) =
            self.run_threads(&shared, |finished| timeline::watch(finished, &shared.done, &bar))?;
        Ok(self.gather(present, reports, timeline))
    }

    /// Number of operations of this phase, all threads together.
    fn operations(&self) -> u64 {
        match self.job {
            Job::Load => self.plan.records,
            Job::Run(_) => self.plan.operations,
        }
    }

    /// Number of records at the start of this phase. Records inserted by an earlier workload belong
    /// only to workloads that insert; the others work on the records loaded, whatever ran before.
    fn present(&self) -> u64 {
        match self.job {
            Job::Run(workload) if workload.mix.insert > 0 => self.records.present(),
            _ => self.plan.records,
        }
    }

    fn title(&self) -> String {
        match self.job {
            Job::Load => "load".to_owned(),
            Job::Run(workload) => format!("workload {}", workload.name),
        }
    }
}

#[cfg(test)]
mod tests;
