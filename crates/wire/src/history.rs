//! What a rack daemon knows of pages: their hotness, and the history of attempts to move or share
//! them.

use bincode::{Decode, Encode};
use rackpool_model::{PageId, RackId};

use crate::swap::{PrepareRefusal, RequestRefusal};

/// The most pages of one [`ControlReply::TopPages`](crate::control::ControlReply::TopPages).
pub const MAX_TOP_PAGES: u16 = 256;

/// The hotness of a page in one rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageHeat {
    /// The page.
    pub page: PageId,
    /// Its hotness in that rack, in thousandths; 1000 if it is unused.
    pub milli: u64,
    /// Reads since its counters last restarted.
    pub reads: u32,
    /// Writes since its counters last restarted.
    pub writes: u32,
    /// Whether it is hot in that rack.
    pub hot: bool,
    /// Whether it is hot and mostly read.
    pub read_hot: bool,
    /// Whether that rack is its home.
    pub at_home: bool,
}

/// What a rack's daemon knows of a page.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageHistory {
    /// Its hotness.
    pub heat: PageHeat,
    /// The threshold above which a page is hot in that rack, in thousandths.
    pub hot_milli: u64,
    /// Whether it rests: it arrived recently and is not given away.
    pub rests: bool,
    /// Its history, oldest first.
    pub notes: Vec<PageNote>,
}

/// An entry of a page's history, as one rack saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageNote {
    /// First occurrence, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Last repetition without another event in between, in milliseconds since 1970.
    pub last_unix_ms: u64,
    /// The number of occurrences.
    pub times: u32,
    /// The page's hotness in this rack at the last occurrence, in thousandths.
    pub milli: u64,
    /// The event.
    pub event: PageHistoryEvent,
}

/// An event in the history of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PageHistoryEvent {
    /// The page was hot here; this rack requested it from the metadata server.
    Requested {
        /// The page offered in exchange.
        offered: PageId,
    },
    /// The page was hot here, but this rack had neither a free page nor a cold one to offer.
    NoColdPage,
    /// The metadata server refused the request.
    RequestRefused(RequestRefusal),
    /// The page's home refused to prepare the swap.
    PrepareRefused(PrepareRefusal),
    /// This rack, the page's home, refused to prepare a swap.
    Refused {
        /// The rack that requested it.
        requester: RackId,
        /// Its hotness at the requester, in thousandths.
        milli: u64,
        /// The reason.
        reason: PrepareRefusal,
    },
    /// This rack, the page's home, accepted a swap and froze the page.
    Prepared {
        /// The rack that gets it.
        requester: RackId,
        /// Its hotness at the requester, in thousandths.
        milli: u64,
    },
    /// The swap was aborted; the page stayed at its home.
    Aborted,
    /// The page arrived here.
    Arrived,
    /// The page departed to its new home.
    Departed,
    /// This rack, the page's home, began to share it: other racks may keep replicas.
    Shared,
    /// The sharing ended: no replica is left, and the page can be written.
    Unshared,
    /// This rack keeps a replica that its clients read.
    Copied,
    /// The replica here ended: it was called back, its lease expired, or its frame was needed.
    CopyGone,
}

impl PageHistoryEvent {
    /// Returns true if `self` repeats `before`: they are equal except for hotness and the offered
    /// page.
    #[must_use]
    pub fn is_again(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Requested { .. }, Self::Requested { .. }) => true,
            (
                Self::Refused { requester, reason, .. },
                Self::Refused { requester: other, reason: before, .. },
            ) => (requester, reason) == (other, before),
            (Self::Prepared { requester, .. }, Self::Prepared { requester: other, .. }) => {
                requester == other
            }
            _ => self == before,
        }
    }
}
