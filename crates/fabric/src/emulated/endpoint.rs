use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::copy::copy_piece;
use super::handshake::Established;
use super::link::{Link, Word};
use super::model::{Clock, Direction, Speed, Wire};
use super::ring::{Receiver, Sender, entry_bytes};
use super::sleep::{News, Sleep};
use crate::region::fits;
use crate::regions::Regions;
use crate::{
    DisconnectReason, EndpointId, Event, FabricError, MAX_MESSAGE, MemoryRegion, Operation,
    WorkRequest,
};

/// One-sided requests that an endpoint may have in flight.
pub(super) const QUEUE_DEPTH: usize = 1024;
/// What an endpoint copies in one poll: long requests take turns with everything else.
const COPY_BYTES_PER_POLL: u32 = 64 << 10;
const MESSAGES_PER_POLL: usize = 64;

/// One end of a link: open, or closing until the peer can't copy any more.
pub(super) struct Endpoint {
    id: EndpointId,
    link: Link,
    remote: Vec<Arc<dyn MemoryRegion>>,
    sender: Sender,
    receiver: Receiver,
    sleep: Sleep,
    wire: Wire,
    queue: VecDeque<Pending>,
    operations: usize,
    /// Size of the entry that was last refused for lack of room.
    wanted_room: Option<u64>,
    /// What went wrong outside of `poll`.
    failure: Option<FabricError>,
    closing: Option<DisconnectReason>,
    peer_gone: bool,
    /// Keeps the socket from ending before the last copy of this side: the peer takes its end as
    /// proof that this side copies nothing.
    _socket: Arc<OwnedFd>,
}

struct Pending {
    due_ns: u64,
    work: Work,
}

enum Work {
    Copy { id: u64, operation: Operation, done: u32 },
    Message(Vec<u8>),
}

impl Endpoint {
    pub(super) fn new(id: EndpointId, speed: Speed, established: Established) -> Self {
        Self {
            id,
            link: established.link,
            remote: established.remote,
            sender: Sender::new(),
            receiver: Receiver::new(),
            sleep: Sleep::new(established.peer_wake),
            wire: Wire::new(speed),
            queue: VecDeque::new(),
            operations: 0,
            wanted_room: None,
            failure: None,
            closing: None,
            peer_gone: false,
            _socket: established.socket,
        }
    }

    /// Takes a list of requests, all or none.
    pub(super) fn post(
        &mut self,
        list: &[WorkRequest],
        regions: &mut Regions,
        clock: &mut Clock,
    ) -> Result<(), FabricError> {
        self.check_open()?;
        if list.len() > QUEUE_DEPTH {
            return Err(FabricError::ListTooLong { len: list.len(), max: QUEUE_DEPTH });
        }
        if self.operations + list.len() > QUEUE_DEPTH {
            return Err(FabricError::QueueFull { in_flight: self.operations, asked: list.len() });
        }
        for request in list {
            self.check(&request.operation, regions)?;
        }
        for &WorkRequest { id, operation } in list {
            let direction = match operation {
                Operation::Read(_) => Direction::In,
                Operation::Write(_) => Direction::Out,
            };
            let transfer = operation.transfer();
            let due_ns = self.wire.schedule(clock.now_ns(), direction, transfer.len.into());
            regions.begin(transfer.local);
            self.queue.push_back(Pending { due_ns, work: Work::Copy { id, operation, done: 0 } });
        }
        self.operations += list.len();
        Ok(())
    }

    /// Puts a message into the ring, behind the operations posted before it.
    pub(super) fn send(&mut self, message: &[u8], clock: &mut Clock) -> Result<(), FabricError> {
        self.check_open()?;
        if message.is_empty() || message.len() > MAX_MESSAGE {
            return Err(FabricError::MessageSize { len: message.len(), max: MAX_MESSAGE });
        }
        let result = self.try_send(message, clock);
        if let Err(error) = &result
            && *error != FabricError::RingFull
        {
            self.failure = Some(error.clone());
        }
        result
    }

    /// Does what can be done now. True when the endpoint has ended and is to be dropped.
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

    /// Stops everything of this side and forbids the peer to start anything.
    pub(super) fn close(
        &mut self,
        reason: DisconnectReason,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) {
        if self.closing.is_some() {
            return;
        }
        // Can't fail, because the link was accessible when the endpoint was made.
        let _ = self.link.store(Word::Closed, 1);
        // SYNC: pairs with the fence after in_op = 1 in copy_due().
        self.link.fence();
        self.sleep.wake();
        for pending in self.queue.drain(..) {
            if let Work::Copy { id, operation, .. } = pending.work {
                let result = Err(reason.error());
                events.push(Event::Completed { endpoint: self.id, id, result });
                regions.end(operation.transfer().local, events);
            }
        }
        self.operations = 0;
        self.closing = Some(reason);
    }

    /// The peer's socket has ended: it copies nothing any more.
    pub(super) fn peer_gone(&mut self, regions: &mut Regions, events: &mut Vec<Event>) {
        self.peer_gone = true;
        let reason = if self.peer_closed() == Ok(true) {
            DisconnectReason::Peer
        } else {
            DisconnectReason::PeerGone
        };
        self.close(reason, regions, events);
    }

    /// Prepares to sleep. False when there is something to do.
    pub(super) fn arm(&mut self) -> bool {
        self.try_arm().unwrap_or_else(|error| {
            self.failure = Some(error);
            false
        })
    }

    /// After sleeping.
    pub(super) fn disarm(&mut self) {
        if let Err(error) = self.sleep.disarm(&self.link) {
            self.failure = Some(error);
        }
    }

