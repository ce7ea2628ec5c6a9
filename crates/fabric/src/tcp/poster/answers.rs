use super::Poster;
use crate::region::store_read;
use crate::regions::Regions;
use crate::tcp::buffer::{Moved, piece};
use crate::tcp::frame::{RESPONSE_BYTES, Response};
use crate::tcp::inbox::Ending;
use crate::{Event, FabricError, Operation};

/// The number of input buffers that one poll may process.
const BUFFERS_OF_A_TURN: u32 = 8;

/// What may be left in the socket after one turn.
pub(super) enum Turn {
    /// No answer that is awaited.
    Finished,
    /// Possibly more answers.
    Unfinished,
}

impl Poster {
    /// Receives answers and completes their requests.
    pub(super) fn receive(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<Turn, Ending> {
        for _ in 0..BUFFERS_OF_A_TURN {
            match self.input.receive(&self.socket)? {
                Moved::Some => self.understand(regions, events)?,
                Moved::Nothing => return Ok(Turn::Finished),
                Moved::End => return Err(Ending::Gone),
            }
            if self.unanswered.is_empty() {
                return Ok(Turn::Finished);
            }
        }
        Ok(Turn::Unfinished)
    }

    pub(super) fn understand(
        &mut self,
        regions: &mut Regions,
        events: &mut Vec<Event>,
    ) -> Result<(), Ending> {
        loop {
            if self.data_left > 0 {
                if !self.store(regions)? {
                    return Ok(());
                }
                if self.data_left == 0 {
                    self.complete(regions, events);
                }
                continue;
            }
            let Some(bytes) = self.input.take::<RESPONSE_BYTES>() else { return Ok(()) };
            self.metrics.completions += 1;
            match Response::decode(bytes)? {
                Response::Data { len } => self.data_left = self.expect_read(len)?,
                Response::Done { count } => {
                    for _ in 0..count {
                        self.expect_write()?;
                        self.complete(regions, events);
                    }
                }
                Response::Bye => return Err(Ending::Bye),
            }
        }
    }

    /// Copies received bytes of a read to its region. Returns false if there are none, or only a
    /// part of a word.
    fn store(&mut self, regions: &Regions) -> Result<bool, FabricError> {
        let Some(request) = self.unanswered.front() else { return Ok(false) };
        let transfer = request.operation.transfer();
        let at = transfer.local_offset + u64::from(transfer.len - self.data_left);
        let data = self.input.data();
        let len = piece(at, self.data_left, data.len());
        let memory = regions.memory(transfer.local)?;
        store_read(transfer, memory, at, &data[..len as usize]).map_err(FabricError::own_memory)?;
        self.input.consume(len as usize);
        self.data_left -= len;
        Ok(len > 0)
    }

    /// Checks that the oldest unanswered request is a read of `len` bytes that was sent to the
    /// peer.
    fn expect_read(&self, len: u32) -> Result<u32, FabricError> {
        match self.unanswered.front().map(|request| request.operation) {
            Some(Operation::Read(transfer)) if self.asked > 0 && transfer.len == len => Ok(len),
            _ => Err(FabricError::misbehaved(format!("it answered with {len} B that nobody read"))),
        }
    }

    /// Checks that the oldest unanswered request is a write that was sent to the peer.
    fn expect_write(&self) -> Result<(), FabricError> {
        match self.unanswered.front().map(|request| request.operation) {
            Some(Operation::Write(_)) if self.asked > 0 => Ok(()),
            _ => Err(FabricError::misbehaved("it answered a write that was not sent")),
        }
    }
}
