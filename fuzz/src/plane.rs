//! A daemon's data plane: bytes that clients write into their files, messages of other racks, and
//! data from the metadata server.

use std::collections::BTreeSet;
use std::time::Duration;

use rackpool_daemon::testing::PlaneUnderTest;
use rackpool_fabric::{DisconnectReason, EndpointId};
use rackpool_model::{
    Access, ClientId, Epoch, FrameId, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, RackId,
};
use rackpool_ring::client_file::{ArrayKind, CELLS_PER_THREAD, ClientFile, RingKind};
use rackpool_ring::request::Request;
use rackpool_rrpc::message::{self, Message};
use rackpool_shm::metadata::PeerLog;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::metadata::Member;
use rackpool_wire::peer::{LINE_BYTES, PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};
use rackpool_wire::swap::SwapId;
use rackpool_wire::{decode, encode};

use crate::Input;

const THREADS: u16 = 2;
const CLIENTS: u8 = 3;
/// The range of the thread slots in a client's file.
const SLOTS: u64 = 4096;
const SLOTS_END: u64 = SLOTS + 2 * (16 << 10);
/// The end of the call cells of all threads.
const RINGS: u64 = SLOTS_END + 2 * 128 * CELLS_PER_THREAD as u64;

struct Scenario {
    plane: PlaneUnderTest,
    endpoints: Vec<EndpointId>,
    calls: Vec<(EndpointId, u64, PeerRequest)>,
    /// Number of client calls so far.
    begun: u32,
    /// Set once other racks have taken part.
    has_peers: bool,
    /// Clients whose own rings are so damaged that pushing to them might not end.
    broken: BTreeSet<ClientId>,
    /// False once a client has written bytes that no client of this release writes.
    is_honest: bool,
}

/// Requests and arbitrary bytes in client files, messages and silence of other racks, members and
/// homes from the metadata server, deaths of clients and daemons. In every case:
/// - the data plane continues (an error would end the daemon) and posts no transfer out of bounds;
/// - other racks can decode what it sends, which is never longer than a message may be;
/// - a restarted daemon derives the same metrics from the metadata as this one;
/// - an answer in a call cell can always be decoded;
/// - when all clients have ended and no other rack took part, nothing is in use.
pub fn plane(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut scenario = Scenario {
        plane: PlaneUnderTest::new().unwrap(),
        endpoints: Vec::new(),
        calls: Vec::new(),
        begun: 0,
        has_peers: false,
        broken: BTreeSet::new(),
        is_honest: true,
    };
    while !input.is_empty() {
        match input.below(16) {
            0 => scenario.open(client(&mut input)),
            1..=5 => scenario.request(&mut input),
            6 => scenario.scribble(&mut input),
            7 => scenario.poke_slot(&mut input),
            8 => scenario.plane.kill(client(&mut input)).unwrap(),
            9 => scenario.restart(&mut input),
            10 => scenario.metadata_server(&mut input),
            11 => scenario.peers(&mut input),
            12 => scenario.peer_asks(&mut input),
            13 => scenario.peer_answers(&mut input),
            _ => scenario.step(u64::from(input.byte())),
        }
    }
    scenario.end();
}

fn client(input: &mut Input<'_>) -> ClientId {
    ClientId(u32::from(input.below(CLIENTS)) + 1)
}

/// An address that is likely to be in this rack or in another one.
fn address(input: &mut Input<'_>) -> GlobalAddr {
    let page = match input.below(4) {
        0 => return GlobalAddr::from_raw(input.word()),
        1 => PageId(u32::from(input.short())),
        _ => PageId(PlaneUnderTest::FIRST.0 + u32::from(input.byte()) % 20),
    };
    let offset = (u64::from(input.short()) % 4096) & !15;
    GlobalAddr::new(page, offset, PlaneUnderTest::page_size()).unwrap()
}

