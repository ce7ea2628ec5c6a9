use std::ops::Deref;

use rackpool_fabric::{EndpointId, FabricError};

use crate::{Block, Failure, Place, Thresholds};

/// Identifies a request of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The endpoint to the peer.
    pub endpoint: EndpointId,
    /// The request's number. An endpoint repeats it only after 2^32 uses of the same slot.
    pub number: u64,
}

/// Identifies a request of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The endpoint to the peer.
    pub endpoint: EndpointId,
    /// The peer's number of the request.
    pub number: u64,
}

/// A part of a message, kept without copying.
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
    /// There is no data.
    None,
    /// The data is a part of the message.
    Message(Bytes),
    /// The first `len` bytes of a block, which the owner must give back.
    Arena {
        /// The block.
        block: Block,
        /// Length of the data, in bytes.
        len: u32,
    },
    /// The data fills this place, which is the first part of the place that the caller named.
    Place(Place),
}

impl Data {
    /// Length of the data, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Message(bytes) => bytes.len() as u64,
            Self::Arena { len, .. } => u64::from(*len),
            Self::Place(place) => u64::from(place.len),
        }
    }

    /// Returns true if there is no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An event for the owner of a machine.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallEvent {
    /// The last event of a request: its answer has arrived.
    Answered {
        /// The request.
        call: CallId,
        /// The head of the answer.
        head: Bytes,
        /// The data of the answer.
        data: Data,
    },
    /// A request has ended without an answer. If it was given up at its deadline and named a place,
    /// [`Free`](Self::Free) reports separately that the peer can no longer write there.
    Failed {
        /// The request.
        call: CallId,
        /// The cause.
        failure: Failure,
    },
    /// The peer can no longer write to the place named by a request that was given up.
    Free {
        /// The request that was given up.
        call: CallId,
        /// The place.
        place: Place,
    },
    /// A peer's request, which waits for an answer.
    Asked {
        /// Id of the request, for the answer.
        ask: RequestId,
        /// The body of the request.
        body: Bytes,
    },
    /// A peer has cancelled its request; an answer has no effect any more.
    Withdrawn {
        /// The request.
        ask: RequestId,
    },
    /// A transfer has ended. Every transfer ends exactly once, unless it is withdrawn.
    Transferred {
        /// The endpoint of the transfer.
        endpoint: EndpointId,
        /// The id that the owner chose.
        id: u64,
        /// `Ok` if the transfer was executed.
        result: Result<(), FabricError>,
    },
    /// The calibration of an endpoint has set its thresholds.
    Calibrated {
        /// The endpoint.
        endpoint: EndpointId,
        /// The new thresholds.
        thresholds: Thresholds,
    },
}
