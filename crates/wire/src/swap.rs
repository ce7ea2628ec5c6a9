//! Messages about page swaps: between a rack daemon and the metadata server, and between two rack
//! daemons.
//!
//! Each message may be lost, duplicated or delayed; docs/design/swap.md shows why that is safe.

use bincode::{Decode, Encode};
use rackpool_model::{Epoch, FrameId, PageId, RackId};

/// The number of a swap: `boot << 32 | counter` of the metadata server. Numbers grow and are never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct SwapId(pub u64);

/// A page in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct PageLife {
    /// The page.
    pub page: PageId,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A message of a rack daemon to the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum ToServer {
    /// Request `page` in exchange for `offered`. Repeated until the metadata server answers.
    Request {
        /// The requested page, whose home is another rack.
        page: PageId,
        /// The page offered, whose home is the sender.
        offered: PageId,
        /// Unique among the requests of this rack in all incarnations.
        nonce: u64,
    },
    /// The requester gives the swap up before it has sent `Commit`.
    Abort {
        /// The swap.
        swap: SwapId,
    },
    /// Both racks have copied their incoming page, and are in doubt; only the old homes still
    /// write. The requester repeats it until the decision.
    Commit {
        /// The swap.
        swap: SwapId,
        /// The requested page with its epoch at the new home.
        page: PageLife,
        /// The offered page with its epoch at the new home.
        offered: PageLife,
    },
    /// Ask for the outcome of a swap. A swap that is not committed is aborted by this.
    Outcome {
        /// The swap.
        swap: SwapId,
        /// The page that the swap moves to the sender.
        page: PageId,
    },
}

/// A message of the metadata server to a rack daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum FromServer {
    /// To the requester: both pages are locked for this swap.
    Granted {
        /// The swap.
        swap: SwapId,
        /// The nonce of the request.
        nonce: u64,
        /// The home of the requested page.
        home: RackId,
    },
    /// The request is refused and dropped.
    Refused {
        /// The nonce of the request.
        nonce: u64,
        /// The reason.
        reason: RequestRefusal,
    },
    /// The decision about the swap.
    Decision {
        /// The swap.
        swap: SwapId,
        /// True: both pages have moved, durably. False: they never will by this swap.
        committed: bool,
    },
}

/// Why the metadata server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum RequestRefusal {
    /// The requester is the page's home.
    AtHome,
    /// One of the two pages does not exist or is lost.
    NoSuchPage,
    /// The requester is not the home of the offered page.
    NotYours,
    /// The queue of requests is full.
    QueueFull,
}

/// A message between two rack daemons about a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Between {
    /// The swap.
    pub swap: SwapId,
    /// The message.
    pub message: SwapMessage,
}

/// A message of the swap protocol between the two racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum SwapMessage {
    /// Requester to home: asks the home to give `wanted` for `offered`. Answered with `Prepared`,
    /// `Refused` or `Aborted`.
    Prepare {
        /// The requested page.
        wanted: PageId,
        /// Its hotness at the requester, in thousandths.
        milli: u64,
        /// Whether it is read-hot at the requester.
        read_hot: bool,
        /// The offered page.
        offered: PageLife,
        /// Whether the offered page is allocated. A free page is not copied.
        live: bool,
    },
    /// Home to requester: the page is frozen, its writers are quiesced, and no lease that permits
    /// writing is out. The requester may copy it.
    Prepared {
        /// The home's ticket: the number of this acceptance.
        ticket: u64,
        /// The page's frame at the home.
        frame: FrameId,
        /// Its epoch.
        epoch: Epoch,
        /// Whether the home still writes the page. If so, the requester records that its copy is
        /// incomplete before it copies. A home that says so in each `Prepared` of an acceptance
        /// needs no [`Self::IncompleteNoted`].
        stale: bool,
    },
    /// Requester to home: the offered page is frozen too; the home may copy it. Answered with
    /// `Copied`, or with `Aborted` if the ticket is another.
    Copy {
        /// The ticket of [`Self::Prepared`].
        ticket: u64,
        /// The offered page's frame at the requester.
        frame: FrameId,
        /// Whether the requester still writes it; as in [`Self::Prepared`].
        stale: bool,
    },
    /// Home to requester: the offered page is copied, and the home is in doubt: only the metadata
    /// server can still abort the swap.
    Copied,
    /// Either to the other, before the commit: the sender will write the page that the receiver
    /// copies. The receiver records that its copy is incomplete, then answers
    /// [`Self::IncompleteNoted`]. Repeated until it is answered.
    CopyIncomplete,
    /// Either to the other: the record says that the copy is incomplete. The copy stays unreadable
    /// until the dirty lines are applied.
    IncompleteNoted,
    /// Either to the other: the metadata server has committed the swap. It counts like the metadata
    /// server's decision.
    Committed,
    /// Either to the other, after the commit: the copy of the page that the receiver gave is
    /// complete. Also the answer of a rack that has no record of the swap.
    DirtyLinesApplied,
    /// Either to the other, after the commit: asks whether the receiver has quiesced the page that
    /// it gave.
    IsQuiesced,
    /// Either to the other, after the commit: no access to the page that the sender gave begins at
    /// the sender any more, and all leases that it had granted of the page are back. Also the
    /// answer of a rack that has no record of the swap.
    Quiesced,
    /// Either to the other: the swap is aborted, or the sender does not know it.
    Aborted,
    /// Home to requester: the home refuses to give the page.
    Refused(PrepareRefusal),
}

/// Why a home refuses to give a page away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum PrepareRefusal {
    /// The page is at least as hot at its home.
    Hotter,
    /// As [`Self::Hotter`], but the page is read-hot at the requester, which may keep a replica
    /// instead. Also the answer for a page that is shared already.
    ReadHot,
    /// The page has arrived recently and rests.
    Rests,
    /// The page is not live here, or takes part in another swap.
    Unavailable,
    /// The home has no free record or spare frame for another swap.
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
