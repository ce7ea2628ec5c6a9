//! Puts the workers' reports together.

use std::collections::BTreeMap;

use super::{Job, Phase, Report};
use crate::ycsb::recorder::Recorder;
use crate::ycsb::summary::{RackResult, Sample, WorkloadResult};

impl Phase<'_> {
    pub(super) fn gather(
        &self,
        records: u64,
        reports: Vec<Report>,
        timeline: Vec<Sample>,
    ) -> WorkloadResult {
        let started = reports.iter().map(|report| report.started).min();
        let ended = reports.iter().map(|report| report.ended).max();
        let seconds = started
            .zip(ended)
            .map_or(0.0, |(started, ended)| ended.duration_since(started).as_secs_f64())
            .max(1e-9);
        let mut all = Recorder::new();
        let mut racks = BTreeMap::<u16, (usize, Recorder)>::new();
        for report in &reports {
            all.merge(&report.tally.recorder);
            let rack = racks.entry(self.factory.rack_of(report.thread));
            let (threads, recorder) = rack.or_insert_with(|| (0, Recorder::new()));
            *threads += 1;
            recorder.merge(&report.tally.recorder);
        }
        let by_rack = racks.into_iter().map(|(rack, (threads, recorder))| RackResult {
            rack,
            threads,
            operations: recorder.operations(),
            throughput: recorder.operations() as f64 / seconds,
            overall: recorder.overall(),
        });
        let by_rack: Vec<_> = by_rack.collect();
        let (name, title, distribution) = self.names();
        let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum();
        WorkloadResult {
            name,
            title,
            distribution,
            racks: by_rack.len(),
            threads: self.plan.threads,
            records,
            value_bytes: self.plan.layout.value_bytes(),
            operations: all.operations(),
            seconds,
            throughput: all.operations() as f64 / seconds,
            overall: all.overall(),
            by_operation: all.by_kind(),
            by_rack,
            timeline,
            missed: sum(|report| report.tally.missed),
            verified: sum(|report| report.tally.verified),
            corrupt: sum(|report| report.tally.corrupt),
            examples: reports.into_iter().flat_map(|report| report.tally.examples).collect(),
        }
    }

    fn names(&self) -> (String, String, String) {
        match self.job {
            Job::Load => ("load".into(), "insert all records".into(), "each once".into()),
            Job::Run(workload) => {
                let name = format!("{:?}", workload.name);
                (name, workload.title.into(), workload.distribution.to_string())
            }
        }
    }
}
