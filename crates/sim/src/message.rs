//! What travels, and who takes part.

use rackpool_model::{FrameId, PageId};
use rackpool_proto::lease::{EndpointToken, Lease, LeaseId, Users};
use rackpool_wire::swap::{Between, SwapId};

use crate::history::Kind;
use crate::rules::WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    Server,
    Rack(usize),
}

/// A message between racks. Questions about pages stand beside the protocol under test: the shells
/// have their own for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Between(Between),
    /// What was written in a page that has moved since it was frozen; not `known`: perhaps
    /// anything.
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
    },
    NotHere(PageId),
    Revoke(PageId, EndpointToken, LeaseId, Users),
    Returned(PageId, EndpointToken, LeaseId, Users),
    /// Also a write that the home is to carry out.
    Atomic {
        call: Call,
        page: PageId,
        word: usize,
        kind: Kind,
    },
    /// `None`: it was not done, the page can't be written here.
    AtomicDone {
        call: Call,
        found: Option<u64>,
    },
}

/// What a lease is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Read,
    Write,
    /// To keep a copy.
    Copy,
    /// To read on, and then to write, at the new home of a page that goes with this swap.
    PrefetchLease(SwapId),
}

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) operation: usize,
}

impl Message {
    /// The fabric sends these once or not at all: an atomic operation must not be done twice.
    pub(crate) const fn is_sent_once(&self) -> bool {
        matches!(self, Self::Atomic { .. } | Self::AtomicDone { .. })
    }
}
