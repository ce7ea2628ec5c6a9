//! A thread's entry for a page: where the page is and what it is used for.

use rackpool_model::{FrameId, PageSize, PageWord, RackId};
use rackpool_shm::metadata::PageUse;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the frame `frame` of this rack, while that frame's page word is `word`.
    Local { frame: FrameId, word: PageWord },
    /// In the memory of the rack `home`.
    Remote { home: RackId },
    /// In the part of the sibling `home`, or found through it.
    Sibling { home: RackId },
    /// In the memory of the rack `home`, with a copy in this rack. The copy can be read while
    /// number `copy` is published for the frame `frame`.
    Copied { home: RackId, frame: FrameId, copy: u64 },
}

/// A page's place and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) place: Place,
    /// The raw word that encodes the use of the page (slab or run).
    pub(crate) usage: u64,
}

impl Translation {
    /// The decoded use of the page.
    pub(crate) fn page_use(&self, page_size: PageSize) -> PageUse {
        PageUse::from_raw(self.usage, page_size)
    }
}
