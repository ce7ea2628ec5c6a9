use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Instant;

use rackpool_fabric::EndpointId;

use super::MOST_OPEN;
use crate::budget::Charge;
use crate::calibration::Calibration;
use crate::flow::Flow;
use crate::slots::Slots;
use crate::{Block, Bytes, CallId, Overdue, Place, RemotePlace, RequestId, Thresholds, message};

/// The state of one endpoint, that is, of the traffic with one peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) calls: Slots<Open>,
    /// The peer's open requests, by the peer's numbers.
    pub(super) asks: BTreeMap<u64, OpenRequest>,
    pub(super) flow: Flow,
    pub(super) thresholds: Thresholds,
    pub(super) calibration: Option<Calibration>,
    /// The number of calibrations that measured too little.
    pub(super) vain: u32,
    /// When the next calibration begins; `None` if none is scheduled.
    pub(super) again: Option<Instant>,
    /// Nothing more is sent; open requests end with the endpoint.
    pub(super) is_ending: bool,
    /// True while the endpoint is in the machine's queue of endpoints with something to offer.
    pub(super) is_queued: bool,
}

impl Peer {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            calls: Slots::new(MOST_OPEN),
            asks: BTreeMap::new(),
            flow: Flow::new(depth),
            thresholds: Thresholds::default(),
            calibration: None,
            vain: 0,
            again: None,
            is_ending: false,
            is_queued: false,
        }
    }

    /// Appends the endpoint to the queue of those with something to offer, unless it is there.
    pub(super) fn queue(&mut self, endpoint: EndpointId, ready: &mut VecDeque<EndpointId>) {
        if !std::mem::replace(&mut self.is_queued, true) {
            ready.push_back(endpoint);
        }
    }

    /// Queues a message.
    pub(super) fn send(
        &mut self,
        endpoint: EndpointId,
        message: Vec<u8>,
        ready: &mut VecDeque<EndpointId>,
    ) {
        self.flow.send(message);
        self.queue(endpoint, ready);
    }

    /// Confirms the last window of the peer, if no more is in flight.
    pub(super) fn confirm_window(
        &mut self,
        endpoint: EndpointId,
        ready: &mut VecDeque<EndpointId>,
    ) {
        if let Some(bytes) = self.flow.confirm_window() {
            // It came as a word of 32 bits.
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.send(endpoint, message::window_taken(bytes), ready);
        }
    }

    /// Removes a request of the peer that has no answer yet. Returns false if there is none with
    /// this number.
    pub(super) fn take_pending(&mut self, number: u64) -> bool {
        match self.asks.entry(number) {
            Entry::Occupied(ask) if !self.is_ending && ask.get().exposed.is_none() => {
                ask.remove();
                true
            }
            _ => false,
        }
    }
}

/// An open request of this side.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) state: State,
    pub(super) purpose: Purpose,
    /// The buffer for data that does not travel in the message.
    pub(super) buffer: Option<Buffer>,
    /// True if the peer knows the buffer, and so may write to it.
    pub(super) is_exposed: bool,
    /// The most data that the owner accepts, in bytes.
    pub(super) most: u32,
    pub(super) deadline: Instant,
    pub(super) overdue: Overdue,
}

/// The state of a request. The end of the endpoint ends a request in any state.
#[derive(Debug)]
pub(super) enum State {
    /// The request was sent, and the peer may write to its exposed buffer. Left by an answer, a
    /// refusal or `Withdrawn`.
    Waiting,
    /// `DataReady` has arrived and the arena has no block to read into. Left when a block becomes
    /// free, or by a cancellation or the deadline.
    NoRoom { head: Bytes, from: RemotePlace },
    /// A one-sided read of the data is queued or posted. Left by its completion.
    Reading { head: Bytes, len: u32 },
}

/// The party that waits for a request's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The owner of the machine.
    Owner,
    /// The endpoint's calibration.
    Probe,
    /// The owner was told that there is no answer. The slot and the buffer stay reserved until the
    /// peer can no longer use them.
    GivenUp,
}

/// The memory that receives the data of an answer.
#[derive(Debug)]
pub(super) enum Buffer {
    /// A block that the machine took from the arena.
    Arena(Block),
    /// A place that the owner named.
    Owner(Place),
}

/// A request of the peer that has no answer yet, or whose data the peer is reading.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) inline: u32,
    pub(super) place: Option<RemotePlace>,
    pub(super) exposed: Option<ExposedBlock>,
}

/// Data exposed to the peer for reading.
#[derive(Debug)]
pub(super) struct ExposedBlock {
    pub(super) block: Option<Block>,
    pub(super) until: Instant,
}

/// A one-sided request.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) endpoint: EndpointId,
    pub(super) role: Role,
    pub(super) charge: Charge,
}

/// The purpose of a one-sided request.
#[derive(Debug)]
pub(super) enum Role {
    /// A transfer of the owner, with the owner's id.
    Transfer { id: u64 },
    /// Reads the data of an answer.
    Read { number: u64 },
    /// Writes the data of an answer, from an arena block if there is one.
    Write { block: Option<Block> },
}

/// An entry of the deadline queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Call(CallId),
    ExposedBlock(RequestId),
    /// The next calibration of an endpoint.
    Measure(EndpointId),
}
