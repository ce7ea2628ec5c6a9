use std::collections::btree_map::Entry;
use std::time::Duration;

use rackpool_fabric::{EndpointId, Operation};

use super::peer::{Due, ExposedBlock, OpenRequest, Role};
use super::{MOST_OPEN, RpcAction, RpcMachine};
use crate::budget::Charge;
use crate::calibration::LARGEST_PROBE;
use crate::message::{self, DOES_NOT_FIT, MAX_BODY, MAX_INLINE, Message};
use crate::{Block, Bytes, CallEvent, CallId, Place, RemotePlace, RequestId};

/// Default time that a peer has to read exposed data.
pub(super) const EXPOSED: Duration = Duration::from_secs(2);
/// Limit of messages queued for a peer: an answer, a release and a cancel for each request, and
/// some more.
const MOST_UNSENT: usize = 4 * MOST_OPEN as usize;

/// How the data of an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// In the message.
    Inline,
    /// By a one-sided write or read, from exported memory.
    OneSided,
}

/// The server's side.
impl RpcMachine {
    /// Processes a message of a peer.
    pub(super) fn arrived(&mut self, endpoint: EndpointId, bytes: Vec<u8>) {
        if self.peers.get(&endpoint).is_none_or(|peer| peer.is_ending) {
            return;
        }
        let message = match message::decode(&bytes) {
            Ok(message) => message,
            Err(error) => return self.cut_off(endpoint, format!("it sent {error}")),
        };
        let call = |number| CallId { endpoint, number };
        match message {
            Message::Request { number, inline, place, body } => {
                let ask = RequestId { endpoint, number };
                if self.accept(ask, inline, place) {
                    self.metrics.asked += 1;
                    let body = Bytes::new(bytes, body.start, body.end);
                    self.tell(CallEvent::Asked { ask, body });
                }
            }
            Message::Probe { number, inline, place, len } => {
                let ask = RequestId { endpoint, number };
                if !self.accept(ask, inline, place) {
                } else if len > LARGEST_PROBE || u64::from(len) > self.arena.bytes() {
                    self.refuse(ask, DOES_NOT_FIT);
                } else {
                    self.actions.push_back(RpcAction::AnswerProbe { ask, len });
                }
            }
            Message::Answer { number, head, data } => {
                // Heads are short and are copied; the data is not.
                let text = bytes.get(head).unwrap_or_default().to_vec();
                let head_len = text.len();
                let data = Bytes::new(bytes, data.start, data.end);
                self.answer_arrived(call(number), Bytes::new(text, 0, head_len), data);
            }
            Message::DataReady { number, place, head } => {
                self.lies(call(number), Bytes::new(bytes, head.start, head.end), place);
            }
            Message::DataWritten { number, len, head } => {
                self.landed(call(number), Bytes::new(bytes, head.start, head.end), len);
            }
            Message::Release { number } => self.released(RequestId { endpoint, number }),
            Message::Cancel { number } => self.cancelled(RequestId { endpoint, number }),
            Message::Withdrawn { number } => self.withdrawn(call(number)),
            Message::Refused { number, why } => self.refused(call(number), why),
            Message::Window { bytes } => self.window_arrived(endpoint, bytes),
            Message::WindowTaken { bytes } => self.window_confirmed(endpoint, bytes),
        }
    }

    /// Registers a request of the peer. Closes the endpoint and returns false if it breaks a rule.
    fn accept(&mut self, ask: RequestId, inline: u32, place: Option<RemotePlace>) -> bool {
        let Some(peer) = self.peers.get_mut(&ask.endpoint) else { return false };
        let is_full = peer.asks.len() >= MOST_OPEN as usize || peer.flow.unsent() > MOST_UNSENT;
        let why = match peer.asks.entry(ask.number) {
            Entry::Occupied(_) => "it used the number of a request that is not answered yet",
            Entry::Vacant(_) if is_full => "it sent more requests than may be open",
            Entry::Vacant(vacant) => {
                vacant.insert(OpenRequest { inline, place, exposed: None });
                return true;
            }
        };
        self.cut_off(ask.endpoint, why.into());
        false
    }

