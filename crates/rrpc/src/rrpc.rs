use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::{
    EndpointId, Event as FabricEvent, Fabric, MemoryRegion, Operation, OutOfRange, RemoteRegion,
    Unsent,
};

use crate::message::{MAX_INLINE, NO_ROOM};
use crate::{
    Action, Arena, Block, Call, CallError, CallEvent, CallId, Event, Outcome, Place, RequestId,
    Route, RpcMachine, RpcMetrics, Thresholds,
};

/// Requests over a fabric that its owner polls: events go in, events come out, and
/// [`flush`](Self::flush) once in a poll round does what is to be done. All one-sided operations
/// of the fabric go through it.
///
/// ```text
/// loop {
///     fabric.poll(&mut events);
///     for event in events.drain(..) { rrpc.take_in(now, event); }
///     while let Some(call_events) = rrpc.call_events() { ... }             // answers, asks, transfers
///     rrpc.call(...); rrpc.answer(...); rrpc.transfer(...);
///     rrpc.flush(&mut fabric);
/// }
/// ```
pub struct Rrpc {
    machine: RpcMachine,
    memory: Arc<dyn MemoryRegion>,
}

impl Rrpc {
    /// Requests over this fabric, with buffers in the first `bytes` of `memory`
    /// ([`Arena::bytes_for`] says how many), which the fabric exports as `export`.
    pub fn new(
        fabric: &mut dyn Fabric,
        memory: Arc<dyn MemoryRegion>,
        export: RemoteRegion,
        bytes: u64,
    ) -> Self {
        let region = fabric.register(Arc::clone(&memory));
        let arena = Arena::new(region, export, bytes.min(memory.len()));
        Self { machine: RpcMachine::new(Instant::now(), arena, fabric.queue_depth()), memory }
    }

    /// How long a peer that stands still may keep what it was exposed to read, before it is cut
    /// off: as long as the owner takes it for alive; 2 s unless said.
    pub const fn expose_for(&mut self, time: Duration) {
        self.machine.expose_for(time);
    }

    /// Takes in what happened on the fabric. Connections that were made are measured by the side
    /// that made them.
    pub fn take_in(&mut self, now: Instant, event: FabricEvent) {
        let event = match event {
            FabricEvent::Connected { endpoint, .. } => Event::Opened { endpoint, calibrate: true },
            FabricEvent::Accepted { endpoint, .. } => Event::Opened { endpoint, calibrate: false },
            FabricEvent::Message { endpoint, bytes } => Event::Arrived { endpoint, bytes },
            FabricEvent::Completed { id, result, .. } => Event::Completed { id, result },
            FabricEvent::Disconnected { endpoint, reason } => {
                Event::Ended { endpoint, error: reason.error() }
            }
            _ => return,
        };
        self.machine.handle(now, event);
    }

    /// The next thing the owner is told.
    pub fn call_events(&mut self) -> Option<CallEvent> {
        self.machine.call_events()
    }

    /// Does what has gathered in a poll round: one list of one-sided operations for each peer, then
    /// its messages, all with one doorbell. What found no room in the last round is tried again.
    pub fn flush(&mut self, fabric: &mut dyn Fabric) {
        self.machine.new_round();
        while let Some(action) = self.machine.poll() {
            let outcome = match action {
                Action::Post { endpoint, list } => match fabric.post(endpoint, &list) {
                    Ok(()) => Outcome::Posted { endpoint, list },
                    Err(error) => Outcome::PostRefused { endpoint, error },
                },
                Action::Send { endpoint, message } => match fabric.send(endpoint, message) {
                    Ok(()) => continue,
                    Err(Unsent { error, message }) => {
                        Outcome::SendRefused { endpoint, message, error }
                    }
                },
                Action::Flush { endpoint } => {
                    fabric.flush(endpoint);
                    continue;
                }
                Action::Disconnect { endpoint, why } => {
                    tracing::error!("a rack is cut off ({endpoint:?}): {why}");
                    fabric.disconnect(endpoint);
                    continue;
                }
                Action::AnswerProbe { ask, len } => {
                    let place = self.machine.arena().beginning(len);
                    let memory = Arc::clone(&self.memory);
                    if self.answer_from(ask, &[], place, &*memory).is_err() {
                        self.machine.refuse(ask, NO_ROOM);
                    }
                    continue;
                }
            };
            self.machine.settle(outcome);
        }
    }

    /// When [`tick`](Self::tick) has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// Ends what has waited too long.
    pub fn tick(&mut self, now: Instant) {
        self.machine.handle(now, Event::DeadlinePassed);
    }

