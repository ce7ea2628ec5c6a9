//! Messages that a peer sends for requests between racks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rackpool_fabric::{
    EndpointId, FabricError, Operation, RegionId, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_rrpc::message::{self, Message};
use rackpool_rrpc::{
    Arena, Block, Call, CallEvent, CallId, Data, InFlightLimits, Mode, Outcome, Overdue,
    RemotePlace, RequestId, Route, RpcAction, RpcEvent, RpcMachine, Wants,
};

use crate::Input;

const ARENA: u64 = 16 << 10;
const ENDPOINT: EndpointId = EndpointId(1);
/// The owner's memory, from and to which it transfers.
const OWN: RegionId = RegionId(1);
const LIMITS: InFlightLimits = InFlightLimits { reads: 100 << 10, peer_writes: 100 << 10 };

struct Scenario {
    machine: RpcMachine,
    now: Instant,
    /// Posted and not completed.
    posted: BTreeMap<u64, Operation>,
    /// The owner's transfers that have not ended, by id.
    transfers: BTreeSet<u64>,
    /// The last window that the peer has sent, in bytes.
    window: u32,
    /// Windows that the peer was told and has not confirmed.
    told: Vec<u32>,
    open: BTreeMap<CallId, Wants>,
    asked: Vec<RequestId>,
    held: Vec<Block>,
    is_open: bool,
}

/// Messages of a peer, garbage or well-formed with arbitrary fields, while this side sends
/// requests, answers, gives up and waits. In every case:
/// - a decoded message has exactly the content of its bytes;
/// - each request ends at most once, with no more data than was requested;
/// - no operation outside the arena is posted, but for the owner's transfers; each of these ends
///   once;
/// - the owner's reads have no more bytes in flight than their limit, its writes no more than the
///   peer's window when it was posted;
/// - the peer can decode what the machine sends;
/// - after the endpoint has ended, every request has ended, and the whole arena is free.
pub fn rrpc(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let now = Instant::now();
    let arena = Arena::new(RegionId(0), RemoteRegion(1), ARENA);
    let mut scenario = Scenario {
        machine: RpcMachine::new(now, arena, 4, LIMITS),
        now,
        posted: BTreeMap::new(),
        transfers: BTreeSet::new(),
        window: 0,
        told: Vec::new(),
        open: BTreeMap::new(),
        asked: Vec::new(),
        held: Vec::new(),
        is_open: true,
    };
    let calibrate = input.below(2) == 1;
    scenario.handle(RpcEvent::Opened { endpoint: ENDPOINT, calibrate });
    while !input.is_empty() {
        match input.below(9) {
            0 => {
                let len = usize::from(input.byte());
                scenario.arrive(input.bytes(len).to_vec());
            }
            1 | 2 => scenario.well_formed(&mut input),
            3 => scenario.call(&mut input),
            4 => scenario.answer(&mut input),
            5 => {
                let at = usize::from(input.byte()) % scenario.open.len().max(1);
                if let Some(call) = scenario.open.keys().nth(at).copied() {
                    scenario.open.remove(&call);
                    scenario.machine.cancel(call);
                }
            }
            6 => scenario.complete(&mut input),
            7 => scenario.transfer(&mut input),
            _ => {
                scenario.now += Duration::from_millis(u64::from(input.short()));
                scenario.handle(RpcEvent::DeadlinePassed);
            }
        }
        let refuses = input.below(16) == 0;
        scenario.act(refuses);
    }
    scenario.end();
}

impl Scenario {
    fn handle(&mut self, event: RpcEvent) {
        self.machine.handle(self.now, event);
    }

    fn arrive(&mut self, bytes: Vec<u8>) {
        if let Ok(message) = message::decode(&bytes) {
            assert_eq!(again(&message, &bytes), bytes, "{message:?}");
        }
        self.handle(RpcEvent::Arrived { endpoint: ENDPOINT, bytes });
    }

