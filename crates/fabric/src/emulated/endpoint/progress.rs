use rackpool_model::Awaited;

use super::{COPY_BYTES_PER_POLL, Endpoint, MESSAGES_PER_POLL, Pending, Work};
use crate::emulated::copy::copy_piece;
use crate::emulated::link::Word;
use crate::emulated::model::Clock;
use crate::emulated::ring::entry_bytes;
use crate::regions::Regions;
use crate::{DisconnectReason, Event, FabricError};

/// What happens while the endpoint is open, a step with each poll.
impl Endpoint {
    pub(super) fn advance(
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
        // What nobody has flushed.
        self.publish()?;
        self.receive(clock, events)?;
        while let Some(Pending { due_ns, work }) = self.queue.front() {
            if *due_ns > clock.now_ns() {
                break;
            }
            let due_ns = *due_ns;
            match work {
                Work::Message(_) => self.push_front(due_ns)?,
                Work::Copy { .. } => {
                    self.publish()?;
                    return self.copy_due(regions, clock, events);
                }
            }
        }
        self.publish()
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
            self.sleep.tell(&self.link, Awaited::Room)?;
        }
        Ok(())
    }

    /// Puts the message at the front of the queue, whose turn has come, into the ring.
    fn push_front(&mut self, due_ns: u64) -> Result<(), FabricError> {
        if let Some(Pending { work: Work::Message(message), .. }) = self.queue.pop_front() {
            self.sender.release(entry_bytes(&message));
            self.sender.push(&self.link, due_ns, &message)?;
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
}
