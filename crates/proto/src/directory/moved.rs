use rackpool_model::{Epoch, MemoryId, PageId, RackId};
use rackpool_wire::swap::SwapId;

/// The durable record of a page's last move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moved {
    /// The page.
    pub page: PageId,
    /// Its home.
    pub home: RackId,
    /// The memory of that rack that holds it; the page is lost with that memory.
    pub memory: MemoryId,
    /// Its epoch there.
    pub epoch: Epoch,
    /// The swap that moved it last.
    pub swap: SwapId,
}
