use rackpool_fabric::{EndpointId, ErrorClass, FabricError, Operation};

use super::peer::{Buffer, Due, Open, Purpose, Role, State, Work};
use super::{MOST_OPEN, RpcMachine};
use crate::budget::Charge;
use crate::message::{self, MAX_BODY, MAX_INLINE};
use crate::{
    Bytes, Call, CallError, CallEvent, CallId, Data, Failure, Mode, Place, RemotePlace, Thresholds,
    Wants,
};

/// The limits and buffers of a request.
struct Plan {
    inline: u32,
    /// Length of the buffer to which the peer writes, in bytes; `None` if there is none.
    exposed: Option<u32>,
    most: u32,
}

impl Plan {
    fn new(wants: Wants, mode: Option<Mode>, thresholds: &Thresholds) -> Self {
        let pure = |len: u32| Self { inline: len, exposed: None, most: len };
        match wants {
            Wants::Head | Wants::Exactly(0) => pure(0),
            Wants::UpTo(most) => {
                let inline = match mode {
                    Some(Mode::Pure) => most,
                    Some(_) => 0,
                    None => thresholds.pure_unknown.min(most),
                };
                Self { inline, ..pure(most) }
            }
            Wants::Exactly(len) => match mode.unwrap_or_else(|| thresholds.mode(len)) {
                Mode::Pure => pure(len),
                Mode::ThenOneSided => Self { inline: 0, ..pure(len) },
                Mode::ZeroCopy => Self { inline: 0, exposed: Some(len), most: len },
            },
        }
    }
}

fn at_most(len: usize, max: usize) -> Result<(), CallError> {
    if len > max { Err(CallError::TooLong { len, max }) } else { Ok(()) }
}

/// Takes a buffer and returns its first `len` bytes as the data of an answer.
fn buffer_data(buffer: &mut Option<Buffer>, len: u32) -> Data {
    match buffer.take() {
        Some(Buffer::Arena(block)) => Data::Arena { block, len },
        Some(Buffer::Owner(place)) => Data::Place(place.first(len)),
        None => Data::None,
    }
}

/// The caller's side.
impl RpcMachine {
    /// Sends a request to a peer. It ends with [`CallEvent::Answered`] or [`CallEvent::Failed`].
    pub fn call(&mut self, endpoint: EndpointId, call: &Call<'_>) -> Result<CallId, CallError> {
        let peer = self.peers.get_mut(&endpoint).filter(|peer| !peer.is_ending);
        let peer = peer.ok_or(CallError::NotConnected)?;
        at_most(call.body.len(), MAX_BODY)?;
        let plan = Plan::new(call.wants, call.mode, &peer.thresholds);
        if call.mode == Some(Mode::Pure) {
            at_most(plan.inline as usize, MAX_INLINE)?;
        }
        let most = call.into.map_or(self.arena.most_read(), |place| place.len.into());
        at_most(plan.most as usize, usize::try_from(most).unwrap_or(usize::MAX))?;
        if peer.calls.len() >= MOST_OPEN as usize {
            return Err(CallError::TooManyOpen { open: peer.calls.len() });
        }
        let buffer = match (call.into, plan.exposed) {
            (Some(place), exposed) => {
                Some(Buffer::Owner(place.first(exposed.unwrap_or(place.len))))
            }
            (None, Some(len)) => {
                let block = self.arena.take(len).ok_or(CallError::NoRoom { len })?;
                Some(Buffer::Arena(block))
            }
            (None, None) => None,
        };
        let open = Open {
            state: State::Waiting,
            purpose: Purpose::Owner,
            buffer,
            is_exposed: plan.exposed.is_some(),
            most: plan.most,
            deadline: call.deadline,
            overdue: call.overdue,
        };
        self.open(endpoint, open, |number, place| {
            message::ask(number, plan.inline, place.as_ref(), call.body)
        })
    }

