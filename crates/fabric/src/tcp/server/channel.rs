use std::net::TcpStream;
use std::sync::Arc;

use rackpool_model::{Incarnation, RackId};

use crate::region::fits;
use crate::tcp::buffer::{Buffer, Moved, piece};
use crate::tcp::frame::{Place, REQUEST_BYTES, RESPONSE_BYTES, Request, Response};
use crate::tcp::inbox::{Ending, Inbox, InboxEvent};
use crate::{EndpointId, FabricError, MemoryRegion};

/// The memory that peers may access; the frames first.
pub(in crate::tcp) type Exports = Arc<[Arc<dyn MemoryRegion>]>;

/// Minimum room in the output to continue with a request: the answer to the writes before it, its
/// own header, a word, and the next answer.
const LEAST_ROOM: usize = 4 * RESPONSE_BYTES;
/// The number of buffers that one channel may process before the other channels get their turn.
const TURN: u32 = 8;

/// One lifetime of a peer's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct PeerIncarnation {
    pub(in crate::tcp) rack: RackId,
    pub(in crate::tcp) incarnation: Incarnation,
}

/// A channel on which a peer posts. Executes its requests in order.
pub(in crate::tcp) struct ServedChannel {
    endpoint: EndpointId,
    peer: PeerIncarnation,
    pub(super) socket: TcpStream,
    exports: Exports,
    inbox: Arc<Inbox>,
    input: Buffer,
    output: Buffer,
    current: Option<Current>,
    /// The number of writes that are executed and not acknowledged.
    done: u32,
    /// True if requests wait for room in the output.
    stalled: bool,
}

/// A request that is not finished.
enum Current {
    Read(Part),
    Write(Part),
    Message { bytes: Vec<u8>, len: usize },
}

/// The rest of an operation.
struct Part {
    region: u16,
    offset: u64,
    left: u32,
}

/// The result of a channel's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There was nothing to do.
    Idle,
    /// Work was done, and none is left.
    Served,
    /// More work is left.
    Unfinished,
}

impl ServedChannel {
    pub(in crate::tcp) fn new(
        endpoint: EndpointId,
        peer: PeerIncarnation,
        socket: TcpStream,
        exports: Exports,
        inbox: Arc<Inbox>,
        input: Buffer,
    ) -> Self {
        let output = Buffer::new();
        Self {
            endpoint,
            peer,
            socket,
            exports,
            inbox,
            input,
            output,
            current: None,
            done: 0,
            stalled: false,
        }
    }

    /// The rack that posts on the channel.
    pub(super) const fn peer(&self) -> PeerIncarnation {
        self.peer
    }

    /// Executes the requests that have arrived, as far as the socket accepts the answers.
    pub(super) fn turn(&mut self) -> Result<Turn, Ending> {
        let mut turn = Turn::Idle;
        for _ in 0..TURN {
            if !self.flush()? {
                return Ok(turn);
            }
            if !self.stalled {
                // Reads until the socket is empty: the end of the connection may come with the last
                // bytes.
                match self.input.receive(&self.socket)? {
                    Moved::Some => {}
                    Moved::Nothing => return Ok(turn),
                    Moved::End => return Err(Ending::Gone),
                }
            }
            turn = Turn::Served;
            let served = self.serve();
            self.acknowledge();
            self.flush()?;
            self.stalled = served?;
        }
        Ok(Turn::Unfinished)
    }

    /// Does the work of a turn with bytes that did not arrive through the socket.
    #[cfg(feature = "fuzzing")]
    pub(in crate::tcp) fn feed(
        &mut self,
        bytes: &[u8],
        answers: &mut Vec<u8>,
    ) -> Result<(), Ending> {
        self.input.make_room();
        self.input.put(bytes);
        loop {
            let served = self.serve();
            self.acknowledge();
            answers.extend(self.output.data());
            self.output.consume(usize::MAX);
            if !served? {
                return Ok(());
            }
        }
    }

    /// Sends a bye, unless a frame is half sent.
    pub(super) fn say_bye(&mut self) {
        let half_sent = matches!(self.current, Some(Current::Read(_)));
        if !half_sent && self.output.is_empty() {
            self.output.put(&Response::Bye.encode());
            // If this fails, the peer sees only the end of the connection.
            let _ = self.output.send(&self.socket);
        }
    }

