//! The part of a demo that shows swaps of hot pages.

use serde::{Deserialize, Serialize};

use rackpool_ycsb::WorkloadResult;

/// The same workload with and without swaps of pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ablation {
    /// A sentence that describes the runs.
    pub setting: String,
    /// The runs: for each distribution one without swaps and one with them.
    pub runs: Vec<AblationRun>,
}

/// One run of an ablation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AblationRun {
    /// Whether pages could be swapped.
    pub swap: bool,
    /// The clients' measurements.
    pub result: WorkloadResult,
    /// Number of pages that moved.
    pub moved: u64,
    /// Bytes copied by the swaps.
    pub copied_bytes: u64,
    /// Copies of pages that were made for readers in another rack.
    #[serde(default)]
    pub copies: u64,
    /// The 99th percentile of the writers' pauses, as an upper bound in microseconds.
    pub pause_p99_us: Option<u64>,
}

/// Hotness of pages over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// A sentence that describes the run.
    pub setting: String,
    /// Time of each sample, in seconds since the start.
    pub seconds: Vec<f64>,
    /// The hottest pages, sorted by number.
    pub pages: Vec<HeatRow>,
}

/// A page over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// The page.
    pub page: u32,
    /// A cell for each sample.
    pub cells: Vec<HeatCell>,
}

/// A page in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeatCell {
    /// Hotness in the rack where the page was hottest, in thousandths.
    pub milli: u64,
    /// The page's home, if it was seen.
    pub home: Option<u16>,
}
