mod credits;
mod posting;
mod progress;

use std::collections::VecDeque;

use rackpool_fabric::{
    DeviceCounters, DisconnectReason, EndpointId, Event, FabricError, Operation, RegionId, Transfer,
};

use crate::error::local;
use crate::link::{Staged, VerbsLink};
use crate::regions::Regions;
use crate::verbs::Completion;
pub(crate) use credits::Credits;

/// One-sided requests that an endpoint may have in flight.
pub(crate) const QUEUE_DEPTH: usize = 1024;

/// One end of a connection: open, or ending until its queue pair is destroyed.
pub(crate) struct Endpoint {
    id: EndpointId,
    /// `None` when it was handed to the connector to be destroyed.
    link: Option<VerbsLink>,
    credits: Credits,
    /// What the send queue has not taken yet, in order. Everything waits for a flush.
    queue: VecDeque<Work>,
    /// What the send queue has, in order; the number of the first.
    posted: VecDeque<Posted>,
    first_posted: u64,
    /// The reads among them, with their numbers.
    reads: VecDeque<(u64, Transfer)>,
    /// Requests of the owner that have not completed.
    operations: usize,
    /// Whether the message that was last refused for lack of room is a large one.
    wanted_room: Option<bool>,
    /// Emptied receive buffers.
    emptied: Vec<usize>,
    completions: Vec<Completion>,
    /// What went wrong outside of `poll`.
    failure: Option<DisconnectReason>,
    ending: Option<DisconnectReason>,
    metrics: DeviceCounters,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// A request of which `done` bytes are posted.
    Transfer {
        id: u64,
        operation: Operation,
        done: u32,
    },
    Message(Staged),
    /// A send that only tells what was taken.
    Credit,
}

#[derive(Clone, Copy, Debug)]
enum Posted {
    /// A whole request, or the last part of one.
    Transfer { id: u64, local: RegionId },
    /// Something that nobody waits for.
    Other,
}

impl Endpoint {
    pub(crate) fn new(id: EndpointId, link: VerbsLink) -> Self {
        let credits = Credits::new(link.intake(), link.peers_intake);
        Self {
            id,
            link: Some(link),
            credits,
            queue: VecDeque::new(),
            posted: VecDeque::new(),
            first_posted: 0,
            reads: VecDeque::new(),
            operations: 0,
            wanted_room: None,
            emptied: Vec::new(),
            completions: Vec::new(),
            failure: None,
            ending: None,
            metrics: DeviceCounters::default(),
        }
    }

    /// What was asked of the device for this endpoint.
    pub(crate) const fn metrics(&self) -> DeviceCounters {
        self.metrics
    }

    /// Does what can be done now. When that ends the endpoint its link comes back: to be destroyed.
    pub(crate) fn poll(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Option<VerbsLink> {
        let reason = match self.failure.take() {
            Some(reason) => reason,
            None => self.advance(regions, events).err()?,
        };
        self.end(reason, regions, events)
    }

    /// Stops everything of this side. The link, whose queue pair has failed, is to be destroyed.
    pub(crate) fn end(
        &mut self,
        reason: DisconnectReason,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Option<VerbsLink> {
        // What came before the end counts.
        while self.take_completions(regions, events).is_ok_and(|count| count > 0) {}
        let link = self.link.take()?;
        if !matches!(reason, DisconnectReason::Peer | DisconnectReason::PeerGone) {
            // Before the pair fails, so that the peer does not take it for a broken network.
            link.say_goodbye();
        }
        // Destroying the pair, which follows, does the same if this can't be done.
        let _ = link.pair().fail();
        self.ending = Some(reason);
        Some(link)
    }

    /// The queue pair is destroyed: everything that has not completed has failed.
    pub(crate) fn destroyed(
        self,
        peer_said_goodbye: bool,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) {
        let endpoint = self.id;
        let reason = match self.ending {
            // The peer's pair ended before its word arrived.
            Some(DisconnectReason::PeerGone | DisconnectReason::Failed(_)) if peer_said_goodbye => {
                DisconnectReason::Peer
            }
            Some(reason) => reason,
            None => DisconnectReason::Local,
        };
        let posted = self.posted.into_iter().filter_map(|posted| match posted {
            Posted::Transfer { id, local } => Some((id, local)),
            Posted::Other => None,
        });
        let queued = self.queue.into_iter().filter_map(|work| match work {
            Work::Transfer { id, operation, .. } => Some((id, operation.transfer().local)),
            Work::Message(_) | Work::Credit => None,
        });
        for (id, local) in posted.chain(queued) {
            events.push(Event::Completed { endpoint, id, result: Err(reason.error()) });
            regions.end(local, events);
        }
        events.push(Event::Disconnected { endpoint, reason });
    }

    /// Prepares to sleep. False when there is something to do.
    pub(crate) fn arm(&mut self, regions: &mut Regions, events: &mut Vec<Event>) -> bool {
        let Some(link) = &self.link else { return true };
        if let Err(error) = link.queue().notify() {
            let error = local("ask for a completion event", error);
            self.failure = Some(DisconnectReason::Failed(error));
        }
        // What came before the notification was asked for brings none.
        loop {
            match self.advance(regions, events) {
                Ok(0) => break,
                Ok(_) => {}
                Err(reason) => {
                    self.failure = Some(reason);
                    break;
                }
            }
        }
        if self.wanted_room.is_some_and(|is_large| self.credits.has_room(is_large)) {
            self.wanted_room = None;
            return false;
        }
        self.failure.is_none()
    }

    /// Whether one-sided requests are in flight.
    pub(crate) const fn is_busy(&self) -> bool {
        self.operations > 0 && self.ending.is_none()
    }

    fn check_open(&self) -> Result<(), FabricError> {
        let reason = self.ending.as_ref().or(self.failure.as_ref());
        reason.map_or(Ok(()), |reason| Err(reason.error()))
    }
}
