use std::net::Shutdown;

use super::Poster;
use crate::regions::Regions;
use crate::tcp::buffer::{Moved, piece};
use crate::tcp::frame::{Place, REQUEST_BYTES, Request};
use crate::tcp::inbox::Ending;
use crate::{FabricError, Operation, WorkRequest};

/// Minimum room in the output to begin a frame: a header and a word.
const LEAST_ROOM: usize = REQUEST_BYTES + 8;

/// A frame to be sent.
pub(super) enum Outgoing {
    /// A request. `written` is the number of its content bytes in the output, or `None` before its
    /// header is there.
    Request {
        request: WorkRequest,
        written: Option<u32>,
    },
    Message(Vec<u8>),
    Room {
        taken: u64,
    },
}

impl Poster {
    /// Sends as much as the socket accepts, in as few writes as the output buffer allows.
    pub(super) fn flush(&mut self, regions: &Regions) -> Result<(), Ending> {
        loop {
            self.fill(regions)?;
            if self.output.is_empty() {
                return Ok(());
            }
            self.metrics.doorbells += 1;
            if self.output.send(&self.socket)? == Moved::Nothing {
                return Ok(());
            }
        }
    }

    /// Like `flush`, but keeps an error for the next poll to report.
    pub(in crate::tcp) fn try_flush(&mut self, regions: &Regions) {
        if self.broken.is_none() {
            self.broken = self.flush(regions).err();
        }
    }

    /// Sends queued frames and a bye, unless a frame is half sent, and then shuts down the sending
    /// direction.
    pub(in crate::tcp) fn say_bye(&mut self, regions: &Regions) {
        self.try_flush(regions);
        let half = matches!(self.waiting.front(), Some(Outgoing::Request { written: Some(_), .. }));
        if !half && self.output.is_empty() {
            self.output.put(&Request::Bye.encode());
            // If this fails, the peer sees only the end of the connection.
            let _ = self.output.send(&self.socket);
        }
        // Fails if the connection has ended.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Moves waiting frames into the output as far as there is room.
    pub(super) fn fill(&mut self, regions: &Regions) -> Result<(), FabricError> {
        while self.output.room().len() >= LEAST_ROOM
            && let Some(next) = self.waiting.pop_front()
        {
            let rest = match next {
                Outgoing::Request { request, written: None } => {
                    self.put_frame(header(&request));
                    match request.operation {
                        Operation::Read(_) => {
                            self.asked += 1;
                            None
                        }
                        Operation::Write(_) => {
                            Some(Outgoing::Request { request, written: Some(0) })
                        }
                    }
                }
                Outgoing::Request { request, written: Some(written) } => {
                    self.fill_content(request, written, regions)?
                }
                Outgoing::Room { taken } => {
                    self.put_frame(Request::Room { taken });
                    None
                }
                Outgoing::Message(bytes) => {
                    if !self.put_message(&bytes) {
                        self.waiting.push_front(Outgoing::Message(bytes));
                        return Ok(());
                    }
                    None
                }
            };
            if let Some(rest) = rest {
                self.waiting.push_front(rest);
            }
        }
        Ok(())
    }

    /// Puts a message into the output. Returns false if it does not fit completely.
    pub(super) fn put_message(&mut self, message: &[u8]) -> bool {
        let has_room = self.output.room().len() >= REQUEST_BYTES + message.len();
        if has_room {
            let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
            self.put_frame(Request::Message { len });
            self.output.put(message);
        }
        has_room
    }

    /// Puts a frame header into the output. The caller has checked that there is room.
    fn put_frame(&mut self, header: Request) {
        self.output.put(&header.encode());
        self.metrics.requests += 1;
    }

    /// Copies a piece of a write into the output. Returns the rest of the request, if any.
    fn fill_content(
        &mut self,
        request: WorkRequest,
        written: u32,
        regions: &Regions,
    ) -> Result<Option<Outgoing>, FabricError> {
        let transfer = request.operation.transfer();
        let at = transfer.local_offset + u64::from(written);
        let room = self.output.room();
        let len = piece(at, transfer.len - written, room.len());
        let into = &mut room[..len as usize];
        regions.memory(transfer.local)?.read(at, into).map_err(FabricError::own_memory)?;
        self.output.filled(len as usize);
        let written = written + len;
        if written == transfer.len {
            self.asked += 1;
            return Ok(None);
        }
        Ok(Some(Outgoing::Request { request, written: Some(written) }))
    }
}

fn header(request: &WorkRequest) -> Request {
    let transfer = request.operation.transfer();
    let place =
        Place { region: transfer.remote.0, offset: transfer.remote_offset, len: transfer.len };
    match request.operation {
        Operation::Read(_) => Request::Read(place),
        Operation::Write(_) => Request::Write(place),
    }
}
