//! One phase of a run: the load, or one workload.

use crate::generator::AcknowledgedCounter;
use crate::plan::Plan;
use crate::store::StoreFactory;
use crate::workload::Workload;

/// The job of a phase's threads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job<'a> {
    Load,
    Run(&'a Workload),
}

/// The load, or one workload.
pub(super) struct Phase<'a> {
    pub(super) plan: &'a Plan,
    pub(super) factory: &'a dyn StoreFactory,
    pub(super) records: &'a AcknowledgedCounter,
    pub(super) number: usize,
    pub(super) job: Job<'a>,
}

impl Phase<'_> {
    /// Number of operations of this phase, all threads together.
    pub(super) fn operations(&self) -> u64 {
        match self.job {
            Job::Load => self.plan.records,
            Job::Run(_) => self.plan.operations,
        }
    }

    /// Number of records at the start of this phase. Records inserted by an earlier workload belong
    /// only to workloads that insert; the others work on the records loaded, whatever ran before.
    pub(super) fn present(&self) -> u64 {
        match self.job {
            Job::Run(workload) if workload.mix.insert > 0 => self.records.present(),
            _ => self.plan.records,
        }
    }

    pub(super) fn title(&self) -> String {
        match self.job {
            Job::Load => "load".to_owned(),
            Job::Run(workload) => format!("workload {}", workload.name),
        }
    }
}
