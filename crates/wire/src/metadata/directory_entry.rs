use bincode::{Decode, Encode};
use rackpool_model::{Epoch, MemoryId, PageId, RackId};

use crate::swap::SwapId;

/// What the metadata server knows of one page.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DirectoryEntry {
    /// The page.
    pub page: PageId,
    /// The rack whose memory was assigned its id.
    pub born: RackId,
    /// The memory that holds it, or held it last.
    pub memory: MemoryId,
    /// Its home; `None` if the page is lost.
    pub home: Option<RackId>,
    /// The swap that moved it there; `None` if it never moved.
    pub moved: Option<LastMove>,
    /// The swap under way that holds it.
    pub locked: Option<PageLock>,
    /// The racks that have requested it and wait for their turn, next one first.
    pub waiting: Vec<RackId>,
}

/// The last move of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LastMove {
    /// The swap.
    pub swap: SwapId,
    /// The epoch that the page has since that move.
    pub epoch: Epoch,
}

/// A swap that holds a page locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageLock {
    /// The swap.
    pub swap: SwapId,
    /// The rack that requested the page.
    pub requester: RackId,
    /// The requested page.
    pub wanted: PageId,
    /// The page that the requester offers.
    pub offered: PageId,
    /// Whether its commit is being made durable; it can't be aborted any more.
    pub committing: bool,
}