    /// Asks a peer. The request ends with [`CallEvent::Answered`] or [`CallEvent::Failed`].
    pub fn call(&mut self, endpoint: EndpointId, call: &Call<'_>) -> Result<CallId, CallError> {
        self.machine.call(endpoint, call)
    }

    /// Gives a request up: see [`RpcMachine::cancel`].
    pub fn cancel(&mut self, call: CallId) {
        self.machine.cancel(call);
    }

    /// Answers with bytes, through the arena if the message is no place for them. If the arena has
    /// no room they go with the message after all, or the peer is told that there is no room.
    pub fn answer(&mut self, ask: RequestId, head: &[u8], data: &[u8]) {
        let Ok(len) = u32::try_from(data.len()) else {
            return self.machine.refuse(ask, crate::message::DOES_NOT_FIT);
        };
        let block = match self.machine.route(ask, head.len(), len) {
            Some(Route::OneSided) => self.store(data, len),
            Some(Route::Inline) => None,
            None => return,
        };
        match block {
            Some(block) => {
                let place = self.machine.arena().place(&block);
                self.machine.answer_from(ask, head, place, Some(block));
            }
            None if head.len() + data.len() > MAX_INLINE => self.machine.refuse(ask, NO_ROOM),
            None => self.machine.answer(ask, head, len, |bytes| bytes.copy_from_slice(data)),
        }
    }

    fn store(&mut self, data: &[u8], len: u32) -> Option<Block> {
        let block = self.machine.take_block(len)?;
        match self.memory.write(block.offset(), data) {
            Ok(()) => Some(block),
            // The arena is not larger than its memory.
            Err(_) => {
                self.machine.give_back(block);
                None
            }
        }
    }

    /// Answers with data that lies in this exported memory. Nobody may change it before the peer
    /// has it or has given up.
    pub fn answer_from(
        &mut self,
        ask: RequestId,
        head: &[u8],
        place: Place,
        memory: &dyn MemoryRegion,
    ) -> Result<(), OutOfRange> {
        let Place { offset, len, .. } = place;
        let region_len = memory.len();
        if offset.checked_add(len.into()).is_none_or(|end| end > region_len) {
            return Err(OutOfRange { offset, len: len.into(), region_len });
        }
        match self.machine.route(ask, head.len(), len) {
            Some(Route::Inline) => {
                let mut result = Ok(());
                self.machine.answer(ask, head, len, |bytes| result = memory.read(offset, bytes));
                return result;
            }
            Some(Route::OneSided) => self.machine.answer_from(ask, head, place, None),
            None => {}
        }
        Ok(())
    }

    /// Says that there is no answer: a code of [`message`](crate::message).
    pub fn refuse(&mut self, ask: RequestId, why: u32) {
        self.machine.refuse(ask, why);
    }

    /// Has a one-sided operation on a known place done: see [`RpcMachine::transfer`].
    pub fn transfer(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        operation: Operation,
    ) -> Result<(), CallError> {
        self.machine.transfer(endpoint, id, operation)
    }

    /// Takes back transfers that were not posted yet: see [`RpcMachine::withdraw_transfers`].
    pub fn withdraw_transfers(&mut self, which: impl FnMut(u64) -> bool) -> Vec<u64> {
        self.machine.withdraw_transfers(which)
    }

    /// Whether there is something for [`flush`](Self::flush) to send or to post.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        self.machine.has_gathered()
    }

    /// One-sided requests that wait for room, to all peers.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.machine.unposted()
    }

    /// Reads from the beginning of a block.
    pub fn read(&self, block: &Block, into: &mut [u8]) -> Result<(), OutOfRange> {
        let (len, region_len) = (into.len() as u64, u64::from(block.len()));
        if len > region_len {
            return Err(OutOfRange { offset: 0, len, region_len });
        }
        self.memory.read(block.offset(), into)
    }

    /// Takes back a block that came with an answer.
    pub fn give_back(&mut self, block: Block) {
        self.machine.give_back(block);
    }

    /// Bytes of the arena that are in no block.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.machine.arena().free_bytes()
    }

    /// The counts so far.
    #[must_use]
    pub const fn metrics(&self) -> RpcMetrics {
        self.machine.metrics()
    }

    /// Which mode is chosen for which size over an open endpoint.
    #[must_use]
    pub fn thresholds(&self, endpoint: EndpointId) -> Option<Thresholds> {
        self.machine.thresholds(endpoint)
    }
}