    /// Sends the output. Returns false if the socket did not accept all of it.
    fn flush(&mut self) -> Result<bool, Ending> {
        while !self.output.is_empty() {
            if self.output.send(&self.socket)? == Moved::Nothing {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Executes requests. Returns false when it needs more input, true when the output is full.
    fn serve(&mut self) -> Result<bool, Ending> {
        loop {
            if self.output.room().len() < LEAST_ROOM {
                return Ok(true);
            }
            match self.current.take() {
                None => match self.input.take::<REQUEST_BYTES>() {
                    None => return Ok(false),
                    Some(bytes) => self.begin(Request::decode(bytes)?)?,
                },
                Some(Current::Read(part)) => self.read(part)?,
                Some(waiting) if self.input.is_empty() => {
                    self.current = Some(waiting);
                    return Ok(false);
                }
                Some(Current::Write(part)) => {
                    if !self.write(part)? {
                        return Ok(false);
                    }
                }
                Some(Current::Message { bytes, len }) => self.message(bytes, len)?,
            }
        }
    }

    fn begin(&mut self, request: Request) -> Result<(), Ending> {
        match request {
            Request::Read(place) => {
                let part = self.part(place)?;
                self.acknowledge();
                self.output.put(&Response::Data { len: place.len }.encode());
                self.current = Some(Current::Read(part));
            }
            Request::Write(place) => self.current = Some(Current::Write(self.part(place)?)),
            Request::Message { len } => {
                let len = len as usize;
                self.current = Some(Current::Message { bytes: Vec::with_capacity(len), len });
            }
            Request::Room { taken } => {
                self.inbox.tell(InboxEvent::Room { endpoint: self.endpoint, taken });
            }
            Request::Bye => return Err(Ending::Bye),
        }
        Ok(())
    }

    fn message(&mut self, mut bytes: Vec<u8>, len: usize) -> Result<(), Ending> {
        let data = self.input.data();
        let some = data.len().min(len - bytes.len());
        bytes.extend(&data[..some]);
        self.input.consume(some);
        if bytes.len() < len {
            self.current = Some(Current::Message { bytes, len });
        } else {
            self.inbox.push(InboxEvent::Message { endpoint: self.endpoint, bytes })?;
        }
        Ok(())
    }

    fn read(&mut self, mut part: Part) -> Result<(), Ending> {
        let room = self.output.room();
        let len = piece(part.offset, part.left, room.len() - RESPONSE_BYTES);
        let region = &self.exports[usize::from(part.region)];
        region.read(part.offset, &mut room[..len as usize]).map_err(FabricError::own_memory)?;
        self.output.filled(len as usize);
        if !part.advance(len) {
            self.current = Some(Current::Read(part));
        }
        Ok(())
    }

    /// Copies received bytes of a write. Returns false if they are only a part of a word.
    fn write(&mut self, mut part: Part) -> Result<bool, Ending> {
        let data = self.input.data();
        let len = piece(part.offset, part.left, data.len());
        let region = &self.exports[usize::from(part.region)];
        region.write(part.offset, &data[..len as usize]).map_err(FabricError::own_memory)?;
        self.input.consume(len as usize);
        if part.advance(len) {
            self.done += 1;
        } else {
            self.current = Some(Current::Write(part));
        }
        Ok(len > 0)
    }

    /// Answers the executed writes.
    fn acknowledge(&mut self) {
        let count = std::mem::take(&mut self.done);
        if count > 0 {
            self.output.put(&Response::Done { count }.encode());
        }
    }

    /// Checks the place named by a peer.
    fn part(&self, place: Place) -> Result<Part, FabricError> {
        let Place { region, offset, len } = place;
        let Some(memory) = self.exports.get(usize::from(region)) else {
            return Err(FabricError::misbehaved(format!("it asks for region {region}")));
        };
        if !fits(offset, u64::from(len), memory.len()) {
            return Err(FabricError::misbehaved(format!(
                "it asks for {len} B at {offset:#x} of a region of {} B",
                memory.len()
            )));
        }
        Ok(Part { region, offset, left: len })
    }
}

impl Part {
    /// Accounts for `len` more bytes moved. Returns true if none are left.
    const fn advance(&mut self, len: u32) -> bool {
        self.offset += len as u64;
        self.left -= len;
        self.left == 0
    }
}
