use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Instant;

use rackpool_fabric::EndpointId;

use super::MOST_OPEN;
use crate::calibration::Calibration;
use crate::flow::Flow;
use crate::slots::Slots;
use crate::{Block, Bytes, CallId, Overdue, Place, RemotePlace, RequestId, Thresholds};

/// What is under way between this rack and one other.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) calls: Slots<Open>,
    /// By the peer's numbers.
    pub(super) asks: BTreeMap<u64, OpenRequest>,
    pub(super) flow: Flow,
    pub(super) thresholds: Thresholds,
    pub(super) calibration: Option<Calibration>,
    /// How often measuring the modes has led to nothing.
    pub(super) vain: u32,
    /// When they are measured again.
    pub(super) again: Option<Instant>,
    /// Nothing is sent any more; what is open ends with the endpoint.
    pub(super) is_ending: bool,
    /// Whether it waits to be asked what it has to offer.
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

    /// It may have something to offer, and is asked after all that wait for that already.
    pub(super) fn queue(&mut self, endpoint: EndpointId, ready: &mut VecDeque<EndpointId>) {
        if !std::mem::replace(&mut self.is_queued, true) {
            ready.push_back(endpoint);
        }
    }

    /// Has a message sent.
    pub(super) fn send(
        &mut self,
        endpoint: EndpointId,
        message: Vec<u8>,
        ready: &mut VecDeque<EndpointId>,
    ) {
        self.flow.send(message);
        self.queue(endpoint, ready);
    }

    /// Whether one of its requests waits for an answer, which does so no more now.
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

/// A request of this side.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) state: State,
    pub(super) purpose: Purpose,
    /// Where data goes that does not come with the message.
    pub(super) buffer: Option<Buffer>,
    /// Whether the peer knows the buffer, and so may write to it.
    pub(super) is_exposed: bool,
    /// The most data that the owner takes, in bytes.
    pub(super) most: u32,
    pub(super) deadline: Instant,
    pub(super) overdue: Overdue,
}

#[derive(Debug)]
pub(super) enum State {
    /// For an answer.
    Waiting,
    /// For a block to read into.
    NoRoom { head: Bytes, from: RemotePlace },
    /// The data is being read.
    Reading { head: Bytes, len: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Owner,
    Probe,
    /// The owner was told that there is no answer. The slot and the buffer stay until the peer
    /// can't do anything with them any more.
    GivenUp,
}

#[derive(Debug)]
pub(super) enum Buffer {
    Arena(Block),
    Owner(Place),
}

/// A request of the peer that is not answered, or whose data the peer still reads.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) inline: u32,
    pub(super) place: Option<RemotePlace>,
    pub(super) exposed: Option<ExposedBlock>,
}

/// Data that the peer reads.
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
}

#[derive(Debug)]
pub(super) enum Role {
    /// The owner's, with the owner's id.
    Transfer { id: u64 },
    /// Reads the data of an answer.
    Read { number: u64 },
    /// Writes the data of an answer, from the block if it is one.
    Write { block: Option<Block> },
}

/// What has a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Call(CallId),
    ExposedBlock(RequestId),
    /// The modes are to be measured again.
    Measure(EndpointId),
}
