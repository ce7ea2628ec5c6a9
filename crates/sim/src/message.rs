//! Messages between racks, and the nodes of the world.

use rackpool_model::{Access, FrameId, PageId};
use rackpool_proto::lease::Revocation;
use rackpool_proto::rack::LeaseAnswer;
use rackpool_wire::swap::{Between, SwapId};

use crate::calls::PageUse;
use crate::history::Kind;
use crate::rules::WORDS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    Server,
    Rack(usize),
}

/// A message between racks.
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
    LeaseAnswer {
        page: PageId,
        question: u64,
        answer: LeaseAnswer,
    },
    Revoke(Revocation),
    Returned(Revocation),
    /// An atomic, or a forwarded write.
    Operation {
        call: Call,
        page: PageId,
        word: usize,
        kind: Kind,
    },
    /// A request of an exchange of objects, or its answer.
    Exchange(u64),
    /// A request for a word, or its answer.
    Word(u64),
    OperationDone {
        call: Call,
        outcome: PageUse,
    },
}

/// What a requested lease should permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wish {
    pub(crate) access: Access,
    /// Also a replica.
    pub(crate) replica: bool,
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
        matches!(self, Self::Operation { .. } | Self::OperationDone { .. } | Self::Word(_))
    }
}