fn request(input: &mut Input<'_>) -> RackRequest {
    let (addr, len) = (address(input), input.number());
    match input.below(13) {
        0 => RackRequest::Translate {
            page: PageId(u32::try_from(len).unwrap_or(101)),
            access: if addr.raw() & 16 == 0 { Access::Read } else { Access::Write },
        },
        1..=3 => RackRequest::Refill {
            bytes: u64::from(input.short() % 9000),
            count: u64::from(input.byte()),
        },
        4 => RackRequest::Release,
        5 => RackRequest::Read { addr, len, data: input.number(), batch: input.number() },
        6 => RackRequest::Write { addr, len, data: input.number(), batch: input.number() },
        7 => RackRequest::CompareAndSwap { addr, expected: 0, new: len },
        8 => RackRequest::RefillFixed {
            bytes: u64::from(input.short() % 5000),
            count: u64::from(input.byte()),
        },
        9 => RackRequest::Extend {
            head: addr,
            pages: u64::from(input.below(20)),
            known: u64::from(input.below(4)),
        },
        10 => RackRequest::Pinned {
            objects: [addr, address(input), GlobalAddr::NULL, addr, address(input)],
        },
        11 => RackRequest::ReadInto {
            addr,
            len,
            head: address(input),
            into: address(input),
            batch: input.number(),
        },
        _ => RackRequest::FetchAndAdd { addr, delta: len },
    }
}

impl Scenario {
    fn step(&mut self, later_ms: u64) {
        self.plane.step(Duration::from_millis(later_ms)).unwrap();
        for (endpoint, message) in self.plane.sent() {
            match message::decode(&message).unwrap() {
                Message::Request { number, body, .. } => {
                    self.calls.push((endpoint, number, decode(&message[body]).unwrap()));
                }
                Message::Answer { head, .. } => {
                    if let PeerReply::Allocated(addrs) = decode(&message[head]).unwrap() {
                        let distinct: BTreeSet<_> = addrs.iter().collect();
                        assert_eq!(distinct.len(), addrs.len(), "an object is handed out twice");
                    }
                }
                // The speed of another rack.
                _ => {}
            }
        }
    }

    fn open(&mut self, id: ClientId) {
        if self.plane.client(id).is_none() {
            self.broken.remove(&id);
            self.plane.open(id, THREADS).unwrap();
        }
    }

    /// A thread posts a request as the client library does.
    fn request(&mut self, input: &mut Input<'_>) {
        let (id, thread) = (client(input), u16::from(input.below(2)));
        let (cell, kind) = (input.below(4), input.byte());
        let request = request(input);
        let Some(client) = self.plane.client(id) else { return };
        let file = client.file();
        self.begun += 1;
        let (code, arguments) = request.to_words();
        let is_here = matches!(code, 1..=3 | 9 | 10);
        let route = if is_here { RingKind::Rack } else { RingKind::Remote };
        let entry =
            Request { code, cell, thread, call: self.begun, life: self.plane.life(), arguments };
        if !self.broken.contains(&id) {
            // A full ring drops it.
            let _ = file.ring(route).push(&[entry]);
        }
        if kind & 1 == 0 {
            self.step(1);
        }
        if kind & 2 == 0 {
            self.take_from_inbox(id, thread);
        }
        self.check_cells();
    }

    /// Does what a client thread does with objects from a refill: notes each at another place, then
    /// clears its cell.
    fn take_from_inbox(&self, id: ClientId, thread: u16) {
        let Some(client) = self.plane.client(id) else { return };
        let slot = client.file().thread(thread).unwrap();
        let objects = slot.inbox.iter().filter(|cell| cell.load(Ordering::Relaxed) != 0);
        let room =
            |cells: &[AtomicU64]| cells.iter().position(|cell| cell.load(Ordering::Relaxed) == 0);
        for object in objects {
            let to = room(&slot.outbox).map(|at| &slot.outbox[at]);
            let to = to.or_else(|| room(&slot.magazines[0]).map(|at| &slot.magazines[0][at]));
            let Some(to) = to else { return };
            to.store(object.load(Ordering::Relaxed), Ordering::Relaxed);
            object.store(0, Ordering::Relaxed);
        }
    }

    fn check_cells(&self) {
        if !self.is_honest {
            return;
        }
        for client in (1..=u32::from(CLIENTS)).filter_map(|id| self.plane.client(ClientId(id))) {
            for cell in (0..THREADS).flat_map(|thread| client.file().cells(thread).unwrap()) {
                let Some(answer) = cell.answer(cell.answered().max(1)) else { continue };
                let meaning = RackAnswer::from_words(answer.status, answer.values);
                assert!(meaning.is_some(), "{answer:?} means nothing");
            }
        }
    }

