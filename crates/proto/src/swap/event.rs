use rackpool_model::{FrameId, PageId, PageWord, RackId};
use rackpool_wire::swap::{Between, FromServer, PrepareRefusal, RequestRefusal, SwapId, ToServer};

use super::{RECORD_WORDS, RecordError};

/// What has happened in a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackEvent {
    /// A page of another rack has been found hot.
    Heated {
        /// The page.
        page: PageId,
        /// Its hotness here, in thousandths.
        milli: u64,
        /// Whether it is read-hot here.
        read_hot: bool,
    },
    /// The metadata server has sent a message.
    ServerSent(FromServer),
    /// Another rack has sent a message.
    RackSent(RackId, Between),
    /// What [`RackAction::Quiesce`] asks for has come true.
    Quiesced(SwapId, Quiesce),
    /// A copy has ended. Each [`RackAction::Copy`] ends, in bounded time.
    Copied {
        /// The swap.
        swap: SwapId,
        /// Whether all bytes are there.
        whole: bool,
    },
    /// What [`RackAction::PrefetchLease`] asks for is done, or can't be.
    LeasePrefetched(SwapId),
    /// Somebody writes, or waits to write, a page that goes.
    WriteWanted(PageId),
    /// Another rack has sent what it has written in the page that it gives since it was frozen. The
    /// shell keeps the bytes until it has carried out what follows.
    DirtyLinesReceived {
        /// Who.
        from: RackId,
        /// The swap.
        swap: SwapId,
        /// Where the page lies there.
        theirs: FrameId,
        /// Whether all is in it. If not only the page as a whole has it.
        known: bool,
    },
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
}

/// Who must be out of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quiesce {
    /// Writers of this rack, and every holder of a lease that is good for writing. While the page
    /// is dirty-logged those may stay who note what they write; who noted it before, for another
    /// swap, may write it still: what each client noted last is to be remembered for
    /// [`RackAction::SendDirtyLines`], too.
    Writers,
    /// Writers of this rack, of a page that was dirty-logged and has just been closed. They are
    /// looked for behind a fence of this processor, for they have put up one themselves.
    DirtyLoggers,
    /// Every holder of a lease.
    Holders,
    /// Everybody of this rack; nobody else is in it any more.
    Everyone,
}

/// What the shell of a rack has to do, in this order, before the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackAction {
    /// Send to the metadata server.
    TellServer(ToServer),
    /// Send to another rack.
    TellRack(RackId, Between),
    /// Store a record: words 1 and up, then word 0.
    StoreRecord {
        /// Which of the records.
        slot: usize,
        /// Its words.
        words: [u64; RECORD_WORDS],
    },
    /// Store 0 in word 0 of a record, and nothing else: half of a record is none.
    EraseRecord {
        /// Which of the records.
        slot: usize,
    },
    /// Store a page word.
    StoreWord(FrameId, PageWord),
    /// Tell when nobody is there any more. Those of this rack are looked for behind a barrier after
    /// the last word.
    Quiesce {
        /// The swap.
        swap: SwapId,
        /// The frame.
        frame: FrameId,
        /// The page in it.
        page: PageId,
        /// Who must be out.
        who: Quiesce,
    },
    /// Nobody waits for this page to be quiesced any more.
    CancelQuiesce(SwapId, PageId),
    /// Read a page of another rack with one one-sided operation. After the commit it is read once
    /// more if that rack does not know any more what was written in it.
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
    /// Send the page's new home what was written in it since it was frozen, or that this is not
    /// known. Clients have noted what they wrote. Nobody writes it any more.
    SendDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The page's new home.
        to: RackId,
        /// Where the page lies here.
        frame: FrameId,
        /// Whether the shell knows it: its life is the one in which the page was frozen.
        known: bool,
    },
    /// Store the bytes that came with [`RackEvent::DirtyLinesReceived`] in this frame.
    ApplyDirtyLines {
        /// The swap.
        swap: SwapId,
        /// The frame.
        frame: FrameId,
    },
    /// The page will be read in that rack if the swap is committed: find out how readers of this
    /// rack reach it there, as soon as it can be read there, then tell. Its home waits for that,
    /// and not for long, before it turns its own readers away.
    PrefetchLease {
        /// The swap.
        swap: SwapId,
        /// The page.
        page: PageId,
        /// Its new home.
        to: RackId,
    },
    /// For people, and for the heat of the page.
    Record(SwapEvent),
}

/// What is worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapEvent {
    /// The page has moved here: it rests. It can be read, and will be written when its old home has
    /// left it.
    Arrived(PageId),
    /// The old home has left the page: it can be written.
    Thawed(PageId),
    /// The page has moved away.
    Departed(PageId),
    /// It is read here by nobody any more who has not looked at it before, and its new home is told
    /// so.
    Quiesced(PageId),
    /// The page was to come here, but its old home lost its memory before it had sent what was
    /// written there meanwhile.
    Lost(PageId),
    /// A swap was given up.
    GaveUp(SwapId),
    /// There is nothing cold to give for the page.
    NoColdPage(PageId),
    /// The metadata server dropped the want.
    RequestRefused(PageId, RequestRefusal),
    /// The page's home keeps it.
    PrepareRefused(PageId, PrepareRefusal),
    /// The record in this slot is damaged: it and its frames are left alone.
    Damaged(usize, RecordError),
}
