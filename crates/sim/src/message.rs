//! What travels, and who takes part.

use rackpool_model::PageId;
use rackpool_proto::lease::{EndpointToken, Lease, LeaseId, Users};
use rackpool_wire::swap::Between;

use crate::history::Kind;

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
    Atomic {
        call: Call,
        page: PageId,
        word: usize,
        kind: Kind,
    },
    /// `None`: it was not done, the page is not live here.
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