    fn well_formed(&mut self, input: &mut Input<'_>) {
        // A number in use, or an arbitrary one.
        let at = usize::from(input.byte());
        let number = match self.open.keys().nth(at % 8) {
            Some(call) if at < 200 => call.number,
            _ => input.number(),
        };
        let place = RemotePlace {
            region: RemoteRegion(u16::from(input.below(3))),
            offset: input.number(),
            len: input.half() % 20_000,
        };
        let (inline, len) = (u32::from(input.short()), u32::from(input.short()));
        let bytes = match input.below(15) {
            0 => message::ask(number, inline, None, &[1, 2]),
            1 => message::ask(number, inline, Some(&place), &[1, 2]),
            2 => message::probe(number, inline, None, len),
            3 => message::probe(number, inline, Some(&place), len),
            4 | 5 => message::answer(number, b"head", len as usize),
            6 => message::lies(number, &place, b"head"),
            7 => message::landed(number, len, b"head"),
            8 => message::release(number),
            9 => message::cancel(number),
            10 => message::withdrawn(number),
            11 => {
                self.window = input.half() % 200_000;
                message::window(self.window)
            }
            12 => message::window_taken(self.told.pop().unwrap_or(len)),
            13 => message::window_taken(len),
            _ => message::refused(number, len),
        };
        self.arrive(bytes);
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let len = u32::from(input.short());
        let wants = match input.below(3) {
            0 => Wants::Head,
            1 => Wants::UpTo(len),
            _ => Wants::Exactly(len),
        };
        let mode = Mode::ALL.get(usize::from(input.below(4))).copied();
        let deadline = self.now + Duration::from_millis(u64::from(input.byte()));
        let overdue = if input.below(8) == 0 { Overdue::CutOff } else { Overdue::GiveUp };
        let call = Call { wants, mode, ..Call::new(&[7; 3], deadline, overdue) };
        if let Ok(id) = self.machine.call(ENDPOINT, &call) {
            assert!(self.is_open && self.open.insert(id, wants).is_none());
        }
    }

    fn transfer(&mut self, input: &mut Input<'_>) {
        let transfer = Transfer {
            local: OWN,
            local_offset: 0,
            remote: RemoteRegion::FRAMES,
            remote_offset: 0,
            len: 1 + input.half() % (64 << 10),
        };
        let operation = match input.below(2) {
            0 => Operation::Read(transfer),
            _ => Operation::Write(transfer),
        };
        let id = self.transfers.last().map_or(0, |last| last + 1);
        if self.machine.transfer(ENDPOINT, id, operation).is_ok() {
            self.transfers.insert(id);
        }
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte());
        if self.asked.is_empty() {
            return;
        }
        let ask = self.asked.remove(at % self.asked.len());
        let len = u32::from(input.short());
        match self.machine.route(ask, 4, len) {
            Some(Route::Inline) => self.machine.answer(ask, b"head", len, |bytes| bytes.fill(9)),
            Some(Route::OneSided) => match self.machine.take_block(len) {
                Some(block) => {
                    let place = self.machine.arena().place(&block);
                    self.machine.answer_from(ask, b"head", place, Some(block));
                }
                None => self.machine.refuse(ask, message::NO_ROOM),
            },
            None => {}
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.posted.len().max(1);
        let Some(id) = self.posted.keys().nth(at).copied() else { return };
        self.posted.remove(&id);
        let result = match input.below(8) {
            0 => Err(FabricError::PeerGone),
            _ => Ok(()),
        };
        self.handle(RpcEvent::Completed { id, result });
        if input.below(2) == 0 {
            self.held.drain(..).for_each(|block| self.machine.give_back(block));
        }
    }

    /// One round, in which the fabric refuses or accepts what is posted.
    fn act(&mut self, refuses: bool) {
        self.hear();
        self.machine.new_round();
        // Set while the fabric has accepted operations for which no doorbell was rung.
        let mut unrung = false;
        while let Some(action) = self.machine.poll() {
            match action {
                RpcAction::Post { endpoint, list } => {
                    assert!(list.len() + self.posted.len() <= 4, "more than the queue holds");
                    let outcome = if refuses {
                        let error = FabricError::QueueFull { in_flight: 4, asked: list.len() };
                        Outcome::PostRefused { endpoint, error }
                    } else {
                        list.iter().for_each(|request| self.check(request));
                        unrung = true;
                        Outcome::Posted { endpoint, list }
                    };
                    self.machine.settle(outcome);
                }
                RpcAction::Send { endpoint, message } if refuses => {
                    let error = FabricError::RingFull;
                    self.machine.settle(Outcome::SendRefused { endpoint, message, error });
                }
                RpcAction::Send { message, .. } => {
                    let read = message::decode(&message).expect("what is sent can be read");
                    assert_eq!(again(&read, &message), message);
                    if let Message::Window { bytes } = read {
                        self.told.push(bytes);
                    }
                    unrung = true;
                }
                RpcAction::Flush { .. } => {
                    assert!(std::mem::take(&mut unrung), "it is rung for nothing");
                }
                RpcAction::Disconnect { why, .. } => {
                    assert!(!why.is_empty());
                    self.handle_end();
                    unrung = false;
                }
                RpcAction::AnswerProbe { ask, len } => {
                    let place = self.machine.arena().beginning(len);
                    assert_eq!(place.len, len);
                    match self.machine.route(ask, 0, len) {
                        Some(Route::Inline) => self.machine.answer(ask, &[], len, |_| {}),
                        Some(Route::OneSided) => self.machine.answer_from(ask, &[], place, None),
                        None => {}
                    }
                }
            }
        }
        assert!(!unrung, "something stays behind");
        self.hear();
    }

