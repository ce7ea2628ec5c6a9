//! Messages between racks, and the nodes of the world.

use rackpool_model::{FrameId, PageId};
use rackpool_proto::lease::{Lease, Revocation};
use rackpool_wire::swap::{Between, SwapId};

use crate::history::Kind;
use crate::rules::WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    Server,
    Rack(usize),
}

/// A message between racks. Requests about pages are not part of the protocol under test; the
/// production shells have their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Between(Between),
    /// The dirty lines of a page that moves; `known` is false if they are not complete.
    DirtyLines {
        swap: SwapId,
        theirs: FrameId,
        known: bool,
        words: [Option<u64>; WORDS],
    },
    Lookup {
        page: PageId,
        question: u64,
        wish: Wish,
    },
    Location {
        page: PageId,
        question: u64,
        lease: Lease,
        /// Whether the home executes writes to the page for others.
        forwards: bool,
    },
    NotHere(PageId),
    Revoke(Revocation),
    Returned(Revocation),
    /// An atomic, or a forwarded write.
    Atomic {
        call: Call,
        page: PageId,
        word: usize,
        kind: Kind,
    },
    /// A request of an exchange of objects, or its answer.
    Exchange(u64),
    /// `None`: not executed, since the page can't be written here.
    AtomicDone {
        call: Call,
        found: Option<u64>,
    },
}

/// The purpose of a lease request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Read,
    Write,
    /// To keep a replica.
    Copy,
    /// Lease prefetch at the new home of a page that goes with this swap: for reading, later for
    /// writing.
    PrefetchLease(SwapId),
}

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) operation: usize,
}

impl Message {
    /// Returns true for messages that the fabric delivers at most once, since an atomic must not be
    /// executed twice.
    pub(crate) const fn is_sent_once(&self) -> bool {
        matches!(self, Self::Atomic { .. } | Self::AtomicDone { .. })
    }
}
