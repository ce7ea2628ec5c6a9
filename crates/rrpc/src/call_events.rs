use std::ops::Deref;

use rackpool_fabric::{EndpointId, FabricError};

use crate::{Block, Failure, Place, Thresholds};

/// A request of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// To whom it goes.
    pub endpoint: EndpointId,
    /// Its number; never used again for this endpoint.
    pub number: u64,
}

/// A request of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// Who asks.
    pub endpoint: EndpointId,
    /// The number that the peer gave it.
    pub number: u64,
}

/// A part of a message, without the rest of it being copied away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    message: Vec<u8>,
    start: usize,
    end: usize,
}

impl Bytes {
    pub(crate) fn new(message: Vec<u8>, start: usize, end: usize) -> Self {
        let end = end.min(message.len());
        Self { message, start: start.min(end), end }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.message.get(self.start..self.end).unwrap_or_default()
    }
}

/// The data of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Data {
    /// There is none.
    None,
    /// It came with the message.
    Message(Bytes),
    /// The first `len` bytes of this block, which is to be given back.
    Arena {
        /// The block.
        block: Block,
        /// How many bytes.
        len: u32,
    },
    /// All bytes of this, a part of the place that the caller named.
    Place(Place),
}

impl Data {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Message(bytes) => bytes.len() as u64,
            Self::Arena { len, .. } => u64::from(*len),
            Self::Place(place) => u64::from(place.len),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the owner is told.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallEvent {
    /// A request has its answer. It is heard of for the last time.
    Answered {
        /// Which one.
        call: CallId,
        /// What the peer says.
        head: Bytes,
        /// The data that belongs to it.
        data: Data,
    },
    /// A request has no answer. It is heard of for the last time.
    Failed {
        /// Which one.
        call: CallId,
        /// Why.
        failure: Failure,
    },
    /// Nobody writes to a place any more that a request named which was given up.
    Free {
        /// The request that was given up.
        call: CallId,
        /// The place.
        place: Place,
    },
    /// A peer asks. It waits for an answer.
    Asked {
        /// To be named in the answer.
        ask: RequestId,
        /// What is asked.
        body: Bytes,
    },
    /// A peer has given up its request: an answer goes nowhere.
    Withdrawn {
        /// Which one.
        ask: RequestId,
    },
    /// A transfer has ended; every transfer ends exactly once.
    Transferred {
        /// Over which endpoint.
        endpoint: EndpointId,
        /// The id that the owner chose.
        id: u64,
        /// Whether it was done.
        result: Result<(), FabricError>,
    },
    /// It has been measured which mode is best.
    Calibrated {
        /// Over which endpoint.
        endpoint: EndpointId,
        /// The result.
        thresholds: Thresholds,
    },
}
