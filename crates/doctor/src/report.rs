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
    /// What its daemon says, or why it says nothing.
    pub state: Result<RackState, String>,
}

/// What the daemon of a rack says of its hardware.
#[derive(Clone, Debug, Default)]
pub struct RackState {
    /// The kind of memory, as text.
    pub memory: String,
    /// The placement on NUMA nodes, as text.
    pub placement: String,
    /// The fabric, as text; it begins with the provider's name.
    pub fabric: String,
    /// Size of the memory in bytes.
    pub memory_bytes: u64,
    /// Size of the kernel's pages of the memory in bytes; 0 if it is unknown.
    pub kernel_page_bytes: u64,
    /// The NUMA nodes of a sample of these pages, with the number of pages on each.
    pub nodes: Vec<(u32, u32)>,
    /// The other racks of the pool. With RDMA there is a queue pair for each.
    pub other_racks: usize,
    /// The most bytes that may be in flight to the rack.
    pub in_flight_limit: u64,
    /// The most bytes that were in flight at once.
    pub in_flight_peak: u64,
}
