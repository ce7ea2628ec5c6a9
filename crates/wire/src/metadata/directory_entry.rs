use bincode::{Decode, Encode};
use rackpool_model::{Epoch, MemoryId, PageId, RackId};

use crate::swap::SwapId;

/// What the metadata server knows of one page.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DirectoryEntry {
    /// The page.
    pub page: PageId,
    /// The rack for whose memory its id was handed out.
    pub born: RackId,
    /// The memory in which it lives, or lived last.
    pub memory: MemoryId,
    /// The rack where it lives; `None` when it is lost.
    pub home: Option<RackId>,
    /// The swap that brought it there; `None` when it never moved.
    pub moved: Option<LastMove>,
    /// The swap under way that it takes part in.
    pub locked: Option<PageLock>,
    /// The racks that want it and wait for their turn, the next one first.
    pub waiting: Vec<RackId>,
}

/// How a page came to where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LastMove {
    /// The swap.
    pub swap: SwapId,
    /// The epoch that the page got with it.
    pub epoch: Epoch,
}

/// A swap that holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageLock {
    /// The swap.
    pub swap: SwapId,
    /// The rack that asked for it.
    pub requester: RackId,
    /// The page that the requester wants.
    pub wanted: PageId,
    /// The page that the requester gives.
    pub offered: PageId,
    /// Whether it is being made durable: it can't be given up any more.
    pub committing: bool,
}
