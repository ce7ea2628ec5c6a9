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

/// The number of requests that can be in flight on one endpoint.
pub(super) const QUEUE_DEPTH: usize = 1024;

/// The posting side of an endpoint: its channel on which this side sends requests.
pub(super) struct Poster {
    endpoint: EndpointId,
    pub(super) socket: TcpStream,
    /// Length of each region that the peer exports, in bytes.
    remote: Vec<u64>,
    /// Frames that are not in the output buffer yet. They all wait for a flush.
    waiting: VecDeque<Outgoing>,
    output: Buffer,
    input: Buffer,
    /// Requests without an answer, the oldest first.
    unanswered: VecDeque<WorkRequest>,
    /// The number of `unanswered` requests that have been put into the output buffer completely.
    asked: usize,
    /// Bytes still to come for the oldest request, a read; 0 before its answer begins.
    data_left: u32,
    /// Total room of the messages sent so far, in bytes.
    sent: u64,
    /// The part of `sent` that the peer has taken, in bytes.
    taken: u64,
    /// The socket is readable although no request is in flight: most likely it has ended.
    pub(super) stirred: bool,
    /// An error that occurred outside of `poll`; the next poll reports it.
    broken: Option<Ending>,
    /// Counts of frames put into the output, writes to the socket, and answers.
    pub(super) metrics: DeviceCounters,
}

impl Poster {
    /// Creates the channel to a peer whose regions have the lengths `remote`.
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

    /// Queues a list of requests: all of them, or none if it returns an error.
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

    /// Posts a list without a socket; returns the bytes that would be sent.
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

    /// Processes answers that did not arrive through the socket.
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

    /// Returns true if the peer has room for a message of `len` bytes.
    pub(super) const fn has_room(&self, len: usize) -> bool {
        self.sent + room_of(len) - self.taken <= WINDOW
    }

    /// Queues a message if the peer has room for it.
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
        // Waiting frames go before the message.
        if !self.waiting.is_empty() || !self.put_message(&message) {
            self.waiting.push_back(Outgoing::Message(message));
        }
        Ok(())
    }

    /// Processes the peer's report of the total room of messages it has taken.
    pub(super) fn peer_took(&mut self, taken: u64) -> Result<(), FabricError> {
        if taken < self.taken || taken > self.sent {
            return Err(FabricError::misbehaved("it took more messages than were sent"));
        }
        self.taken = taken;
        Ok(())
    }

    /// Queues the report of the room of messages that this side has taken; it goes with the next
    /// output.
    pub(super) fn tell_room(&mut self, taken: u64) {
        self.waiting.push_back(Outgoing::Room { taken });
    }

    /// Sends and receives what the socket allows, and completes the answered requests.
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

    /// Called when sending has failed. Processes the answers received before: those requests are
    /// done, and the end of the stream may state more precisely how the channel ended.
    fn last_answers(
        &mut self,
        ending: Ending,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Ending {
        loop {
            match self.receive(regions, events) {
                // The loop ends: the peer has answers only for the requests that it received.
                Ok(Turn::Unfinished) => {}
                Ok(Turn::Finished) => return ending,
                Err(found) if ending == Ending::Gone => return found,
                Err(_) => return ending,
            }
        }
    }

    /// Returns true if the next poll has something to report that the epoll does not show.
    pub(super) const fn has_ended_or_answered(&self) -> bool {
        self.stirred || self.broken.is_some()
    }

    /// Returns true if frames wait for room in the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.waiting.is_empty() || !self.output.is_empty()
    }

    /// Returns the connection.
    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    /// Returns true if the peer may still execute a write of this side.
    pub(super) fn has_writes(&self) -> bool {
        let asked = self.unanswered.iter().take(self.asked + 1);
        asked.into_iter().any(|request| matches!(request.operation, Operation::Write(_)))
    }

    /// Completes all requests in flight with `error`.
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

    /// Completes the oldest request.
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