    /// Takes a slot and sends the message that `write` makes of its number and its exposed buffer.
    pub(super) fn open(
        &mut self,
        endpoint: EndpointId,
        open: Open,
        write: impl FnOnce(u64, Option<RemotePlace>) -> Vec<u8>,
    ) -> Result<CallId, CallError> {
        let Some(peer) = self.peers.get_mut(&endpoint) else {
            self.free_buffer(open.buffer);
            return Err(CallError::NotConnected);
        };
        let exposed = open.buffer.as_ref().filter(|_| open.is_exposed);
        let place = exposed.map(|buffer| match buffer {
            Buffer::Arena(block) => self.arena.place(block).exported(),
            Buffer::Owner(place) => place.exported(),
        });
        let deadline = open.deadline;
        match peer.calls.insert(open) {
            Ok(number) => {
                let call = CallId { endpoint, number };
                self.deadlines.insert((deadline, Due::Call(call)));
                peer.send(endpoint, write(number, place), &mut self.ready);
                Ok(call)
            }
            Err(open) => {
                let count = peer.calls.len();
                self.free_buffer(open.buffer);
                Err(CallError::TooManyOpen { open: count })
            }
        }
    }

    /// Cancels a request. It has no further event, except [`CallEvent::Free`] if the peer may still
    /// write to a place that the request named. Has no effect if the request has ended.
    pub fn cancel(&mut self, call: CallId) {
        let CallId { endpoint, number } = call;
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        let Some(open) = peer.calls.get_mut(number) else { return };
        if open.purpose == Purpose::GivenUp {
            return;
        }
        open.purpose = Purpose::GivenUp;
        self.metrics.given_up += 1;
        self.deadlines.remove(&(open.deadline, Due::Call(call)));
        match open.state {
            State::Waiting => self.send(endpoint, message::cancel(number)),
            State::NoRoom { .. } => {
                self.send(endpoint, message::release(number));
                self.forget(call);
                self.feed_starved();
            }
            State::Reading { .. } => {}
        }
    }

    /// The open request for an answer. Returns `None` if the answer is not awaited, after handling
    /// the case: a late answer is dropped and its exposed data released; a second answer is a fault
    /// of the peer.
    fn awaited(&mut self, call: CallId, is_lent: bool) -> Option<&mut Open> {
        let CallId { endpoint, number } = call;
        match self.peers.get_mut(&endpoint)?.calls.get_mut(number) {
            Some(Open { state: State::Waiting, purpose: Purpose::GivenUp, .. }) => {
                self.metrics.late += 1;
                if is_lent {
                    self.send(endpoint, message::release(number));
                }
                self.forget(call);
            }
            // Looked up again, because the borrow checker does not accept returning the matched
            // reference.
            Some(Open { state: State::Waiting, .. }) => {
                return self.peers.get_mut(&endpoint)?.calls.get_mut(number);
            }
            Some(_) => self.cut_off(endpoint, "it answered a request twice".into()),
            None => self.metrics.late += 1,
        }
        None
    }

    pub(super) fn answer_arrived(&mut self, call: CallId, head: Bytes, data: Bytes) {
        let Some(open) = self.awaited(call, false) else { return };
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if len > open.most {
            return self.fail(call, Failure::TooLarge { len });
        }
        let data = if len == 0 { Data::None } else { Data::Message(data) };
        self.finish(call, Mode::Pure, head, data);
    }

    pub(super) fn landed(&mut self, call: CallId, head: Bytes, len: u32) {
        let Some(open) = self.awaited(call, false) else { return };
        let room = match &open.buffer {
            Some(Buffer::Arena(block)) if open.is_exposed => block.len(),
            Some(Buffer::Owner(place)) if open.is_exposed => place.len,
            _ => 0,
        };
        if len > room {
            return self.cut_off(call.endpoint, format!("it says it wrote {len} B into {room} B"));
        }
        let data = buffer_data(&mut open.buffer, len);
        self.finish(call, Mode::ZeroCopy, head, data);
    }

