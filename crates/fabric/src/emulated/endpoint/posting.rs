use super::{Endpoint, Pending, QUEUE_DEPTH, Work};
use crate::emulated::model::{Clock, Direction};
use crate::emulated::ring::entry_bytes;
use crate::emulated::sleep::News;
use crate::region::fits;
use crate::regions::Regions;
use crate::{DisconnectReason, FabricError, MAX_MESSAGE, Operation, WorkRequest};

/// What the owner of the fabric asks for.
impl Endpoint {
    /// Takes a list of requests, all or none.
    pub(in crate::emulated) fn post(
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
    pub(in crate::emulated) fn send(
        &mut self,
        message: &[u8],
        clock: &mut Clock,
    ) -> Result<(), FabricError> {
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
}
