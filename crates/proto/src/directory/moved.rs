use rackpool_model::{Epoch, MemoryId, PageId, RackId};
use rackpool_wire::swap::SwapId;

/// Where a page lives that has moved, and what brought it there. Durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moved {
    /// The page.
    pub page: PageId,
    /// Its home.
    pub home: RackId,
    /// The memory of that rack in which it lies: the page is lost with it.
    pub memory: MemoryId,
    /// The epoch it got there.
    pub epoch: Epoch,
    /// The swap that moved it last.
    pub swap: SwapId,
}
