//! Results of a run, as they are printed, plotted and written as JSON.

use serde::{Deserialize, Serialize};

use rackpool_output::numbers::counted;

/// All results of one `rackpool ycsb`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The store's label.
    pub store: String,
    /// The load phase, unless it was skipped.
    pub load: Option<WorkloadResult>,
    /// The workloads, in the order they ran.
    pub workloads: Vec<WorkloadResult>,
}

impl Session {
    /// Load and workloads, in order.
    pub fn phases(&self) -> impl Iterator<Item = &WorkloadResult> {
        self.load.iter().chain(&self.workloads)
    }

    /// Problems found, one line for each kind and phase; empty if there were none.
    pub fn problems(&self) -> Vec<String> {
        self.phases().flat_map(WorkloadResult::problems).collect()
    }
}

/// The result of one phase: a workload, or the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadResult {
    /// `A` to `F`, `P` for a workload of property files, or `load`.
    pub name: String,
    /// A short description: `update heavy`.
    pub title: String,
    /// The distribution of records: `zipfian 0.99`.
    pub distribution: String,
    /// Number of racks the threads ran in.
    pub racks: usize,
    /// Worker threads.
    pub threads: usize,
    /// Records at the start (for the load: at the end).
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Operations done.
    pub operations: u64,
    /// Time from the first worker's start to the last worker's end, in seconds.
    pub seconds: f64,
    /// Operations per second over `seconds`.
    pub throughput: f64,
    /// Time from the first worker's start to the first worker's end, in seconds: until then all
    /// worked.
    #[serde(default)]
    pub all_worked_seconds: Option<f64>,
    /// Latency of all operations together.
    pub overall: LatencySummary,
    /// Latency by kind of operation. A read-modify-write also counts as a read and as an update.
    pub by_operation: Vec<OperationResult>,
    /// Results by rack of the threads.
    pub by_rack: Vec<RackResult>,
    /// Throughput over time.
    pub timeline: Vec<Sample>,
    /// Operations that found no record where one should exist.
    pub missed: u64,
    /// Values that were checked.
    pub verified: u64,
    /// Values that were never written for their key.
    pub corrupt: u64,
    /// Descriptions of the first miss and the first wrong value of each thread.
    pub examples: Vec<String>,
}

impl WorkloadResult {
    /// Describes the workload: its title, and the distribution unless the title includes it.
    pub fn description(&self) -> String {
        if self.title.ends_with(&self.distribution) {
            self.title.clone()
        } else {
            format!("{}, {}", self.title, self.distribution)
        }
    }

    /// Problems found, one line for each kind.
    pub fn problems(&self) -> Vec<String> {
        let example = self.examples.first().map(String::as_str).unwrap_or_default();
        let mut problems = Vec::new();
        if self.missed > 0 {
            problems.push(format!(
                "{}: {} of {} operations found no record (load the records first, with the same \
                 --records); {example}",
                self.name, self.missed, self.operations
            ));
        }
        if self.corrupt > 0 {
            let values = counted(self.corrupt, "value was", "values were");
            problems.push(format!("{}: {values} wrong; {example}", self.name));
        }
        problems
    }
}

/// Latency of one kind of operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationResult {
    /// `read`, `update`, `insert`, `scan` or `read-modify-write`.
    pub operation: String,
    /// Its latency.
    pub latency: LatencySummary,
}

/// The result of one rack's threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RackResult {
    /// The rack.
    pub rack: u16,
    /// Worker threads there.
    pub threads: usize,
    /// Their operations.
    pub operations: u64,
    /// Their operations per second over the duration of the phase: the rates of all racks add up to
    /// the phase's rate.
    pub throughput: f64,
    /// Latency of their operations.
    pub overall: LatencySummary,
}

/// A distribution of latencies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of operations.
    pub count: u64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 95th percentile, in nanoseconds.
    pub p95_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, in nanoseconds.
    pub p999_ns: u64,
    /// Longest, in nanoseconds.
    pub max_ns: u64,
    /// The histogram for plotting: ascending buckets, each about a tenth wider than the one before,
    /// without empty ones.
    pub buckets: Vec<Bucket>,
}

/// Operations that took no longer than `upper_ns` and longer than the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Upper bound, inclusive, in nanoseconds.
    pub upper_ns: u64,
    /// Number of operations.
    pub count: u64,
}

/// Throughput in one period of about a tenth of a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the sample, in seconds from the phase's start.
    pub seconds: f64,
    /// Operations that ended in the period.
    pub operations: u64,
    /// Operations per second in the period.
    pub throughput: f64,
}
