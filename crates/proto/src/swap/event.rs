use rackpool_model::{FrameId, PageId, PageWord, RackId};
use rackpool_wire::swap::{Between, FromServer, PrepareRefusal, RequestRefusal, SwapId, ToServer};

use super::{RECORD_WORDS, SwapRecordError};

/// An event for the swaps of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A page of another rack was found hot.
    Heated {
        /// The page.
        page: PageId,
        /// Its hotness here, in thousandths.
        milli: u64,
        /// Whether it is read-hot here.
        read_hot: bool,
    },
    /// The metadata server sent a message.
    ServerSent(FromServer),
    /// Another rack sent a message.
    RackSent(RackId, Between),
    /// The quiescence that [`PeerAction::Quiesce`] asks for is reached.
    Quiesced(SwapId, Quiesce),
    /// A copy has ended. Each [`PeerAction::Copy`] ends in bounded time.
    Copied {
        /// The swap.
        swap: SwapId,
        /// Whether all bytes were copied.
        whole: bool,
    },
    /// The new home of this page has granted a lease of it: this rack's readers can continue there.
    LeasePrefetched(PageId),
    /// A client or rack waits to write a page, which may be moving.
    WriteWanted(PageId),
    /// Another rack sent the dirty lines of the page that it gives. The shell keeps their bytes
    /// until it has executed the actions that follow.
    DirtyLinesReceived {
        /// The sender.
        from: RackId,
        /// The swap.
        swap: SwapId,
        /// The page's frame there.
        theirs: FrameId,
        /// Whether the lines are complete. If false, only the whole page has everything.
        known: bool,
    },
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// Which users must be out of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quiesce {
    /// Writers of this rack, and holders of leases that permit writing. If the page is
    /// dirty-logged, clients that log their lines may stay. A client whose last note names the
    /// page, from an earlier swap, may still store to it: the shell reads the last note of each
    /// client, also for [`PeerAction::SendDirtyLines`].
    Writers,
    /// Writers of this rack in a page whose dirty logging has just ended. The shell scans the
    /// access slots behind a fence of its own processor; a heavy barrier is not needed, since these
    /// writers execute a fence themselves.
    DirtyLoggers,
    /// Holders of any lease.
    Holders,
    /// All users of this rack; no other rack uses the frame any more.
    Everyone,
}

/// An action for the swaps of a rack. The shell executes actions in order, before the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAction {
    /// Send a message to the metadata server.
    TellServer(ToServer),
    /// Send a message to another rack.
    TellRack(RackId, Between),
    /// Store a record: words 1 and up first, word 0 last.
    StoreRecord {
        /// The index of the record.
        slot: usize,
        /// Its words.
        words: [u64; RECORD_WORDS],
    },
    /// Store 0 in word 0 of a record and nothing else, so that a crash leaves no half record.
    EraseRecord {
        /// The index of the record.
        slot: usize,
    },
    /// Store a page word.
    StoreWord(FrameId, PageWord),
    /// Report [`PeerEvent::Quiesced`] once these users are out of the frame. The shell scans the
    /// access slots of this rack behind a heavy barrier after the last word.
    Quiesce {
        /// The swap.
        swap: SwapId,
        /// The frame.
        frame: FrameId,
        /// The page in it.
        page: PageId,
        /// Which users.
        who: Quiesce,
    },
    /// Cancel the [`Quiesce`](Self::Quiesce) of this page.
    CancelQuiesce(SwapId, PageId),
    /// Copy a page of another rack with one-sided operations, in chunks. After the commit it is
    /// copied again if that rack has lost the dirty lines in a restart.
    Copy {
        /// The swap.
        swap: SwapId,
        /// The other rack.
        from: RackId,
        /// Its frame.
        theirs: FrameId,
        /// The frame of this rack.
        ours: FrameId,
    },
    /// Send the dirty lines of the page, those of clients' dirty logs included, to its new home, or
    /// that they are not known. No client writes the page any more.
    SendDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The page's new home.
        to: RackId,
        /// The page's frame here.
        frame: FrameId,
        /// Whether the shell knows all dirty lines: the page was frozen in this incarnation.
        known: bool,
    },
    /// Store the bytes of [`PeerEvent::DirtyLinesReceived`] in this frame.
    ApplyDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The frame.
        frame: FrameId,
    },
    /// Prefetch a lease of the page at its new home, and report [`PeerEvent::LeasePrefetched`] when
    /// the page is readable there. This rack waits for it, for a bounded time, before it turns its
    /// own readers away.
    PrefetchLease {
        /// The page.
        page: PageId,
        /// Its new home.
        to: RackId,
    },
    /// Append to the page's history and update its hotness.
    Record(SwapEvent),
}

/// An event for a page's history and for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapEvent {
    /// The page has arrived here and rests. It can be read; it becomes writable when its old home
    /// has quiesced it.
    Arrived(PageId),
    /// The old home has quiesced the page: it can be written here.
    Thawed(PageId),
    /// The page has departed; its word is leaving.
    Departed(PageId),
    /// The page is lost: its old home lost its memory before it had sent the dirty lines.
    Lost(PageId),
    /// A swap was aborted.
    Aborted(SwapId),
    /// This rack has neither a free page nor a cold one to offer for the page.
    NoColdPage(PageId),
    /// The metadata server refused the request for the page.
    RequestRefused(PageId, RequestRefusal),
    /// The page's home refused to prepare the swap.
    PrepareRefused(PageId, PrepareRefusal),
    /// The record in this slot is damaged. The record and its frames stay unused.
    Damaged(usize, SwapRecordError),
}
