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

/// The number of one-sided requests that an endpoint may have in flight.
pub(crate) const QUEUE_DEPTH: usize = 1024;

/// One end of a connection. It is open, or ending until its queue pair is destroyed.
pub(crate) struct Endpoint {
    id: EndpointId,
    /// `None` once it was handed to the connector for destruction.
    link: Option<VerbsLink>,
    credits: Credits,
    /// Work that is not in the send queue yet, in order. All of it waits for a flush.
    queue: VecDeque<Work>,
    /// Requests in the send queue, in order; `first_posted` is the number of the first.
    posted: VecDeque<PostedWork>,
    first_posted: u64,
    /// The RDMA reads in the send queue, with their numbers.
    reads: VecDeque<(u64, Transfer)>,
    /// Requests of the owner that have not completed.
    operations: usize,
    /// Size class of the message that was last refused for lack of room; true for a large one.
    wanted_room: Option<bool>,
    /// Receive buffers that were emptied and not posted again.
    emptied: Vec<usize>,
    completions: Vec<Completion>,
    /// An error that occurred outside of `poll`; the next poll reports it.
    failure: Option<DisconnectReason>,
    /// Set when the endpoint is ending: its queue pair is in ERROR and handed to the connector.
    /// Requests in flight fail once the pair is destroyed.
    ending: Option<DisconnectReason>,
    metrics: DeviceCounters,
}

/// Work for the send queue.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A request of which `done` bytes are posted.
    Transfer {
        id: u64,
        operation: Operation,
        done: u32,
    },
    Message(Staged),
    /// A send that carries only credits.
    Credit,
}

/// A work request in the send queue.
#[derive(Clone, Copy, Debug)]
enum PostedWork {
    /// A whole request, or the last part of one.
    Transfer { id: u64, local: RegionId },
    /// A request without a completion event for the owner.
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

    /// Counts of the requests to the device for this endpoint.
    pub(crate) const fn metrics(&self) -> DeviceCounters {
        self.metrics
    }

    /// Makes progress. If the endpoint ends, returns its link, which the caller must have
    /// destroyed.
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

    /// Ends the endpoint and moves its queue pair to ERROR. Returns the link, to be destroyed.
    pub(crate) fn end(
        &mut self,
        reason: DisconnectReason,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Option<VerbsLink> {
        // Completions that arrived before the end count.
        while self.take_completions(regions, events).is_ok_and(|count| count > 0) {}
        let link = self.link.take()?;
        if !matches!(reason, DisconnectReason::Peer | DisconnectReason::PeerGone) {
            // Sent before the pair fails, so that the peer does not report a broken network.
            link.say_goodbye();
        }
        // If this fails, the destruction of the pair has the same effect.
        let _ = link.pair().fail();
        self.ending = Some(reason);
        Some(link)
    }

    /// The queue pair is destroyed: every request that has not completed fails.
    pub(crate) fn destroyed(
        self,
        peer_said_goodbye: bool,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) {
        let endpoint = self.id;
        let reason = match self.ending {
            // The peer's queue pair ended before its goodbye arrived.
            Some(DisconnectReason::PeerGone | DisconnectReason::Failed(_)) if peer_said_goodbye => {
                DisconnectReason::Peer
            }
            Some(reason) => reason,
            None => DisconnectReason::Local,
        };
        let posted = self.posted.into_iter().filter_map(|posted| match posted {
            PostedWork::Transfer { id, local } => Some((id, local)),
            PostedWork::Other => None,
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

    /// Prepares to sleep. Returns false if there is something to do.
    pub(crate) fn arm(&mut self, regions: &mut Regions, events: &mut Vec<Event>) -> bool {
        let Some(link) = &self.link else { return true };
        if let Err(error) = link.queue().notify() {
            let error = local("ask for a completion event", error);
            self.failure = Some(DisconnectReason::Failed(error));
        }
        // Completions that arrived before the request for a notification do not cause one.
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

    /// Returns true if one-sided requests are in flight.
    pub(crate) const fn is_busy(&self) -> bool {
        self.operations > 0 && self.ending.is_none()
    }

    fn check_open(&self) -> Result<(), FabricError> {
        let reason = self.ending.as_ref().or(self.failure.as_ref());
        reason.map_or(Ok(()), |reason| Err(reason.error()))
    }
}
