//! Merges the workers' reports.

use std::collections::BTreeMap;

use super::crew::Report;
use super::phase::{Job, Phase};
use crate::latency_recorder::LatencyRecorder;
use crate::summary::{RackResult, Sample, WorkloadResult};

impl Phase<'_> {
    /// Returns the result of the phase. `records` is the number of records at the start.
    pub(super) fn gather(
        &self,
        records: u64,
        reports: Vec<Report>,
        timeline: Vec<Sample>,
    ) -> WorkloadResult {
        let mut by_rack = BTreeMap::<u16, Vec<&Report>>::new();
        for report in &reports {
            by_rack.entry(self.factory.rack_of(report.thread)).or_default().push(report);
        }
        let every: Vec<_> = reports.iter().collect();
        let (recorder, seconds) = (merged(&every), seconds(&every));
        let by_rack = by_rack.into_iter();
        let by_rack: Vec<_> =
            by_rack.map(|(rack, reports)| rack_result(rack, &reports, seconds)).collect();
        let all_worked_seconds = Some(all_worked(&every));
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
            operations: recorder.operations(),
            seconds,
            throughput: recorder.operations() as f64 / seconds,
            all_worked_seconds,
            overall: recorder.overall(),
            by_operation: recorder.by_kind(),
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
                (workload.name.into(), workload.title.into(), workload.distribution.to_string())
            }
        }
    }
}

/// Returns the result of a rack's threads. `seconds` is the duration of the phase.
fn rack_result(rack: u16, reports: &[&Report], seconds: f64) -> RackResult {
    let recorder = merged(reports);
    RackResult {
        rack,
        threads: reports.len(),
        operations: recorder.operations(),
        throughput: recorder.operations() as f64 / seconds,
        overall: recorder.overall(),
    }
}

fn merged(reports: &[&Report]) -> LatencyRecorder {
    let mut all = LatencyRecorder::new();
    for report in reports {
        all.merge(&report.tally.recorder);
    }
    all
}

/// The time from the first start to the last end, never zero.
fn seconds(reports: &[&Report]) -> f64 {
    let started = reports.iter().map(|report| report.started).min();
    let ended = reports.iter().map(|report| report.ended).max();
    let span = started.zip(ended).map(|(started, ended)| ended.duration_since(started));
    span.unwrap_or_default().as_secs_f64().max(1e-9)
}

/// The time from the first start to the first end: until then all have worked.
fn all_worked(reports: &[&Report]) -> f64 {
    let started = reports.iter().map(|report| report.started).min();
    let ended = reports.iter().map(|report| report.ended).min();
    let span = started.zip(ended).map(|(started, ended)| ended.duration_since(started));
    span.unwrap_or_default().as_secs_f64()
}
