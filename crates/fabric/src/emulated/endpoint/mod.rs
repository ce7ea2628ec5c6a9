mod posting;
mod progress;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_sync::Awaited;

use super::card::Card;
use super::link::{SharedLink, Word};
use super::model::{Clock, now_ns};
use super::ring::{Receiver, Sender};
use super::sleep::Sleep;
use super::transport::Established;
use super::wire::Wire;
use crate::regions::Regions;
use crate::{DisconnectReason, EndpointId, Event, FabricError, MemoryRegion, Operation, RegionId};

/// The number of one-sided requests that an endpoint may have in flight.
pub(super) const QUEUE_DEPTH: usize = 1024;
/// Bytes that an endpoint copies in one poll, so that long requests do not delay everything else.
const COPY_BYTES_PER_POLL: u32 = 64 << 10;
const MESSAGES_PER_POLL: usize = 64;
/// Interval at which the poster checks the socket for the peer's end before it copies. A killed
/// peer does not set `closed`, and its successor hands out its frames at the earliest when it has
/// started.
const TRUSTED_NS: u64 = 10_000_000;

/// One end of a link. It is open, or closing until the peer can no longer copy.
pub(super) struct Endpoint {
    id: EndpointId,
    link: SharedLink,
    remote: Vec<Arc<dyn MemoryRegion>>,
    sender: Sender,
    receiver: Receiver,
    sleep: Sleep,
    wire: Wire,
    /// Operations and messages that have not passed the wire yet, in the order posted.
    queue: VecDeque<Pending>,
    /// Operations whose bytes have been moved, in the order posted; each completes when due.
    moved: VecDeque<Moved>,
    /// The number of operations in `queue` and `moved`.
    operations: usize,
    /// Size of the entry that was last refused for lack of room.
    wanted_room: Option<u64>,
    /// An error that occurred outside of `poll`; the next poll reports it.
    failure: Option<FabricError>,
    /// Set when the endpoint is closing: own `closed` is 1, all requests have failed, and nothing
    /// is copied. The endpoint ends when the peer's `in_op` is 0 or the peer is gone.
    closing: Option<DisconnectReason>,
    /// True once the peer's socket has ended, so the peer can no longer copy.
    peer_gone: bool,
    /// A reference that keeps the socket open until this side has stopped copying. The peer takes
    /// the end of the socket as proof that this side copies nothing more.
    socket: Arc<OwnedFd>,
    /// When the socket was last found open.
    peer_lived_ns: u64,
}

/// An operation or message on the modelled wire.
struct Pending {
    due_ns: u64,
    work: Work,
}

enum Work {
    Copy { id: u64, operation: Operation, done: u32 },
    Message(Vec<u8>),
}

/// An operation whose bytes have been moved and whose completion is not due yet.
struct Moved {
    due_ns: u64,
    id: u64,
    local: RegionId,
}

impl Pending {
    /// The time at which the next piece has passed the wire. The piece moves then if it is first in
    /// the queue.
    fn moves_at(&self, wire: &Wire) -> u64 {
        match &self.work {
            Work::Copy { operation, done, .. } => {
                let left = operation.transfer().len - done;
                wire.moves_at(self.due_ns, left.saturating_sub(COPY_BYTES_PER_POLL).into())
            }
            // The ring entry of a message carries its due time.
            Work::Message(_) => 0,
        }
    }
}

impl Endpoint {
    pub(super) fn new(
        id: EndpointId,
        (latency_ns, own): (u64, Arc<Card>),
        established: Established,
    ) -> Self {
        Self {
            id,
            link: established.link,
            remote: established.theirs.regions,
            sender: Sender::new(),
            receiver: Receiver::new(),
            sleep: Sleep::new(established.theirs.wake),
            wire: Wire::new(latency_ns, own, established.theirs.card),
            queue: VecDeque::new(),
            moved: VecDeque::new(),
            operations: 0,
            wanted_room: None,
            failure: None,
            closing: None,
            peer_gone: false,
            socket: established.socket,
            peer_lived_ns: 0,
        }
    }

