//! How large a run of the demo is.

use rackpool_ycsb::{Plan, WorkloadName, YcsbOptions};

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) records: u64,
    pub(super) operations: u64,
    pub(super) threads: usize,
    pub(super) quiet: bool,
}

impl Size {
    /// Returns the size of what runs through a socket, where an operation takes longer.
    pub(super) fn through_a_socket(self) -> Self {
        Self {
            records: (self.records / 10).max(1),
            operations: (self.operations / 40).max(1),
            ..self
        }
    }

    /// Returns the plans: the workloads of single records, then the workload of scans on the same
    /// records. A scan reads about 50 records, so the second plan has one 50th of the operations.
    pub(super) fn plans(&self) -> anyhow::Result<(Plan, Plan)> {
        let (scanning, single) =
            WorkloadName::ALL.into_iter().partition(|name| *name == WorkloadName::E);
        let points = YcsbOptions {
            workloads: single,
            records: self.records,
            operations: self.operations,
            threads: self.threads,
            verify: true,
            ..Default::default()
        };
        let scans = YcsbOptions {
            workloads: scanning,
            operations: (self.operations / 50).max(self.threads as u64),
            no_load: true,
            ..points.clone()
        };
        Ok((points.plan()?, scans.plan()?))
    }
}
