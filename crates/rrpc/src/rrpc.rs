use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, OutOfRange, RemoteRegion, Unsent,
};

use crate::message::{MAX_INLINE, NO_ROOM};
use crate::{
    Arena, Block, Call, CallError, CallEvent, CallId, InFlight, InFlightLimits, Outcome, Place,
    RequestId, Route, RpcAction, RpcEvent, RpcMachine, RpcMetrics, Thresholds,
};

/// RRPC over a fabric that its owner polls. The owner passes fabric events in and takes call events
/// out; [`flush`](Self::flush), called once in a poll round, executes what is queued. All one-sided
/// operations of the fabric must go through it.
///
/// ```text
/// loop {
///     fabric.poll(&mut events);
///     for event in events.drain(..) { rrpc.take_in(now, event); }
///     while let Some(call_events) = rrpc.call_events() { ... }  // answers, asks, transfers
///     rrpc.call(...); rrpc.answer(...); rrpc.transfer(...);
///     rrpc.flush(&mut fabric);
/// }
/// ```
pub struct Rrpc {
    machine: RpcMachine,
    memory: Arc<dyn MemoryRegion>,
}

impl Rrpc {
    /// Creates RRPC over `fabric`, with buffers in the first `bytes` bytes of `memory`, which the
    /// fabric must export as `export`. [`Arena::bytes_for`] computes a suitable size. The owner's
    /// reads, and the writes of its peers, have no more bytes in flight than `limits` allow.
    pub fn new(
        fabric: &mut dyn Fabric,
        memory: Arc<dyn MemoryRegion>,
        export: RemoteRegion,
        bytes: u64,
        limits: InFlightLimits,
    ) -> Self {
        let region = fabric.register(Arc::clone(&memory));
        let arena = Arena::new(region, export, bytes.min(memory.len()));
        let machine = RpcMachine::new(Instant::now(), arena, fabric.queue_depth(), limits);
        Self { machine, memory }
    }

    /// Sets how long a peer may take to read exposed data before its endpoint is closed. It should
    /// be as long as the owner considers a silent peer alive; the default is 2 s.
    pub const fn expose_for(&mut self, time: Duration) {
        self.machine.expose_for(time);
    }

    /// Processes an event of the fabric. The side that made a connection calibrates it.
    pub fn take_in(&mut self, now: Instant, event: Event) {
        let event = match event {
            Event::Connected { endpoint, .. } => RpcEvent::Opened { endpoint, calibrate: true },
            Event::Accepted { endpoint, .. } => RpcEvent::Opened { endpoint, calibrate: false },
            Event::Message { endpoint, bytes } => RpcEvent::Arrived { endpoint, bytes },
            Event::Completed { id, result, .. } => RpcEvent::Completed { id, result },
            Event::Disconnected { endpoint, reason } => {
                RpcEvent::Ended { endpoint, error: reason.error() }
            }
            _ => return,
        };
        self.machine.handle(now, event);
    }

    /// The next event for the owner.
    pub fn call_events(&mut self) -> Option<CallEvent> {
        self.machine.call_events()
    }

    /// Executes the work of a poll round. For each peer, posts one list of one-sided operations and
    /// sends its messages, with one doorbell for all. Work for which the fabric had no room in the
    /// last round is offered again.
    pub fn flush(&mut self, fabric: &mut dyn Fabric) {
        self.machine.new_round();
        while let Some(action) = self.machine.poll() {
            let outcome = match action {
                RpcAction::Post { endpoint, list } => match fabric.post(endpoint, &list) {
                    Ok(()) => Outcome::Posted { endpoint, list },
                    Err(error) => Outcome::PostRefused { endpoint, error },
                },
                RpcAction::Send { endpoint, message } => match fabric.send(endpoint, message) {
                    Ok(()) => continue,
                    Err(Unsent { error, message }) => {
                        Outcome::SendRefused { endpoint, message, error }
                    }
                },
                RpcAction::Flush { endpoint } => {
                    fabric.flush(endpoint);
                    continue;
                }
                RpcAction::Disconnect { endpoint, why } => {
                    tracing::error!("a rack is cut off ({endpoint:?}): {why}");
                    fabric.disconnect(endpoint);
                    continue;
                }
                RpcAction::AnswerProbe { ask, len } => {
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

    /// Ends requests and exposures that are overdue.
    pub fn tick(&mut self, now: Instant) {
        self.machine.handle(now, RpcEvent::DeadlinePassed);
    }

    /// Sends a request to a peer. It ends with [`CallEvent::Answered`] or [`CallEvent::Failed`].
    pub fn call(&mut self, endpoint: EndpointId, call: &Call<'_>) -> Result<CallId, CallError> {
        self.machine.call(endpoint, call)
    }

    /// Cancels a request: see [`RpcMachine::cancel`].
    pub fn cancel(&mut self, call: CallId) {
        self.machine.cancel(call);
    }

    /// Answers with `data`, through the arena if it is too large for the message. If the arena has
    /// no room, the data travels in the message after all, or the request is refused if it does not
    /// fit there.
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
            // Cannot happen: the arena is not larger than its memory.
            Err(_) => {
                self.machine.give_back(block);
                None
            }
        }
    }

    /// Answers with data in exported memory. The owner must not change the data before the peer has
    /// it or has given up the request.
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

    /// Refuses a request; `why` is a code of [`message`](crate::message).
    pub fn refuse(&mut self, ask: RequestId, why: u32) {
        self.machine.refuse(ask, why);
    }

    /// Queues a one-sided operation on a known place: see [`RpcMachine::transfer`].
    pub fn transfer(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        operation: Operation,
    ) -> Result<(), CallError> {
        self.machine.transfer(endpoint, id, operation)
    }

    /// Removes transfers that are not posted yet: see [`RpcMachine::withdraw_transfers`].
    pub fn withdraw_transfers(&mut self, which: impl FnMut(u64) -> bool) -> Vec<u64> {
        self.machine.withdraw_transfers(which)
    }

    /// Returns true if [`flush`](Self::flush) has something to send or post.
    #[must_use]
    pub fn has_gathered(&self) -> bool {
        self.machine.has_gathered()
    }

    /// The number of one-sided requests to all peers that wait to be posted.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.machine.unposted()
    }

    /// Reads the first bytes of a block into `into`.
    pub fn read(&self, block: &Block, into: &mut [u8]) -> Result<(), OutOfRange> {
        let (len, region_len) = (into.len() as u64, u64::from(block.len()));
        if len > region_len {
            return Err(OutOfRange { offset: 0, len, region_len });
        }
        self.memory.read(block.offset(), into)
    }

    /// Frees a block that came with an answer.
    pub fn give_back(&mut self, block: Block) {
        self.machine.give_back(block);
    }

    /// Free space of the arena, in bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.machine.arena().free_bytes()
    }

    /// The counters so far.
    #[must_use]
    pub const fn metrics(&self) -> RpcMetrics {
        self.machine.metrics()
    }

    /// Returns true if the reads of other endpoints hold up this one: see
    /// [`RpcMachine::is_held_up`].
    #[must_use]
    pub fn is_held_up(&self, endpoint: EndpointId) -> bool {
        self.machine.is_held_up(endpoint)
    }

    /// The bytes in flight to this rack.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.machine.in_flight()
    }

    /// The thresholds of an open endpoint.
    #[must_use]
    pub fn thresholds(&self, endpoint: EndpointId) -> Option<Thresholds> {
        self.machine.thresholds(endpoint)
    }
}
