//! What a thread knows of a page: where it lies and what may be accessed there.

use rackpool_model::{FrameId, PageSize, PageWord, RackId};
use rackpool_shm::metadata::PageUse;

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this rack's memory, as long as the page word is this.
    Local { frame: FrameId, word: PageWord },
    /// In another rack's memory.
    Remote { home: RackId },
    /// The same, and this rack keeps a copy that can be read as long as the frame shows this
    /// number.
    Copied { home: RackId, frame: FrameId, copy: u64 },
}

/// A page's place and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) place: Place,
    /// The raw word of what the page is used for.
    pub(crate) usage: u64,
}

impl Translation {
    /// What the page is used for.
    pub(crate) fn page_use(&self, page_size: PageSize) -> PageUse {
        PageUse::from_raw(self.usage, page_size)
    }
}