    /// Writes arbitrary bytes anywhere in a client's file except its superblock.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let (id, at) = (client(input), u64::from(input.half()));
        let Some(client) = self.plane.client(id) else { return };
        // Behind the slots are call cells and rings. The data areas are never parsed.
        let area = match input.below(3) {
            0 => SLOTS..ClientFile::bytes(THREADS),
            1 => SLOTS..SLOTS_END,
            _ => SLOTS_END..RINGS + 4096,
        };
        let offset = area.start + at % (area.end - area.start - 64);
        if offset + 64 > RINGS {
            self.broken.insert(id);
        }
        client.bytes().write(offset & !7, input.bytes(64)).unwrap();
        self.is_honest = false;
    }

    /// Writes an address, valid or not, into one of the places for objects.
    fn poke_slot(&mut self, input: &mut Input<'_>) {
        let (id, thread) = (client(input), u16::from(input.below(2)));
        let (place, at, addr) = (input.below(5), usize::from(input.below(64)), address(input));
        let Some(client) = self.plane.client(id) else { return };
        let slot = client.file().thread(thread).unwrap();
        let cell = match place {
            0 => &slot.inbox[at],
            1 => &slot.outbox[at],
            2 => &slot.magazines[at % 16][at],
            _ => {
                let kind = if place == 3 { ArrayKind::Owned } else { ArrayKind::Pins };
                client.file().array(kind).note(at, addr.raw());
                self.is_honest = false;
                return;
            }
        };
        cell.store(addr.raw(), Ordering::Relaxed);
        self.is_honest = false;
    }

    /// The daemon dies, possibly with a damaged peer record, and starts again.
    fn restart(&mut self, input: &mut Input<'_>) {
        let before = self.plane.metrics();
        let kind = input.byte();
        if kind & 1 == 1 {
            self.has_peers = true;
            let record = self.plane.metadata().peer(RackId(u16::from(input.below(3)))).unwrap();
            damage(input, if kind & 2 == 0 { &record.asked } else { &record.served });
        }
        self.plane.restart().unwrap();
        self.endpoints.clear();
        self.calls.clear();
        let after = self.plane.metrics();
        // The record may free objects that were being returned to another rack.
        let (before, after) = (before.allocated_bytes, after.allocated_bytes);
        assert!(after <= before && (after == before || kind & 3 == 3));
        for id in (1..=u32::from(CLIENTS)).filter(|id| kind & (4 << id) == 0) {
            self.plane.come_back(ClientId(id)).unwrap();
        }
        self.step(0);
    }

    fn metadata_server(&mut self, input: &mut Input<'_>) {
        self.has_peers = true;
        if input.below(2) == 0 {
            let home = match input.below(4) {
                0 => None,
                1 => Some(RackId(input.short())),
                _ => Some(RackId(u16::from(input.below(3)))),
            };
            let page = address(input).page(PlaneUnderTest::page_size()).unwrap_or(PageId(1));
            self.plane.located(page, home).unwrap();
            return;
        }
        let members = (0..input.below(4)).map(|_| Member {
            rack: RackId(
                if input.below(4) == 0 { input.short() } else { input.byte().into() } % 400,
            ),
            incarnation: Incarnation(1),
            memory: MemoryId(u128::from(input.below(2))),
            alive: input.below(4) != 0,
            pages: PageRange { first: PageId(input.short().into()), count: input.half() },
            free_frames: input.half(),
            control_path: String::new(),
            fabric_address: if input.below(8) == 0 { String::new() } else { "there".into() },
        });
        self.plane.members(members.collect()).unwrap();
    }

    fn peers(&mut self, input: &mut Input<'_>) {
        self.has_peers = true;
        let rack = RackId(if input.below(6) == 0 { input.short() } else { input.below(3).into() });
        match input.below(5) {
            0 => self.endpoints.push(self.plane.accept(rack)),
            1 => self.endpoints.extend(self.plane.connect(Some(rack))),
            2 => drop(self.plane.connect(None)),
            3 => {
                if let Some(endpoint) = self.endpoint(input) {
                    self.plane.disconnect(endpoint, DisconnectReason::PeerGone);
                }
            }
            _ => self.plane.complete(input.below(3)),
        }
    }

    fn endpoint(&self, input: &mut Input<'_>) -> Option<EndpointId> {
        let at = usize::from(input.byte());
        (!self.endpoints.is_empty()).then(|| self.endpoints[at % self.endpoints.len()])
    }

    fn peer_asks(&mut self, input: &mut Input<'_>) {
        let Some(endpoint) = self.endpoint(input) else { return };
        let (rack, memory) = (RackId(input.below(3).into()), MemoryId(input.below(2).into()));
        let sequence = input.number();
        let addr = address(input);
        let request = match input.below(8) {
            0 => return self.plane.message(endpoint, input.bytes(200)),
            1 => {
                let page = PageId(100 + u32::from(input.byte()) % 20);
                let question = input.number();
                let access = if question & 1 == 0 { Access::Read } else { Access::Write };
                PeerRequest::Lookup { page, question, access, keep: question & 2 == 2 }
            }
            2 => {
                let (page, lease) = (PageId(input.short().into()), input.number());
                match lease >> 56 {
                    0xf8.. => PeerRequest::Return { page, lease },
                    0xf0.. => PeerRequest::Write { addr, bytes: input.bytes(100).to_vec() },
                    0xe0.. => {
                        let lines = vec![input.half() % 80; usize::from(input.below(3))];
                        // Mostly as many bytes as the lines have.
                        let len = if lease & 14 == 0 { 200 } else { lines.len() * LINE_BYTES };
                        let mut bytes = input.bytes(len).to_vec();
                        bytes.resize(len, 0);
                        let swap = SwapId(u64::from(input.below(3)));
                        let (frame, known) = (FrameId(input.byte().into()), lease & 1 == 0);
                        PeerRequest::DirtyLines { swap, frame, known, lines, bytes }
                    }
                    _ => PeerRequest::Revoke { page, lease, keep_reading: lease & 1 == 0 },
                }
            }
            3 => PeerRequest::CompareAndSwap { addr, expected: input.word(), new: 1 },
            4 => PeerRequest::FetchAndAdd { addr, delta: input.word() },
            5 | 6 => {
                let (bytes, count) = (input.number() & 0x3fff, input.short() % 80);
                PeerRequest::Allocate { rack, memory, sequence, bytes, count }
            }
            _ => {
                let addrs = (0..input.below(40)).map(|_| address(input)).collect();
                PeerRequest::Free { rack, memory, sequence, addrs }
            }
        };
        let body = encode(&request).unwrap();
        self.plane.message(endpoint, &message::ask(input.number(), 0, None, &body));
    }

    fn peer_answers(&mut self, input: &mut Input<'_>) {
        let reply = match input.below(9) {
            0 => {
                let (frame, epoch) = (FrameId(input.half()), Epoch::new(input.half()));
                let (lease, usage) = (input.number(), input.word());
                let sharing = (lease & 2 == 2).then_some(usage);
                PeerReply::Location {
                    lease,
                    frame,
                    epoch,
                    usage,
                    writable: lease & 1 == 0,
                    forwards: lease & 4 == 4,
                    sharing,
                }
            }
            1 => PeerReply::NotAllocated,
            2 => PeerReply::NotHere,
            3 => PeerReply::Returned,
            4 => PeerReply::Value(input.word()),
            5 => PeerReply::Allocated((0..input.below(70)).map(|_| address(input)).collect()),
            6 => PeerReply::Full { free_frames: u32::from(input.short()) },
            7 => PeerReply::Busy,
            _ => {
                let moved = (0..input.below(40)).map(|_| address(input)).collect();
                PeerReply::Freed { refused: input.short(), moved }
            }
        };
        let at = usize::from(input.byte());
        let (endpoint, call) = match self.calls.is_empty() {
            true => match self.endpoint(input) {
                Some(endpoint) => (endpoint, input.number()),
                None => return,
            },
            false => {
                let (endpoint, call, _) = self.calls.remove(at % self.calls.len());
                (endpoint, call)
            }
        };
        self.plane.message(endpoint, &message::answer(call, &encode(&reply).unwrap(), 0));
    }

    fn end(mut self) {
        for id in 1..=u32::from(CLIENTS) {
            self.plane.kill(ClientId(id)).unwrap();
        }
        for _ in 0..4 {
            self.step(5000);
        }
        let metrics = self.plane.metrics();
        if !self.has_peers {
            assert!(!metrics.is_leaving, "pages that nobody uses do not leave");
            for id in 1..=u32::from(CLIENTS) {
                let client = self.plane.client(ClientId(id));
                assert!(client.is_none() || !self.is_honest, "client {id} is not forgotten");
            }
            if self.is_honest {
                assert_eq!(metrics.allocated_bytes, 0, "objects of clients that are gone");
            }
        }
        self.plane.restart().unwrap();
        assert_eq!(self.plane.metrics(), metrics, "what a new daemon derives");
    }
}

/// Writes arbitrary values into a peer record.
fn damage(input: &mut Input<'_>, log: &PeerLog) {
    let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    set(&log.state, u64::from(input.below(5)));
    set(&log.kind, u64::from(input.below(3)));
    set(&log.sequence, input.number().wrapping_neg());
    set(&log.bytes, input.number());
    set(&log.count, input.number());
    for cell in log.addrs.iter().take(usize::from(input.below(40))) {
        set(cell, address(input).raw());
    }
}
