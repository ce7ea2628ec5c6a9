//! What a demo tells about pages that move.

use serde::{Deserialize, Serialize};

use crate::ycsb::WorkloadResult;

/// The same workload with and without moving pages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ablation {
    /// What was run, in a sentence.
    pub setting: String,
    /// The runs: of each distribution one without and one with.
    pub runs: Vec<AblationRun>,
}

/// One run of an ablation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AblationRun {
    /// Whether pages could move.
    pub swap: bool,
    /// What the clients measured.
    pub result: WorkloadResult,
    /// Pages that moved.
    pub moved: u64,
    /// Bytes copied for that.
    pub copied_bytes: u64,
    /// Copies of pages that were made to be read elsewhere.
    #[serde(default)]
    pub copies: u64,
    /// The bound that 99 % of the writers' pauses kept to, in microseconds.
    pub pause_p99_us: Option<u64>,
}

/// How hot pages were over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// What was run meanwhile, in a sentence.
    pub setting: String,
    /// When each look was, in seconds since the start.
    pub seconds: Vec<f64>,
    /// The hottest pages, by their numbers.
    pub pages: Vec<HeatRow>,
}

/// A page over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// The page.
    pub page: u32,
    /// A cell for each look.
    pub cells: Vec<HeatCell>,
}

/// A page at one look.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeatCell {
    /// Its hotness in the rack where it was hottest, in thousandths.
    pub milli: u64,
    /// The rack where it lived, if that was seen.
    pub home: Option<u16>,
}