    fn check(&mut self, request: &WorkRequest) {
        let transfer = match request.operation {
            Operation::Read(transfer) | Operation::Write(transfer) => transfer,
        };
        assert!(transfer.len > 0);
        assert!(self.posted.insert(request.id, request.operation).is_none(), "an id is used again");
        if transfer.local != OWN {
            assert_eq!(transfer.local, RegionId(0));
            let end = transfer.local_offset + u64::from(transfer.len);
            assert!(end <= ARENA, "outside of the arena");
            return;
        }
        let is_read = |operation: &Operation| matches!(operation, Operation::Read(_));
        let of_kind = self.posted.values().filter(|other| {
            other.transfer().local == OWN && is_read(other) == is_read(&request.operation)
        });
        let sizes: Vec<u64> = of_kind.map(|other| other.transfer().len.into()).collect();
        let limit = if is_read(&request.operation) { LIMITS.reads } else { self.window.into() };
        let in_flight: u64 = sizes.iter().sum();
        assert!(limit > 0 && (in_flight <= limit || sizes.len() == 1), "{in_flight} of {limit}");
    }

    fn hear(&mut self) {
        while let Some(call_events) = self.machine.call_events() {
            match call_events {
                CallEvent::Answered { call, data, .. } => {
                    let wants = self.open.remove(&call).expect("a request ends once");
                    let most = match wants {
                        Wants::Head => 0,
                        Wants::UpTo(most) | Wants::Exactly(most) => most,
                    };
                    assert!(data.len() <= u64::from(most));
                    if let Data::Arena { block, len } = data {
                        assert!(len <= block.len());
                        self.held.push(block);
                    }
                }
                CallEvent::Failed { call, .. } => {
                    self.open.remove(&call).expect("a request ends once");
                }
                CallEvent::Transferred { id, .. } => {
                    assert!(self.transfers.remove(&id), "a transfer ends once");
                }
                CallEvent::Asked { ask, .. } => self.asked.push(ask),
                CallEvent::Withdrawn { ask } => self.asked.retain(|other| *other != ask),
                _ => {}
            }
        }
    }

    fn handle_end(&mut self) {
        for (id, _) in std::mem::take(&mut self.posted) {
            self.handle(RpcEvent::Completed { id, result: Err(FabricError::Closed) });
        }
        self.handle(RpcEvent::Ended { endpoint: ENDPOINT, error: FabricError::Closed });
        self.is_open = false;
    }

    fn end(mut self) {
        self.handle_end();
        self.hear();
        assert!(self.open.is_empty(), "requests outlive their endpoint");
        assert!(self.transfers.is_empty(), "transfers outlive their endpoint");
        let in_flight = self.machine.in_flight();
        assert_eq!((in_flight.reads.used, in_flight.peer_writes.used), (0, 0), "bytes are lost");
        self.held.drain(..).for_each(|block| self.machine.give_back(block));
        assert_eq!(self.machine.arena().free_bytes(), ARENA, "a buffer is lost");
        assert_eq!(self.machine.deadline(), None, "a deadline of nothing");
    }
}

/// Encodes a message again, from its decoded form.
fn again(message: &Message, bytes: &[u8]) -> Vec<u8> {
    match message {
        Message::Request { number, inline, place, body } => {
            message::ask(*number, *inline, place.as_ref(), &bytes[body.clone()])
        }
        Message::Probe { number, inline, place, len } => {
            message::probe(*number, *inline, place.as_ref(), *len)
        }
        Message::Answer { number, head, data } => {
            let mut answer = message::answer(*number, &bytes[head.clone()], data.len());
            let start = answer.len() - data.len();
            answer[start..].copy_from_slice(&bytes[data.clone()]);
            answer
        }
        Message::DataReady { number, place, head } => {
            message::lies(*number, place, &bytes[head.clone()])
        }
        Message::DataWritten { number, len, head } => {
            message::landed(*number, *len, &bytes[head.clone()])
        }
        Message::Release { number } => message::release(*number),
        Message::Cancel { number } => message::cancel(*number),
        Message::Withdrawn { number } => message::withdrawn(*number),
        Message::Refused { number, why } => message::refused(*number, *why),
        Message::Window { bytes } => message::window(*bytes),
        Message::WindowTaken { bytes } => message::window_taken(*bytes),
    }
}