    pub(super) fn lies(&mut self, call: CallId, head: Bytes, from: RemotePlace) {
        let Some(open) = self.awaited(call, true) else { return };
        if from.len > open.most {
            self.send(call.endpoint, message::release(call.number));
            return self.fail(call, Failure::TooLarge { len: from.len });
        }
        open.state = State::NoRoom { head, from };
        if open.buffer.is_some() {
            self.read(call);
        } else {
            self.starved.push_back(call);
            self.feed_starved();
        }
    }

    /// Begins to read the data of an answer. Returns false if there is no room for it.
    fn read(&mut self, call: CallId) -> bool {
        let CallId { endpoint, number } = call;
        let Self { peers, arena, .. } = self;
        let open = peers.get_mut(&endpoint).and_then(|peer| peer.calls.get_mut(number));
        let Some(Open { state, buffer, .. }) = open else { return true };
        let State::NoRoom { head, from } = state else { return true };
        let (from, head) = (*from, std::mem::take(head));
        if buffer.is_none() {
            let Some(block) = arena.take(from.len) else {
                *state = State::NoRoom { head, from };
                return false;
            };
            *buffer = Some(Buffer::Arena(block));
        }
        let place: Place = match buffer {
            Some(Buffer::Arena(block)) => arena.place(block).first(from.len),
            Some(Buffer::Owner(place)) => place.first(from.len),
            None => return false,
        };
        *state = State::Reading { head, len: from.len };
        let operation = Operation::Read(place.transfer(&from));
        self.post(endpoint, Role::Read { number }, operation, Charge::None, None);
        true
    }

    /// Begins to read as many waiting answers as there is room for, in the order of their arrival.
    pub(super) fn feed_starved(&mut self) {
        while let Some(call) = self.starved.front().copied() {
            if !self.read(call) {
                return;
            }
            self.starved.pop_front();
        }
    }

    pub(super) fn withdrawn(&mut self, call: CallId) {
        let peer = self.peers.get_mut(&call.endpoint);
        match peer.and_then(|peer| peer.calls.get_mut(call.number)) {
            Some(Open { state: State::Waiting, purpose: Purpose::GivenUp, .. }) => {
                self.forget(call);
            }
            Some(_) => {
                self.cut_off(call.endpoint, "it withdrew a request that was not given up".into());
            }
            None => {}
        }
    }

    pub(super) fn refused(&mut self, call: CallId, why: u32) {
        if self.awaited(call, false).is_some() {
            self.fail(call, Failure::Refused(why));
        }
    }

    /// A posted one-sided request has completed.
    pub(super) fn completed(&mut self, id: u64, result: Result<(), FabricError>) {
        let Some(Work { endpoint, role, charge }) = self.works.remove(id) else { return };
        if let Some(peer) = self.peers.get_mut(&endpoint) {
            peer.flow.completed(charge, &mut self.reads);
            peer.confirm_window(endpoint, &mut self.ready);
            peer.queue(endpoint, &mut self.ready);
            self.queue_waiting();
        }
        match (role, result) {
            (Role::Transfer { id }, result) => {
                self.tell(CallEvent::Transferred { endpoint, id, result });
            }
            (Role::Read { number }, Ok(())) => self.read_done(CallId { endpoint, number }),
            (Role::Write { block }, result) => {
                block.into_iter().for_each(|block| self.give_back(block));
                self.cut_off_if_fatal(endpoint, result.err());
            }
            (Role::Read { .. }, Err(error)) => self.cut_off_if_fatal(endpoint, Some(error)),
        }
    }