    fn pending(&mut self, ask: RequestId) -> Option<&mut OpenRequest> {
        let peer = self.peers.get_mut(&ask.endpoint).filter(|peer| !peer.is_ending)?;
        peer.asks.get_mut(&ask.number).filter(|ask| ask.exposed.is_none())
    }

    /// The way for `len` bytes of data with a head of `head` bytes. `None` if the request no longer
    /// waits for an answer.
    #[must_use]
    pub fn route(&mut self, ask: RequestId, head: usize, len: u32) -> Option<Route> {
        let fits = head + len as usize <= MAX_INLINE;
        let inline = self.pending(ask)?.inline;
        Some(if len == 0 || (len <= inline && fits) { Route::Inline } else { Route::OneSided })
    }

    /// Answers with `len` bytes of data in the message, written by `fill`. The data may exceed the
    /// caller's inline limit if it fits into a message. Has no effect if the request no longer
    /// waits for an answer.
    pub fn answer(&mut self, ask: RequestId, head: &[u8], len: u32, fill: impl FnOnce(&mut [u8])) {
        let data = len as usize;
        if head.len() + data > MAX_INLINE {
            return self.refuse(ask, DOES_NOT_FIT);
        }
        let Some(peer) = self.peers.get_mut(&ask.endpoint) else { return };
        if peer.take_pending(ask.number) {
            let mut message = message::answer(ask.number, head, data);
            let start = message.len() - data;
            fill(&mut message[start..]);
            peer.send(ask.endpoint, message, &mut self.ready);
        }
    }

    /// Answers with data in exported memory. If the data is in an arena `block`, the block is freed
    /// once the peer has the data. Otherwise, the owner must not change the data until the peer has
    /// it or has given up the request.
    pub fn answer_from(&mut self, ask: RequestId, head: &[u8], place: Place, block: Option<Block>) {
        let until = self.now + self.exposes_for;
        let room = self.pending(ask).map(|ask| ask.place);
        let fits = match room {
            Some(Some(remote)) => place.len <= remote.len,
            Some(None) => true,
            None => return block.into_iter().for_each(|block| self.give_back(block)),
        };
        if !fits || place.len == 0 || head.len() > MAX_BODY {
            block.into_iter().for_each(|block| self.give_back(block));
            return self.refuse(ask, DOES_NOT_FIT);
        }
        let RequestId { endpoint, number } = ask;
        if let Some(Some(remote)) = room {
            self.take_pending(ask);
            let operation = Operation::Write(place.transfer(&remote));
            let landed = message::landed(number, place.len, head);
            self.post(endpoint, Role::Write { block }, operation, Charge::None, Some(landed));
        } else if let Some(pending) = self.pending(ask) {
            pending.exposed = Some(ExposedBlock { block, until });
            self.deadlines.insert((until, Due::ExposedBlock(ask)));
            self.send(endpoint, message::lies(number, &place.exported(), head));
        }
    }

    /// Refuses a request; `why` is a code of [`message`](crate::message).
    pub fn refuse(&mut self, ask: RequestId, why: u32) {
        if self.take_pending(ask) {
            self.send(ask.endpoint, message::refused(ask.number, why));
        }
    }

    fn take_pending(&mut self, ask: RequestId) -> bool {
        let peer = self.peers.get_mut(&ask.endpoint);
        peer.is_some_and(|peer| peer.take_pending(ask.number))
    }

    /// The peer has read the exposed data.
    fn released(&mut self, ask: RequestId) {
        let Some(peer) = self.peers.get_mut(&ask.endpoint) else { return };
        match peer.asks.remove(&ask.number) {
            Some(OpenRequest { exposed: Some(ExposedBlock { block, until }), .. }) => {
                self.deadlines.remove(&(until, Due::ExposedBlock(ask)));
                block.into_iter().for_each(|block| self.give_back(block));
            }
            Some(_) => self.cut_off(ask.endpoint, "it released what it was not exposed".into()),
            None => {}
        }
    }

    /// The peer has cancelled a request. A write or exposure that has begun ends by itself.
    fn cancelled(&mut self, ask: RequestId) {
        if self.take_pending(ask) {
            self.send(ask.endpoint, message::withdrawn(ask.number));
            self.tell(CallEvent::Withdrawn { ask });
        }
    }
}
