//! The contents of a report.

use rackpool_ycsb::WorkloadResult;
use serde::{Deserialize, Serialize};

use super::companions::Companions;
use super::objects::Objects;
use super::redis::Redis;
use super::swap_runs::{Ablation, HeatMap};

/// The contents of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoRun {
    /// Headline: `rackpool demo: YCSB on two racks`.
    pub title: String,
    /// Time of the run, formatted by [`utc`](rackpool_output::clock::utc).
    pub started: String,
    /// The machine, as names and values, see [`machine_facts`](crate::machine_facts).
    pub machine: Vec<(String, String)>,
    /// The pool (racks, fabric, latency model, memory), as names and values.
    pub pool: Vec<(String, String)>,
    /// The results, in order.
    pub results: Vec<WorkloadResult>,
    /// The same workload with and without swaps of pages, if it was run.
    #[serde(default)]
    pub ablation: Option<Ablation>,
    /// Hotness of pages during the ablation, if it was sampled.
    #[serde(default)]
    pub heat: Option<HeatMap>,
    /// Results of the key-value service and the mount, if they were run.
    #[serde(default)]
    pub companions: Option<Companions>,
    /// Times of objects, if they were measured.
    #[serde(default)]
    pub objects: Option<Objects>,
    /// The same workloads through Redis, if that was tried.
    #[serde(default)]
    pub redis: Option<Redis>,
    /// Facts that a reader needs to interpret the numbers. The page adds those that hold for every
    /// run.
    pub notes: Vec<String>,
    /// The commands that repeat the run, one for each line.
    pub commands: Vec<String>,
}
