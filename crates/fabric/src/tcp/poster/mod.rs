mod answers;
mod output;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::TcpStream;

use self::answers::Turn;
use self::output::Outgoing;
use super::buffer::Buffer;
use super::inbox::{Ending, WINDOW, room_of};
use crate::region::fits;
use crate::regions::Regions;
use crate::{
    DeviceCounters, EndpointId, Event, FabricError, MAX_MESSAGE, Operation, Transfer, Unsent,
    WorkRequest,
};

/// Requests that can be in flight on one endpoint.
pub(super) const QUEUE_DEPTH: usize = 1024;

/// The channel of an endpoint that this side posts on.
pub(super) struct Poster {
    endpoint: EndpointId,
    pub(super) socket: TcpStream,
    /// Length of each region of the peer, in bytes.
    remote: Vec<u64>,
    /// What has not gone into the output yet. Everything waits for a flush.
    waiting: VecDeque<Outgoing>,
    output: Buffer,
    input: Buffer,
    /// Requests without an answer, the oldest first.
    unanswered: VecDeque<WorkRequest>,
    /// How many of those have gone into the output.
    asked: usize,
    /// Bytes that are still to come of the oldest request, a read; 0 before its answer begins.
    data_left: u32,
    /// Room that the messages sent so far took.
    sent: u64,
    /// How much of that the peer has taken.
    taken: u64,
    /// The socket has something although nothing is in flight: its end, most likely.
    pub(super) stirred: bool,
    /// What went wrong while nobody polled.
    broken: Option<Ending>,
    /// Frames that went into the output, writes to the socket, and answers.
    pub(super) metrics: DeviceCounters,
}

impl Poster {
    /// A channel to a peer with regions of these lengths; what comes goes into `input`.
    pub(super) fn new(
        endpoint: EndpointId,
        socket: TcpStream,
        remote: Vec<u64>,
        input: Buffer,
    ) -> Self {
        Self {
            endpoint,
            socket,
            remote,
            waiting: VecDeque::new(),
            output: Buffer::new(),
            input,
            unanswered: VecDeque::new(),
            asked: 0,
            data_left: 0,
            sent: 0,
            taken: 0,
            stirred: false,
            broken: None,
            metrics: DeviceCounters::default(),
        }
    }

    /// Takes a list of requests.
    pub(super) fn take(
        &mut self,
        list: &[WorkRequest],
        regions: &mut Regions,
    ) -> Result<(), FabricError> {
        let (in_flight, asked) = (self.unanswered.len(), list.len());
        if asked > QUEUE_DEPTH {
            return Err(FabricError::ListTooLong { len: asked, max: QUEUE_DEPTH });
        }
        for request in list {
            self.check(request.operation.transfer(), regions)?;
        }
        if in_flight + asked > QUEUE_DEPTH {
            return Err(FabricError::QueueFull { in_flight, asked });
        }
        for request in list {
            regions.begin(request.operation.transfer().local);
            self.unanswered.push_back(*request);
            self.waiting.push_back(Outgoing::Request { request: *request, written: None });
        }
        Ok(())
    }

    /// Posts a list that goes to no socket; what would go there.
    #[cfg(feature = "fuzzing")]
    pub(super) fn post_dry(
        &mut self,
        list: &[WorkRequest],
        regions: &mut Regions,
    ) -> Result<Vec<u8>, FabricError> {
        self.take(list, regions)?;
        let mut sent = Vec::new();
        while self.has_output() {
            self.fill(regions)?;
            sent.extend(self.output.data());
            self.output.consume(usize::MAX);
        }
        Ok(sent)
    }

    /// Understands answers that did not come through the socket.
    #[cfg(feature = "fuzzing")]
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<(), Ending> {
        self.input.make_room();
        self.input.put(bytes);
        self.understand(regions, events)
    }

