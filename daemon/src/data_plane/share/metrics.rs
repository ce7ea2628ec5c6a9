//! Metrics of page sharing.

use rackpool_sync::atomic::AtomicU64;
use rackpool_wire::control::ShareStatus;

use crate::data_plane::command::get;

/// Metrics of page sharing, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct ShareMetrics {
    /// Pages of this rack that are shared now.
    pub(crate) shared: AtomicU64,
    /// How often the sharing of a page of this rack began.
    pub(crate) begun: AtomicU64,
    /// How often a sharing ended because of a writer.
    pub(crate) ended: AtomicU64,
    /// Copies that this rack keeps now.
    pub(crate) copies: AtomicU64,
    /// Copies of other racks' pages that were made.
    pub(crate) made: AtomicU64,
    /// Reads of copies that clients have sampled, each weighted by the reads it stands for.
    pub(crate) reads: AtomicU64,
}

impl ShareMetrics {
    /// Returns all metrics, for operators.
    pub(crate) fn status(&self) -> ShareStatus {
        ShareStatus {
            shared: get(&self.shared),
            begun: get(&self.begun),
            ended: get(&self.ended),
            copies: get(&self.copies),
            made: get(&self.made),
            reads: get(&self.reads),
        }
    }
}
