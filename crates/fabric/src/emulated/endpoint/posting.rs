use super::{Endpoint, Pending, QUEUE_DEPTH, Work};
use crate::emulated::model::Clock;
use crate::emulated::ring::entry_bytes;
use crate::emulated::wire::Flow;
use crate::region::fits;
use crate::regions::Regions;
use crate::{DisconnectReason, FabricError, MAX_MESSAGE, Operation, Unsent, WorkRequest};

/// Requests of the fabric's owner.
impl Endpoint {
    /// Queues a list of requests: all of them, or none if it returns an error.
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
            let due_ns = self.wire.schedule_operation(clock.now_ns(), &operation);
            regions.begin(operation.transfer().local);
            self.queue.push_back(Pending { due_ns, work: Work::Copy { id, operation, done: 0 } });
        }
        self.operations += list.len();
        Ok(())
    }

    /// Queues a message behind the operations posted before it. The peer sees the message at the
    /// next flush.
    pub(in crate::emulated) fn send(
        &mut self,
        message: Vec<u8>,
        clock: &mut Clock,
    ) -> Result<(), Unsent> {
        if let Err(error) = self.check_open().and_then(|()| self.check_room(&message)) {
            return Err(Unsent { error, message });
        }
        let due_ns = self.wire.schedule(clock.now_ns(), Flow::Out, message.len() as u64);
        if !self.queue.is_empty() {
            self.sender.reserve(entry_bytes(&message));
            self.queue.push_back(Pending { due_ns, work: Work::Message(message) });
        } else if let Err(error) = self.sender.push(&self.link, due_ns, &message) {
            self.failure = Some(error.clone());
            return Err(Unsent { error, message });
        }
        Ok(())
    }

    /// Publishes queued messages to the peer and wakes it once. An error ends the endpoint at the
    /// next poll.
    pub(in crate::emulated) fn flush(&mut self) {
        if self.check_open().is_ok()
            && let Err(error) = self.publish()
        {
            self.failure = Some(error);
        }
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

    /// Checks that a message has a valid size and that the ring has room for it. Any error other
    /// than `RingFull` and `MessageSize` ends the endpoint at the next poll.
    fn check_room(&mut self, message: &[u8]) -> Result<(), FabricError> {
        let len = message.len();
        if len == 0 || len > MAX_MESSAGE {
            return Err(FabricError::MessageSize { len, max: MAX_MESSAGE });
        }
        let needed = entry_bytes(message);
        let room = self.sender.room(&self.link).inspect_err(|error| {
            self.failure = Some(error.clone());
        })?;
        self.wanted_room = (room < needed).then_some(needed);
        if room < needed { Err(FabricError::RingFull) } else { Ok(()) }
    }
}
