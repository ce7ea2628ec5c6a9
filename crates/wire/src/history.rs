//! What a rack daemon knows of pages: how hot they are, and what became of the wish to move them.

use bincode::{Decode, Encode};
use rackpool_model::{PageId, RackId};

use crate::swap::{PrepareRefusal, RequestRefusal};

/// The most pages of one [`ControlReply::TopPages`](crate::control::ControlReply::TopPages).
pub const MAX_TOP_PAGES: u16 = 256;

/// How hot a page is in one rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageHeat {
    /// The page.
    pub page: PageId,
    /// Its hotness there, in thousandths; 1000 when it is not used.
    pub milli: u64,
    /// Reads since its counters last restarted.
    pub reads: u32,
    /// Writes since then.
    pub writes: u32,
    /// Whether it is hot there.
    pub hot: bool,
    /// Whether it is hot and mostly read.
    pub read_hot: bool,
    /// Whether it lives there.
    pub at_home: bool,
}

/// What a rack's daemon knows of a page.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageHistory {
    /// How hot it is.
    pub heat: PageHeat,
    /// Above this a page is hot there, in thousandths.
    pub hot_milli: u64,
    /// Whether it has come lately and is not given away.
    pub rests: bool,
    /// What happened, the oldest first.
    pub notes: Vec<PageNote>,
}

/// Something that happened to a page, as one rack saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PageNote {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// When it last happened again, with nothing else in between.
    pub last_unix_ms: u64,
    /// How many times it happened.
    pub times: u32,
    /// How hot the page was in this rack the last time, in thousandths.
    pub milli: u64,
    /// What.
    pub event: PageHistoryEvent,
}

/// What happens to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum PageHistoryEvent {
    /// It was hot here, and this rack asked for it.
    Wanted {
        /// What it would give for it.
        offered: PageId,
    },
    /// It was hot here, but nothing cold was there to give for it.
    NoColdPage,
    /// The metadata server dropped the wish.
    RequestRefused(RequestRefusal),
    /// Its home kept it.
    PrepareRefused(PrepareRefusal),
    /// This rack, its home, kept it.
    Kept {
        /// Who wanted it.
        requester: RackId,
        /// How hot it was there, in thousandths.
        milli: u64,
        /// Why it stayed.
        reason: PrepareRefusal,
    },
    /// This rack, its home, agreed to give it.
    Promised {
        /// To whom.
        requester: RackId,
        /// How hot it was there, in thousandths.
        milli: u64,
    },
    /// The swap was given up: it stayed where it was.
    GaveUp,
    /// It came.
    Arrived,
    /// It went.
    Departed,
    /// This rack, its home, lets others keep copies.
    Shared,
    /// Nobody has a copy any more, and it can be written.
    Unshared,
    /// A copy of it is read here.
    Copied,
    /// The copy was called back, has run out, or its frame was needed.
    CopyGone,
}

impl PageHistoryEvent {
    /// Whether the two tell the same but for figures.
    #[must_use]
    pub fn is_again(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Wanted { .. }, Self::Wanted { .. }) => true,
            (
                Self::Kept { requester, reason, .. },
                Self::Kept { requester: other, reason: before, .. },
            ) => (requester, reason) == (other, before),
            (Self::Promised { requester, .. }, Self::Promised { requester: other, .. }) => {
                requester == other
            }
            _ => self == before,
        }
    }
}