    /// When something completes by itself.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let operation = self.queue.front().map(|pending| pending.due_ns);
        [operation, self.receiver.next_due_ns()].into_iter().flatten().min()
    }

    fn check_open(&self) -> Result<(), FabricError> {
        let failure = self.failure.clone();
        match self.closing.as_ref().map(DisconnectReason::error).or(failure) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn check(&self, operation: &Operation, regions: &Regions) -> Result<(), FabricError> {
        let transfer = operation.transfer();
        let len = u64::from(transfer.len);
        if len == 0 {
            return Err(FabricError::Empty);
        }
        regions.check(transfer.local, transfer.local_offset, len)?;
        let Some(remote) = self.remote.get(usize::from(transfer.remote.0)) else {
            return Err(FabricError::UnknownRemoteRegion { region: transfer.remote.0 });
        };
        let (offset, region_len) = (transfer.remote_offset, remote.len());
        if !fits(offset, len, region_len) {
            return Err(FabricError::OutOfRange { side: "remote", offset, len, region_len });
        }
        Ok(())
    }

    fn try_send(&mut self, message: &[u8], clock: &mut Clock) -> Result<(), FabricError> {
        let needed = entry_bytes(message);
        if self.sender.room(&self.link)? < needed {
            self.wanted_room = Some(needed);
            return Err(FabricError::RingFull);
        }
        self.wanted_room = None;
        let due_ns = self.wire.schedule(clock.now_ns(), Direction::Out, message.len() as u64);
        if self.queue.is_empty() {
            self.sender.push(&self.link, due_ns, message)?;
            return self.sleep.tell(&self.link, News::Message);
        }
        self.sender.reserve(needed);
        self.queue.push_back(Pending { due_ns, work: Work::Message(message.to_vec()) });
        Ok(())
    }

    fn advance(
        &mut self,
        regions: &mut Regions,
        clock: &mut Clock,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if self.peer_closed()? {
            self.close(DisconnectReason::Peer, regions, events);
            return Ok(());
        }
        self.receive(clock, events)?;
        while let Some(Pending { due_ns, work }) = self.queue.front() {
            if *due_ns > clock.now_ns() {
                break;
            }
            let due_ns = *due_ns;
            match work {
                Work::Message(_) => self.push_front(due_ns)?,
                Work::Copy { .. } => return self.copy_due(regions, clock, events),
            }
        }
        Ok(())
    }

    fn receive(&mut self, clock: &mut Clock, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let mut taken = false;
        for _ in 0..MESSAGES_PER_POLL {
            let Some(bytes) = self.receiver.pop(&self.link, || clock.now_ns())? else { break };
            events.push(Event::Message { endpoint: self.id, bytes });
            taken = true;
        }
        if taken {
            self.receiver.publish(&self.link)?;
            self.sleep.tell(&self.link, News::Room)?;
        }
        Ok(())
    }

    /// Pushes the message at the front of the queue, whose turn has come.
    fn push_front(&mut self, due_ns: u64) -> Result<(), FabricError> {
        if let Some(Pending { work: Work::Message(message), .. }) = self.queue.pop_front() {
            self.sender.release(entry_bytes(&message));
            self.sender.push(&self.link, due_ns, &message)?;
            self.sleep.tell(&self.link, News::Message)?;
        }
        Ok(())
    }

    /// Executes the operations whose time has come, within the budget of one poll. A peer that
    /// closes meanwhile and sleeps until `in_op` is 0 is woken by the next poll, in close().
    fn copy_due(
        &mut self,
        regions: &mut Regions,
        clock: &mut Clock,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        self.link.store(Word::InOperation, 1)?;
        // SYNC: pairs with the fence after closed = 1 in close().
        self.link.fence();
        let copied = self.copy_within(COPY_BYTES_PER_POLL, regions, clock, events);
        self.link.store(Word::InOperation, 0)?;
        copied
    }

    fn copy_within(
        &mut self,
        mut budget: u32,
        regions: &mut Regions,
        clock: &mut Clock,
        events: &mut Vec<Event>,
    ) -> Result<(), FabricError> {
        while let Some(Pending { due_ns, work: Work::Copy { id, operation, done } }) =
            self.queue.front_mut()
        {
            // The peer's word may have changed between two pieces.
            let closed = self.link.peer(Word::Closed)? != 0;
            if closed || budget == 0 || *due_ns > clock.now_ns() {
                break;
            }
            let transfer = *operation.transfer();
            let local = regions.memory(transfer.local)?;
            let Some(remote) = self.remote.get(usize::from(transfer.remote.0)) else {
                return Err(FabricError::UnknownRemoteRegion { region: transfer.remote.0 });
            };
            let copied = copy_piece(operation, *done, budget, local, &**remote)?;
            *done += copied;
            budget = budget.saturating_sub(copied);
            if *done == transfer.len {
                events.push(Event::Completed { endpoint: self.id, id: *id, result: Ok(()) });
                regions.end(transfer.local, events);
                self.queue.pop_front();
                self.operations -= 1;
            }
        }
        Ok(())
    }

    fn peer_closed(&self) -> Result<bool, FabricError> {
        Ok(self.link.peer(Word::Closed)? != 0)
    }

    /// Whether the peer can't be within a copy. Asked only after this side's `closed` was set and
    /// fenced, so a peer that starts later finds it.
    fn peer_is_quiet(&self) -> bool {
        self.peer_gone || self.link.peer(Word::InOperation).unwrap_or(0) == 0
    }

    fn try_arm(&mut self) -> Result<bool, FabricError> {
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
        Ok(self.failure.is_none()
            && self.queue.is_empty()
            && !self.receiver.has_message(&self.link)?
            && !self.peer_closed()?)
    }
}
