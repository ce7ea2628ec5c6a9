use rackpool_sync::Awaited;

use super::{COPY_BYTES_PER_POLL, Endpoint, MESSAGES_PER_POLL, Moved, Pending, TRUSTED_NS, Work};
use crate::emulated::copy::copy_piece;
use crate::emulated::link::Word;
use crate::emulated::model::{Clock, now_ns};
use crate::emulated::ring::entry_bytes;
use crate::emulated::socket;
use crate::regions::Regions;
use crate::{DisconnectReason, Event, FabricError};

/// Liveness of the peer, that is, whether it can close the link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    There,
    /// The peer's process has ended, and its memory may serve another process.
    Gone,
}

/// Progress of an open endpoint, one step for each poll.
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
        // Messages that the owner has not flushed.
        self.publish()?;
        self.receive(clock, events)?;
        let moved = self.move_bytes(regions, clock);
        // Operations that completed before the error are reported first.
        self.tell_moved(regions, clock, events);
        if moved? == Peer::Gone {
            self.peer_gone(regions, events);
            return Ok(());
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

    /// Moves bytes that have passed the wire, within the budget of one poll. If the peer closes
    /// meanwhile and sleeps until `in_op` is 0, the next poll wakes it in close().
    fn move_bytes(&mut self, regions: &Regions, clock: &mut Clock) -> Result<Peer, FabricError> {
        loop {
            let Some(front) = self.queue.front() else { return Ok(Peer::There) };
            if matches!(front.work, Work::Message(_)) {
                self.push_front()?;
            } else if front.moves_at(&self.wire) > clock.now_ns() {
                return Ok(Peer::There);
            } else {
                self.publish()?;
                self.link.store(Word::InOperation, 1)?;
                // SYNC: pairs with the fence after closed = 1 in close().
                self.link.fence();
                let peer = self.look_for_peer();
                let copied = match peer {
                    Peer::There => self.copy_within(COPY_BYTES_PER_POLL, regions, clock),
                    Peer::Gone => Ok(()),
                };
                self.link.store(Word::InOperation, 0)?;
                return copied.map(|()| peer);
            }
        }
    }

    /// Checks that the peer's process lives, unless a recent check found it alive. Reads the clock
    /// anew: the poll's time would be too old if this process was stopped since.
    fn look_for_peer(&mut self) -> Peer {
        let now_ns = now_ns();
        if now_ns.saturating_sub(self.peer_lived_ns) > TRUSTED_NS {
            if socket::has_ended(&self.socket) {
                return Peer::Gone;
            }
            self.peer_lived_ns = now_ns;
        }
        Peer::There
    }

    /// Puts the message at the front of the queue into the ring. No operation before it is left to
    /// move.
    fn push_front(&mut self) -> Result<(), FabricError> {
        if let Some(Pending { due_ns, work: Work::Message(message) }) = self.queue.pop_front() {
            self.sender.release(entry_bytes(&message));
            self.sender.push(&self.link, due_ns, &message)?;
        }
        Ok(())
    }

    fn copy_within(
        &mut self,
        mut budget: u32,
        regions: &Regions,
        clock: &mut Clock,
    ) -> Result<(), FabricError> {
        while let Some(front) = self.queue.front_mut() {
            let moves_at = front.moves_at(&self.wire);
            let Work::Copy { id, operation, done } = &mut front.work else { break };
            // The peer's word may have changed since the last piece.
            let closed = self.link.peer(Word::Closed)? != 0;
            if closed || budget == 0 || moves_at > clock.now_ns() {
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
                let moved = Moved { due_ns: front.due_ns, id: *id, local: transfer.local };
                self.moved.push_back(moved);
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    /// Reports the moved operations that are due as completed.
    fn tell_moved(&mut self, regions: &mut Regions, clock: &mut Clock, events: &mut Vec<Event>) {
        while let Some(moved) = self.moved.pop_front_if(|moved| moved.due_ns <= clock.now_ns()) {
            let Moved { id, local, .. } = moved;
            self.operations -= 1;
            events.push(Event::Completed { endpoint: self.id, id, result: Ok(()) });
            regions.end(local, events);
        }
    }
}
