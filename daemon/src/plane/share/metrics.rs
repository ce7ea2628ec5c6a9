//! What there is to count of sharing.

use rackpool_sync::atomic::AtomicU64;
use rackpool_wire::control::ShareStatus;

use crate::plane::command::get;

/// Counts of sharing, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct ShareMetrics {
    /// Pages of this rack that are shared now.
    pub(crate) shared: AtomicU64,
    /// How often a page of this rack began to be shared.
    pub(crate) begun: AtomicU64,
    /// How often that ended, because somebody wanted to write.
    pub(crate) ended: AtomicU64,
    /// Copies that this rack keeps now.
    pub(crate) copies: AtomicU64,
    /// Copies that were made.
    pub(crate) made: AtomicU64,
    /// Reads of copies that clients have noted, each for as many as it stands for.
    pub(crate) reads: AtomicU64,
}

impl ShareMetrics {
    /// All of them, for people.
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
