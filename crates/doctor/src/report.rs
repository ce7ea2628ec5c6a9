//! The result of an examination.

use super::facts::Facts;
use super::measure::Measurements;
use super::verdict::Verdict;

/// Everything that is shown.
#[derive(Debug)]
pub struct Report {
    /// What the computer has.
    pub facts: Facts,
    /// What it costs; `None` if nothing was measured.
    pub measurements: Option<Measurements>,
    /// The racks of the pool, with their daemons' reports.
    pub racks: Vec<RackReport>,
    /// The recommendations and warnings.
    pub verdict: Verdict,
}

/// A rack of a running pool.
#[derive(Debug)]
pub struct RackReport {
    /// The rack's number.
    pub rack: u16,
    /// The other numbers of the same rack, if it has several daemons.
    pub siblings: Vec<u16>,
    /// Kind of memory, placement and fabric as text, or why they are unknown.
    pub says: Result<[String; 3], String>,
}