    /// Makes progress. Returns true if the endpoint has ended and must be dropped.
    pub(super) fn poll(
        &mut self,
        regions: &mut Regions,
        clock: &mut Clock,
        events: &mut Vec<Event>,
    ) -> bool {
        if self.closing.is_none()
            && let Err(error) = self.advance(regions, clock, events)
        {
            self.close(DisconnectReason::Failed(error), regions, events);
        }
        let Some(reason) = &self.closing else { return false };
        if !self.peer_is_quiet() {
            return false;
        }
        events.push(Event::Disconnected { endpoint: self.id, reason: reason.clone() });
        true
    }

    /// Stops all work of this side and forbids the peer to start a copy.
    pub(super) fn close(
        &mut self,
        reason: DisconnectReason,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) {
        if self.closing.is_some() {
            return;
        }
        // Cannot fail, because the link was accessible when the endpoint was created.
        let _ = self.link.store(Word::Closed, 1);
        // SYNC: pairs with the fence after in_op = 1 in move_bytes().
        self.link.fence();
        self.sleep.wake();
        let moved = self.moved.drain(..).map(|Moved { id, local, .. }| (id, local));
        let queued = self.queue.drain(..).filter_map(|pending| match pending.work {
            Work::Copy { id, operation, .. } => Some((id, operation.transfer().local)),
            Work::Message(_) => None,
        });
        for (id, local) in moved.chain(queued) {
            let result = Err(reason.error());
            events.push(Event::Completed { endpoint: self.id, id, result });
            regions.end(local, events);
        }
        self.operations = 0;
        self.closing = Some(reason);
    }

    /// The peer's socket has ended, so the peer copies nothing more.
    pub(super) fn peer_gone(&mut self, regions: &mut Regions, events: &mut Vec<Event>) {
        self.peer_gone = true;
        let reason = if self.peer_closed() == Ok(true) {
            DisconnectReason::Peer
        } else {
            DisconnectReason::PeerGone
        };
        self.close(reason, regions, events);
    }

    /// Prepares to sleep. Returns false if there is something to do.
    pub(super) fn arm(&mut self) -> bool {
        self.try_arm().unwrap_or_else(|error| {
            self.failure = Some(error);
            false
        })
    }

    /// Ends the sleep.
    pub(super) fn disarm(&mut self) {
        if let Err(error) = self.sleep.disarm(&self.link) {
            self.failure = Some(error);
        }
    }

    /// The earliest time at which something completes without a wake-up. Includes the times at
    /// which bytes on the wire have to be moved.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.closing.is_some() {
            return None;
        }
        let operation = self.queue.front().map(|pending| pending.moves_at(&self.wire));
        let moved = self.moved.front().map(|moved| moved.due_ns);
        [operation, moved, self.receiver.next_due_ns()].into_iter().flatten().min()
    }

    /// Publishes all new messages in the ring at once, and wakes the peer if it sleeps.
    fn publish(&mut self) -> Result<(), FabricError> {
        if self.sender.publish(&self.link)? {
            self.sleep.tell(&self.link, Awaited::Message)?;
        }
        Ok(())
    }

    fn peer_closed(&self) -> Result<bool, FabricError> {
        Ok(self.link.peer(Word::Closed)? != 0)
    }

    /// Returns true if the peer cannot be within a copy. Called only after this side has set
    /// `closed` and fenced, so a peer that starts a copy later sees `closed`.
    fn peer_is_quiet(&self) -> bool {
        self.peer_gone || self.link.peer(Word::InOperation).unwrap_or(0) == 0
    }

    fn try_arm(&mut self) -> Result<bool, FabricError> {
        if self.closing.is_none() {
            self.publish()?;
        }
        self.sleep.arm(&self.link, self.wanted_room.is_some())?;
        if self.closing.is_some() {
            return Ok(!self.peer_is_quiet());
        }
        if let Some(needed) = self.wanted_room
            && self.sender.room(&self.link)? >= needed
        {
            self.wanted_room = None;
            return Ok(false);
        }
        let is_due = self.next_due_ns().is_some_and(|due_ns| due_ns <= now_ns());
        Ok(self.failure.is_none()
            && !is_due
            && (self.receiver.next_due_ns().is_some() || !self.receiver.has_message(&self.link)?)
            && !self.peer_closed()?)
    }
}