    /// The fabric rejected a one-sided request as invalid.
    pub(super) fn failed_work(&mut self, id: u64, error: &FabricError) {
        if let Some(Work { endpoint, role, .. }) = self.works.remove(id) {
            if let Some(peer) = self.peers.get_mut(&endpoint) {
                peer.queue(endpoint, &mut self.ready);
            }
            match role {
                Role::Transfer { id } => {
                    let result = Err(error.clone());
                    self.tell(CallEvent::Transferred { endpoint, id, result });
                }
                Role::Read { .. } => self.cut_off_if_fatal(endpoint, Some(error.clone())),
                Role::Write { block } => {
                    block.into_iter().for_each(|block| self.give_back(block));
                    self.cut_off_if_fatal(endpoint, Some(error.clone()));
                }
            }
        }
    }

    /// Closes the endpoint if the error is fatal: the unusable place was named by the peer.
    fn cut_off_if_fatal(&mut self, endpoint: EndpointId, error: Option<FabricError>) {
        if let Some(error) = error.filter(|error| error.class() == ErrorClass::Fatal) {
            self.cut_off(endpoint, format!("the place that it named can't be used: {error}"));
        }
    }

    fn read_done(&mut self, call: CallId) {
        let open = self.peers.get_mut(&call.endpoint).and_then(|p| p.calls.get_mut(call.number));
        let Some(Open { state: State::Reading { head, len }, purpose, buffer, .. }) = open else {
            return;
        };
        if *purpose == Purpose::GivenUp {
            self.send(call.endpoint, message::release(call.number));
            return self.forget(call);
        }
        let head = std::mem::take(head);
        let data = buffer_data(buffer, *len);
        self.send(call.endpoint, message::release(call.number));
        self.finish(call, Mode::ThenOneSided, head, data);
    }

    /// Reports the answer of a request that was not given up.
    fn finish(&mut self, call: CallId, mode: Mode, head: Bytes, data: Data) {
        let Some(open) = self.remove(call) else { return };
        self.free_buffer(open.buffer);
        if open.purpose == Purpose::Probe {
            self.free_data(data);
            return self.measured(call.endpoint);
        }
        match mode {
            Mode::Pure => self.metrics.pure += 1,
            Mode::ThenOneSided => self.metrics.then_one_sided += 1,
            Mode::ZeroCopy => self.metrics.zero_copy += 1,
        }
        self.tell(CallEvent::Answered { call, head, data });
    }

    /// Ends a request without an answer.
    pub(super) fn fail(&mut self, call: CallId, failure: Failure) {
        let Some(open) = self.remove(call) else { return };
        match open.purpose {
            Purpose::Owner => {
                self.free_buffer(open.buffer);
                self.tell(CallEvent::Failed { call, failure });
            }
            Purpose::Probe => {
                self.free_buffer(open.buffer);
                match failure {
                    Failure::Refused(_) => self.probe_refused(call.endpoint),
                    _ => self.calibrated(call.endpoint),
                }
            }
            Purpose::GivenUp => self.free_given_up(call, open.buffer),
        }
    }

    /// Ends a request that was given up.
    fn forget(&mut self, call: CallId) {
        if let Some(open) = self.remove(call) {
            self.free_given_up(call, open.buffer);
        }
    }

    fn remove(&mut self, call: CallId) -> Option<Open> {
        let open = self.peers.get_mut(&call.endpoint)?.calls.remove(call.number)?;
        self.deadlines.remove(&(open.deadline, Due::Call(call)));
        Some(open)
    }

    pub(super) fn free_given_up(&mut self, call: CallId, buffer: Option<Buffer>) {
        match buffer {
            Some(Buffer::Owner(place)) => self.tell(CallEvent::Free { call, place }),
            buffer => self.free_buffer(buffer),
        }
    }

    pub(super) fn free_buffer(&mut self, buffer: Option<Buffer>) {
        if let Some(Buffer::Arena(block)) = buffer {
            self.give_back(block);
        }
    }

    fn free_data(&mut self, data: Data) {
        if let Data::Arena { block, .. } = data {
            self.give_back(block);
        }
    }
}