    fn check(&self, transfer: &Transfer, regions: &Regions) -> Result<(), FabricError> {
        let len = u64::from(transfer.len);
        if len == 0 {
            return Err(FabricError::Empty);
        }
        regions.check(transfer.local, transfer.local_offset, len)?;
        let remote = transfer.remote.0;
        let Some(&region_len) = self.remote.get(usize::from(remote)) else {
            return Err(FabricError::UnknownRemoteRegion { region: remote });
        };
        let offset = transfer.remote_offset;
        if !fits(offset, len, region_len) {
            return Err(FabricError::OutOfRange { side: "remote", offset, len, region_len });
        }
        Ok(())
    }

    /// Whether the peer has room for a message of this size.
    pub(super) const fn has_room(&self, len: usize) -> bool {
        self.sent + room_of(len) - self.taken <= WINDOW
    }

    /// Takes a message for which the peer has room.
    pub(super) fn send(&mut self, message: Vec<u8>) -> Result<(), Unsent> {
        let len = message.len();
        if len == 0 || len > MAX_MESSAGE {
            return Err(Unsent {
                error: FabricError::MessageSize { len, max: MAX_MESSAGE },
                message,
            });
        }
        if !self.has_room(len) {
            return Err(Unsent { error: FabricError::RingFull, message });
        }
        self.sent += room_of(len);
        // What waits goes before it.
        if !self.waiting.is_empty() || !self.put_message(&message) {
            self.waiting.push_back(Outgoing::Message(message));
        }
        Ok(())
    }

    /// The peer has taken so much of the messages.
    pub(super) fn peer_took(&mut self, taken: u64) -> Result<(), FabricError> {
        if taken < self.taken || taken > self.sent {
            return Err(FabricError::misbehaved("it took more messages than were sent"));
        }
        self.taken = taken;
        Ok(())
    }

    /// Tells the peer how much of its messages this side has taken, with what goes there next.
    pub(super) fn tell_room(&mut self, taken: u64) {
        self.waiting.push_back(Outgoing::Room { taken });
    }

    /// Sends and receives what can be moved; the requests that this answers are completed.
    pub(super) fn poll(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<(), Ending> {
        let flushed = self.broken.take().map_or_else(|| self.flush(regions), Err);
        if let Err(ending) = flushed {
            return Err(self.last_answers(ending, regions, events));
        }
        if !self.unanswered.is_empty() || self.stirred {
            self.stirred = false;
            self.receive(regions, events)?;
        }
        Ok(())
    }

    /// Nothing can be sent any more. What the peer answered before is done, and may say better how
    /// the channel ended.
    fn last_answers(
        &mut self,
        ending: Ending,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Ending {
        loop {
            match self.receive(regions, events) {
                // It has answers for what it was asked at most.
                Ok(Turn::Unfinished) => {}
                Ok(Turn::Finished) => return ending,
                Err(found) if ending == Ending::Gone => return found,
                Err(_) => return ending,
            }
        }
    }

    /// Whether the next poll has something to find that the socket does not show.
    pub(super) const fn has_news(&self) -> bool {
        self.stirred || self.broken.is_some()
    }

    /// Whether something waits for room in the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.waiting.is_empty() || !self.output.is_empty()
    }

    /// Gives the connection away.
    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Whether the peer may still carry out a write of this side.
    pub(super) fn has_writes(&self) -> bool {
        let asked = self.unanswered.iter().take(self.asked + 1);
        asked.into_iter().any(|request| matches!(request.operation, Operation::Write(_)))
    }

    /// Fails everything that is in flight.
    pub(super) fn fail(
        &mut self,
        error: &FabricError,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) {
        self.waiting.clear();
        for request in std::mem::take(&mut self.unanswered) {
            let result = Err(error.clone());
            events.push(Event::Completed { endpoint: self.endpoint, id: request.id, result });
            regions.end(request.operation.transfer().local, events);
        }
    }

    /// The oldest request is done.
    fn complete(&mut self, regions: &mut Regions, events: &mut Vec<Event>) {
        if let Some(request) = self.unanswered.pop_front() {
            self.asked -= 1;
            events.push(Event::Completed {
                endpoint: self.endpoint,
                id: request.id,
                result: Ok(()),
            });
            regions.end(request.operation.transfer().local, events);
        }
    }
}
