//! Swaps of pages: between a rack daemon and the metadata server, and between two rack daemons.
//!
//! Each message may be lost, doubled or late; docs/design/swap.md says why that does no harm.

use bincode::{Decode, Encode};
use rackpool_model::{Epoch, FrameId, PageId, RackId};

/// A swap: the boot of the metadata server that began it, and its number in that boot. Grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct SwapId(pub u64);

/// A page at one moment of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct PageLife {
    /// The page.
    pub page: PageId,
    /// How often it has changed hands.
    pub epoch: Epoch,
}

/// What a rack daemon tells the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum ToServer {
    /// I want `page` and give `offered` for it.
    Request {
        /// The page, at home elsewhere.
        page: PageId,
        /// A page of the sender.
        offered: PageId,
        /// Unique among the wants of this rack, in all its lives.
        nonce: u64,
    },
    /// The swap will not be; it was given up.
    Abort {
        /// The swap.
        swap: SwapId,
    },
    /// Both pages are copied, and nobody writes them but their old homes.
    Commit {
        /// The swap.
        swap: SwapId,
        /// The wanted page, and the epoch it gets with its new home.
        page: PageLife,
        /// The offered one.
        offered: PageLife,
    },
    /// What has become of the swap? If it is not committed it never will be.
    Outcome {
        /// The swap.
        swap: SwapId,
        /// The page that was to come to the sender.
        page: PageId,
    },
}

/// What the metadata server tells a rack daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum FromServer {
    /// Go on: both pages are locked for this swap.
    Granted {
        /// The swap.
        swap: SwapId,
        /// The nonce of the want.
        nonce: u64,
        /// The home of the wanted page.
        home: RackId,
    },
    /// The want is dropped.
    Refused {
        /// The nonce of the want.
        nonce: u64,
        /// Why.
        reason: RequestRefusal,
    },
    /// What has become of the swap.
    Decision {
        /// The swap.
        swap: SwapId,
        /// Whether both pages have moved. If not, they never will by this swap.
        committed: bool,
    },
}

/// Why the metadata server drops a want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum RequestRefusal {
    /// The page is at home at the requester.
    AtHome,
    /// One of the pages has no home.
    NoSuchPage,
    /// The offered page is at home elsewhere.
    NotYours,
    /// As many wait as may.
    QueueFull,
}

/// What two rack daemons tell each other about a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Between {
    /// The swap.
    pub swap: SwapId,
    /// What.
    pub message: SwapMessage,
}

/// A message about one swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum SwapMessage {
    /// Requester to home: give me your page for mine.
    Prepare {
        /// The page that the requester wants.
        wanted: PageId,
        /// Its hotness at the requester, in thousandths.
        milli: u64,
        /// Whether it is read-hot at the requester.
        read_hot: bool,
        /// The page that the requester gives.
        offered: PageLife,
        /// Whether the offered page holds anything.
        live: bool,
    },
    /// Home to requester: the page is frozen and no client or holder of a lease writes it.
    Prepared {
        /// The home's number for this acceptance.
        ticket: u64,
        /// Where the page lies.
        frame: FrameId,
        /// Its epoch.
        epoch: Epoch,
        /// Whether writes go on in it: then record that your copy is stale before you copy. Said
        /// from an acceptance's first message on, it needs no [`Self::IncompleteNoted`].
        stale: bool,
    },
    /// Requester to home: mine is frozen too, copy it.
    Copy {
        /// From [`Self::Prepared`].
        ticket: u64,
        /// Where the offered page lies.
        frame: FrameId,
        /// Whether writes go on in it: as in [`Self::Prepared`].
        stale: bool,
    },
    /// Home to requester: the offered page is copied, and only the metadata server may still give
    /// the swap up.
    Copied,
    /// Either to the other, before the commit: the page that I gave you to copy will be written
    /// after all, so your copy lacks something. Note that before you answer
    /// [`Self::IncompleteNoted`].
    CopyIncomplete,
    /// Either to the other: it is noted, and the copy will not be read before it has what it lacks.
    IncompleteNoted,
    /// Either to the other: the metadata server has said that the swap is committed.
    Committed,
    /// Either to the other, after the commit: the copy of the page that you gave has all that it
    /// lacked. Said as well by a rack that has no record of the swap.
    DirtyLinesApplied,
    /// Either to the other, after the commit: does anybody use the page that you gave?
    IsQuiesced,
    /// Either to the other, after the commit: nobody uses the page that I gave, or ever will. Said
    /// as well by a rack that has no record of the swap.
    Quiesced,
    /// Either to the other: the swap is given up, or was never known.
    Aborted,
    /// Home to requester: no.
    Refused(PrepareRefusal),
}

/// Why a home does not give a page away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum PrepareRefusal {
    /// The page is at least as hot at its home.
    Hotter,
    /// The same, but the requester mostly reads it and may cache it, read-only.
    ReadHot,
    /// The page has come lately and rests.
    Rests,
    /// The page is not live here, or in another swap.
    Unavailable,
    /// As many swaps as may be are under way, or no frame is free.
    Full,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    #[test]
    fn an_epoch_of_more_than_24_bits_is_refused() {
        let largest = (1_u32 << Epoch::BITS) - 1;
        let read = |raw: u32| decode::<Epoch>(&encode(&raw).expect("a number"));
        assert_eq!(read(largest), Ok(Epoch::new(largest)));
        assert!(read(largest + 1).is_err());
        assert!(read(u32::MAX).is_err());
    }
}
