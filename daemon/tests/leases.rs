//! Location leases in the data plane: its messages to homes, holders and clients, one by one.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

#[path = "leases/dirty_logged.rs"]
mod dirty_logged;
#[path = "leases/fixed_reads.rs"]
mod fixed_reads;
#[path = "leases/moving.rs"]
mod moving;
#[path = "leases/standstill.rs"]
mod standstill;
#[path = "leases/written.rs"]
mod written;

use std::time::Duration;

use rackpool_daemon::testing::PlaneUnderTest;
use rackpool_fabric::{DisconnectReason, EndpointId, FabricError};
use rackpool_model::{
    Access, ClientId, Epoch, FrameId, GlobalAddr, Incarnation, MemoryId, PageEvent, PageId,
    PageRange, PageWord, RackId,
};
use rackpool_ring::client_file::RingKind;
use rackpool_ring::request::Request;
use rackpool_rrpc::message::{self, Message};
use rackpool_sync::atomic::Ordering;
use rackpool_wire::metadata::Member;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};
use rackpool_wire::swap::{Between, SwapId, SwapMessage};
use rackpool_wire::{decode, encode};

const CLIENT: ClientId = ClientId(1);
const LOCAL: PageId = PlaneUnderTest::FIRST;
const REMOTE: PageId = PageId(1003);
const HOME: RackId = RackId(1);
const OTHER: RackId = RackId(2);

/// A rack with one client, and two other racks.
struct Stand {
    plane: PlaneUnderTest,
    /// The number of the last call in each cell.
    called: [u32; 8],
    heard: Vec<(EndpointId, Heard)>,
    /// Number of requests to this rack so far.
    asked: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Heard {
    Request(u64, PeerRequest),
    Reply(u64, PeerReply),
}

impl Stand {
    fn new() -> Self {
        let mut plane = PlaneUnderTest::new().unwrap();
        plane.open(CLIENT, 1).unwrap();
        plane.members(vec![member(HOME), member(OTHER)]).unwrap();
        let mut stand = Self { plane, called: [0; 8], heard: Vec::new(), asked: 0 };
        stand.step(5);
        stand
    }

    fn step(&mut self, ms: u64) {
        self.plane.step(Duration::from_millis(ms)).unwrap();
        for (endpoint, bytes) in self.plane.sent() {
            let heard = match message::decode(&bytes).unwrap() {
                Message::Request { number, body, .. } => {
                    Heard::Request(number, decode(&bytes[body]).unwrap())
                }
                Message::Answer { number, head, .. } => {
                    Heard::Reply(number, decode(&bytes[head]).unwrap())
                }
                _ => continue,
            };
            self.heard.push((endpoint, heard));
        }
    }

    /// The client posts a request and the daemon processes it.
    fn call(&mut self, cell: u8, request: RackRequest) -> Option<RackAnswer> {
        let at = usize::from(cell);
        self.called[at] += 1;
        let (code, arguments) = request.to_words();
        let (call, life) = (self.called[at], self.plane.life());
        let entry = Request { code, cell, thread: 0, call, life, arguments };
        let client = self.plane.client(CLIENT).unwrap();
        client.file().ring(RingKind::Rack).push(&[entry]).unwrap();
        self.step(0);
        self.answer(cell)
    }

    fn answer(&self, cell: u8) -> Option<RackAnswer> {
        let client = self.plane.client(CLIENT).unwrap();
        let found = client.file().cells(0).unwrap()[usize::from(cell)]
            .answer(self.called[usize::from(cell)])?;
        RackAnswer::from_words(found.status, found.values)
    }

    /// The next request that the daemon sent.
    fn request(&mut self) -> Option<(EndpointId, u64, PeerRequest)> {
        let at = self.heard.iter().position(|(_, heard)| matches!(heard, Heard::Request(..)))?;
        match self.heard.remove(at) {
            (endpoint, Heard::Request(number, request)) => Some((endpoint, number, request)),
            _ => None,
        }
    }

    /// Answers a request of the daemon, and lets the daemon process the answer.
    fn reply(&mut self, (endpoint, number): (EndpointId, u64), reply: &PeerReply) {
        let head = encode(reply).unwrap();
        self.plane.message(endpoint, &message::answer(number, &head, 0));
        self.step(0);
    }

    /// Another rack sends a request; returns its number.
    fn ask(&mut self, over: EndpointId, request: &PeerRequest) -> u64 {
        self.asked += 1;
        let body = encode(request).unwrap();
        self.plane.message(over, &message::ask(self.asked, 0, None, &body));
        self.step(0);
        self.asked
    }

    /// The daemon's reply to such a request.
    fn replied(&mut self, over: EndpointId, request: u64) -> Option<PeerReply> {
        let is_it = |(endpoint, heard): &(EndpointId, Heard)| {
            *endpoint == over && matches!(heard, Heard::Reply(number, _) if *number == request)
        };
        match self.heard.remove(self.heard.iter().position(is_it)?) {
            (_, Heard::Reply(_, reply)) => Some(reply),
            _ => None,
        }
    }

    /// Sends a request that the daemon answers at once; returns the reply.
    fn asks(&mut self, over: EndpointId, request: &PeerRequest) -> PeerReply {
        let number = self.ask(over, request);
        self.replied(over, number).unwrap()
    }

    /// Another rack takes a lease of this rack's page.
    fn grants(&mut self, over: EndpointId, page: PageId) -> u64 {
        match self.asks(over, &lookup(page)) {
            PeerReply::Location { lease, .. } => lease,
            other => panic!("{other:?}"),
        }
    }

    /// Puts the page of this rack into use with one object.
    fn allocate(&mut self) -> GlobalAddr {
        let refill = RackRequest::Refill { bytes: 64, count: 1 };
        assert_eq!(self.call(0, refill), Some(RackAnswer::Done(1)));
        let slot = self.plane.client(CLIENT).unwrap().file().thread(0).unwrap();
        GlobalAddr::from_raw(slot.inbox[0].load(Ordering::Relaxed))
    }

    fn set(&self, page: PageId, event: PageEvent) {
        let word = self.plane.metadata().word(FrameId(page.0 - LOCAL.0)).unwrap();
        let next = PageWord::from_raw(word.load(Ordering::Relaxed)).apply(event).unwrap();
        word.store(next.raw(), Ordering::Relaxed);
    }

    /// Takes the first lease of the other rack's page for the client. Returns the endpoint, and the
    /// number of the lookup that was answered with lease 5.
    fn lease(&mut self) -> (EndpointId, u64) {
        assert_eq!(
            self.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }),
            None
        );
        self.plane.connect(Some(HOME)).unwrap();
        self.step(0);
        let (endpoint, call, request) = self.request().unwrap();
        let PeerRequest::Lookup { page: REMOTE, question, .. } = request else {
            panic!("{request:?}")
        };
        self.reply((endpoint, call), &location(5));
        assert_eq!(self.answer(0), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
        (endpoint, question)
    }

    fn read(&mut self, cell: u8) -> Option<RackAnswer> {
        let addr = addr(REMOTE);
        let batch = u64::from(self.called[usize::from(cell)]) + 1;
        self.call(cell, RackRequest::Read { addr, len: 8, data: 0, batch })
    }

    fn write(&mut self, cell: u8) -> Option<RackAnswer> {
        let addr = addr(REMOTE);
        let batch = u64::from(self.called[usize::from(cell)]) + 1;
        self.call(cell, RackRequest::Write { addr, len: 8, data: 0, batch })
    }
}

const fn location(lease: u64) -> PeerReply {
    leased(lease, true)
}

const fn leased(lease: u64, writable: bool) -> PeerReply {
    PeerReply::Location {
        lease,
        frame: FrameId(3),
        epoch: Epoch::new(4),
        usage: 9,
        writable,
        forwards: false,
        sharing: None,
    }
}

/// Revokes a lease, also for reading.
const fn revoke(page: PageId, lease: u64) -> PeerRequest {
    PeerRequest::Revoke { page, lease, keep_reading: false }
}

/// Another rack's lookup for writing.
const fn lookup(page: PageId) -> PeerRequest {
    PeerRequest::Lookup { page, question: 1, access: Access::Write, keep: false }
}

fn addr(page: PageId) -> GlobalAddr {
    GlobalAddr::new(page, 0, PlaneUnderTest::page_size()).unwrap()
}

fn member(rack: RackId) -> Member {
    Member {
        rack,
        incarnation: Incarnation(1),
        memory: MemoryId(u128::from(rack.0)),
        alive: true,
        pages: PageRange { first: PageId(u32::from(rack.0) * 1000), count: 16 },
        free_frames: 16,
        control_path: String::new(),
        fabric_address: format!("{rack}"),
    }
}

/// Regression: until its first sleep, a daemon that had just started told the metadata server and
/// `rackpool status` that nothing was free.
#[test]
fn a_rack_says_what_is_free_before_anybody_asks_it_for_anything() {
    let plane = PlaneUnderTest::new().unwrap();
    let free = plane.metrics().free_frames;
    assert_eq!((free > 0, plane.published_free_frames()), (true, u64::from(free)));
}

#[test]
fn a_page_that_is_needed_is_called_back_over_the_endpoint_of_its_lease_until_it_is_back() {
    let mut stand = Stand::new();
    stand.allocate();
    let (over, idle) = (stand.plane.accept(HOME), stand.plane.accept(HOME));
    stand.step(0);
    let lease = stand.grants(over, LOCAL);
    assert_ne!(lease >> 32, 0, "numbers grow across lives");
    stand.plane.need(LOCAL, true).unwrap();
    stand.step(0);
    let (endpoint, call, request) = stand.request().unwrap();
    assert_eq!((endpoint, request), (over, revoke(LOCAL, lease)));
    let lookup = lookup(LOCAL);
    assert_eq!(stand.asks(idle, &lookup), PeerReply::Busy, "no lease while the page is needed");
    stand.reply((over, call), &PeerReply::Returned);
    stand.step(600);
    assert!(stand.plane.is_open(over) && stand.request().is_none());
    assert_ne!(stand.grants(idle, LOCAL), lease, "it is clean: who needed it may lend it again");
}

#[test]
fn a_holder_that_does_not_give_back_is_cut_off_when_its_grace_period_is_over_and_not_before() {
    let mut stand = Stand::new();
    stand.allocate();
    let (over, other) = (stand.plane.accept(HOME), stand.plane.accept(OTHER));
    stand.step(0);
    stand.grants(over, LOCAL);
    // Long after the lease has expired: a rack at rest is not cut off for it.
    stand.step(60_000);
    stand.plane.need(LOCAL, true).unwrap();
    stand.step(400);
    assert!(stand.plane.is_open(over));
    let lookup = lookup(LOCAL);
    assert_eq!(stand.asks(other, &lookup), PeerReply::Busy);
    stand.step(200);
    assert!(!stand.plane.is_open(over) && stand.plane.is_open(other));
    stand.step(5);
    assert!(matches!(stand.asks(other, &lookup), PeerReply::Location { .. }), "it is clean");
}

#[test]
fn an_answer_that_is_no_return_does_not_make_a_page_clean() {
    let mut stand = Stand::new();
    stand.allocate();
    let (over, other) = (stand.plane.accept(HOME), stand.plane.accept(OTHER));
    stand.step(0);
    stand.grants(over, LOCAL);
    stand.plane.need(LOCAL, true).unwrap();
    stand.step(0);
    let (_, call, _) = stand.request().unwrap();
    stand.reply((over, call), &PeerReply::NotHere);
    let lookup = lookup(LOCAL);
    assert_eq!(stand.asks(other, &lookup), PeerReply::Busy);
    stand.step(60);
    assert!(matches!(stand.request(), Some((_, _, PeerRequest::Revoke { .. }))), "asked again");
}

#[test]
fn a_page_that_was_spared_is_lent_again() {
    let mut stand = Stand::new();
    stand.allocate();
    let over = stand.plane.accept(HOME);
    stand.step(0);
    let first = stand.grants(over, LOCAL);
    stand.plane.need(LOCAL, true).unwrap();
    stand.plane.need(LOCAL, false).unwrap();
    assert_eq!(stand.grants(over, LOCAL), first + 1);
}

#[test]
fn a_page_that_moves_is_lent_for_reading_only_and_its_requester_waits_until_it_can_be_written() {
    let mut stand = Stand::new();
    let addr = stand.allocate();
    let page = addr.page(PlaneUnderTest::page_size()).unwrap();
    let over = stand.plane.accept(HOME);
    stand.step(0);
    let add = PeerRequest::FetchAndAdd { addr, delta: 1 };
    let read = PeerRequest::Lookup { page, question: 1, access: Access::Read, keep: false };
    let PeerReply::Value(before) = stand.asks(over, &add) else { panic!("no value") };
    assert!(matches!(stand.asks(over, &read), PeerReply::Location { writable: true, .. }));
    stand.set(page, PageEvent::Frozen);
    assert!(matches!(stand.asks(over, &read), PeerReply::Location { writable: false, .. }));
    let writes = [lookup(page), add.clone()].map(|write| stand.ask(over, &write));
    stand.step(400);
    for write in writes {
        assert_eq!(stand.replied(over, write), None, "it may be live again soon");
    }
    stand.step(200);
    for write in writes {
        let busy = Some(PeerReply::Busy);
        assert_eq!(stand.replied(over, write), busy, "before this rack seems silent");
    }
    stand.set(page, PageEvent::Thawed);
    assert!(matches!(stand.asks(over, &lookup(page)), PeerReply::Location { writable: true, .. }));
    assert_eq!(stand.asks(over, &add), PeerReply::Value(before + 1), "nothing was done meanwhile");
    assert_eq!(stand.asks(over, &lookup(PageId(9000))), PeerReply::NotHere);
}

#[test]
fn who_gives_the_right_to_write_back_ends_its_writes_and_reads_on() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    let writers = PeerRequest::Revoke { page: REMOTE, lease: 5, keep_reading: true };
    assert_eq!(stand.write(1), None);
    let back = stand.ask(endpoint, &writers);
    assert_eq!(stand.replied(endpoint, back), None, "a write is on its way");
    assert_eq!(stand.write(2), Some(RackAnswer::Moved), "no new one");
    assert_eq!(stand.read(2), None, "reads go on under the same lease");
    stand.plane.complete(0);
    stand.step(0);
    assert_eq!(stand.replied(endpoint, back), Some(PeerReply::Returned));
    assert_eq!(stand.read(1), None);
    assert_eq!(stand.asks(endpoint, &writers), PeerReply::Returned, "a read is no write");
    let all = stand.ask(endpoint, &revoke(REMOTE, 5));
    assert_eq!(stand.replied(endpoint, all), None, "but a use of the page");
    stand.plane.complete(0);
    stand.step(0);
    assert_eq!(stand.replied(endpoint, all), Some(PeerReply::Returned));
}

#[test]
fn a_reader_does_not_wait_with_the_writers_of_a_page_that_moves() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    stand.asks(endpoint, &revoke(REMOTE, 5));
    let [read, write] =
        [Access::Read, Access::Write].map(|access| RackRequest::Translate { page: REMOTE, access });
    assert_eq!(stand.call(0, write), None);
    let (_, slow, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { access: Access::Write, .. }));
    assert_eq!(stand.call(1, read), None);
    let (_, call, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { access: Access::Read, .. }));
    stand.reply((endpoint, call), &leased(6, false));
    let found = Some(RackAnswer::Remote { home: HOME, usage: 9 });
    assert_eq!((stand.answer(1), stand.answer(0)), (found, None));
    stand.reply((endpoint, slow), &PeerReply::Busy);
    let (_, call, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { access: Access::Write, .. }), "at once");
    assert!(stand.request().is_none());
    stand.reply((endpoint, call), &location(7));
    assert_eq!(stand.answer(0), found);
}

#[test]
fn a_lease_goes_back_when_the_transfers_under_it_have_ended() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    assert_eq!(stand.read(1), None);
    let back = stand.ask(endpoint, &revoke(REMOTE, 5));
    assert_eq!(stand.replied(endpoint, back), None, "a transfer is on its way");
    assert_eq!(stand.read(2), Some(RackAnswer::Moved), "no new one");
    stand.plane.complete(0);
    stand.step(0);
    assert_eq!(stand.answer(1), Some(RackAnswer::DoneAt(HOME)));
    assert_eq!(stand.replied(endpoint, back), Some(PeerReply::Returned));
}

#[test]
fn a_lease_of_another_endpoint_is_not_given_back_for_this_one() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    assert_eq!(stand.read(1), None);
    let other = stand.plane.accept(HOME);
    stand.step(0);
    stand.asks(other, &revoke(REMOTE, 5));
    assert_eq!(stand.read(2), None, "the lease is good for the endpoint over which it came");
    let back = stand.ask(endpoint, &revoke(REMOTE, 5));
    assert_eq!(stand.replied(endpoint, back), None);
}

#[test]
fn a_lease_in_use_is_asked_for_again_while_it_is_good_and_nobody_waits_for_that() {
    let mut stand = Stand::new();
    let (endpoint, first) = stand.lease();
    stand.step(900);
    assert_eq!(stand.read(1), None);
    assert!(stand.request().is_none());
    stand.plane.complete(0);
    stand.step(200);
    assert_eq!(stand.read(1), None);
    let (over, call, request) = stand.request().unwrap();
    let PeerRequest::Lookup { page: REMOTE, question, .. } = request else { panic!("{request:?}") };
    assert!(question > first && over == endpoint);
    stand.plane.complete(0);
    stand.reply((over, call), &location(6));
    stand.step(1500);
    assert_eq!(stand.read(1), None, "2.6 s after the first lease");
}

#[test]
fn a_lease_that_has_run_out_is_not_used() {
    let mut stand = Stand::new();
    stand.lease();
    stand.step(2100);
    assert_eq!(stand.read(1), Some(RackAnswer::Moved));
    assert_eq!(stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }), None);
    let (endpoint, call, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { page: REMOTE, .. }));
    stand.reply((endpoint, call), &location(6));
    assert_eq!(stand.answer(0), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
    assert_eq!(stand.read(1), None);
}

#[test]
fn a_lease_that_was_called_back_before_it_came_does_not_count() {
    let mut stand = Stand::new();
    assert_eq!(stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }), None);
    stand.plane.connect(Some(HOME)).unwrap();
    stand.step(0);
    let (endpoint, call, _) = stand.request().unwrap();
    let revoke = revoke(REMOTE, 5);
    assert_eq!(stand.asks(endpoint, &revoke), PeerReply::Returned);
    stand.reply((endpoint, call), &location(5));
    assert_eq!(stand.answer(0), None, "the client waits");
    stand.step(10);
    let (endpoint, call, _) = stand.request().unwrap();
    stand.reply((endpoint, call), &location(6));
    assert_eq!(stand.answer(0), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
}

#[test]
fn a_client_waits_while_a_page_moves_and_finds_it_at_its_new_home() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    stand.asks(endpoint, &revoke(REMOTE, 5));
    assert_eq!(stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }), None);
    for _ in 0..3 {
        let (_, call, _) = stand.request().unwrap();
        stand.reply((endpoint, call), &PeerReply::Busy);
        assert!(stand.request().is_none(), "it is not asked again at once");
        assert_eq!(stand.answer(0), None);
        stand.step(60);
    }
    let (_, call, _) = stand.request().unwrap();
    stand.reply((endpoint, call), &PeerReply::NotHere);
    stand.plane.located(REMOTE, Some(OTHER)).unwrap();
    stand.step(0);
    stand.plane.connect(Some(OTHER)).unwrap();
    stand.step(0);
    let (endpoint, call, _) = stand.request().unwrap();
    stand.reply((endpoint, call), &location(7));
    assert_eq!(stand.answer(0), Some(RackAnswer::Remote { home: OTHER, usage: 9 }));
    assert_eq!(stand.read(1), None);
}

#[test]
fn a_rack_of_new_memory_does_not_say_that_it_has_left_while_the_old_one_may_be_read() {
    let mut stand = Stand::new();
    stand.lease();
    let over = stand.plane.accept(HOME);
    stand.step(0);
    let swap = SwapId(9);
    let ask = PeerRequest::Swap(Between { swap, message: SwapMessage::IsQuiesced });
    let left = PeerRequest::Swap(Between { swap, message: SwapMessage::Quiesced });
    assert_eq!(stand.asks(over, &ask), PeerReply::Heard);
    // The lease, the clocks' difference, and the time of messages under way.
    stand.step(2_400);
    assert_eq!(stand.asks(over, &ask), PeerReply::Heard);
    assert!(stand.request().is_none());
    stand.step(100);
    assert_eq!(stand.asks(over, &ask), PeerReply::Heard);
    assert!(matches!(stand.request(), Some((_, _, request)) if request == left));
}

#[test]
fn a_client_hears_of_a_page_that_never_arrives() {
    let mut stand = Stand::new();
    assert_eq!(stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }), None);
    stand.plane.connect(Some(HOME)).unwrap();
    stand.step(0);
    let mut questions = 0;
    for _ in 0..60 {
        while let Some((endpoint, call, _)) = stand.request() {
            questions += 1;
            stand.reply((endpoint, call), &PeerReply::NotHere);
        }
        stand.plane.located(REMOTE, Some(HOME)).unwrap();
        stand.step(50);
    }
    assert_eq!(stand.answer(0), Some(RackAnswer::PageBusy(HOME)));
    assert!((5..60).contains(&questions), "{questions} questions in two seconds");
}

#[test]
fn an_atomic_operation_needs_no_lease_and_is_refused_but_not_lost_while_its_page_moves() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    stand.asks(endpoint, &revoke(REMOTE, 5));
    let add = RackRequest::FetchAndAdd { addr: addr(REMOTE), delta: 1 };
    assert_eq!(stand.call(1, add), None);
    let (_, call, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::FetchAndAdd { .. }));
    stand.reply((endpoint, call), &PeerReply::Busy);
    assert_eq!(stand.answer(1), Some(RackAnswer::Moved), "nothing was done");
    assert_eq!(
        stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }),
        None,
        "this waits"
    );
    assert_eq!(stand.call(1, add), None);
    while let Some((_, call, request)) = stand.request() {
        if matches!(request, PeerRequest::FetchAndAdd { .. }) {
            stand.reply((endpoint, call), &PeerReply::Value(41));
        }
    }
    assert_eq!(stand.answer(1), Some(RackAnswer::Done(41)));
}

/// Regression: the client was told that the page is in its home, and that its operation can't be
/// sent there, over and over.
#[test]
fn a_home_that_counts_as_dead_executes_atomic_operations_while_its_lease_is_valid() {
    let mut stand = Stand::new();
    stand.lease();
    let dead = Member { alive: false, ..member(HOME) };
    stand.plane.members(vec![dead, member(OTHER)]).unwrap();
    stand.step(0);
    let add = RackRequest::FetchAndAdd { addr: addr(REMOTE), delta: 1 };
    assert_eq!(stand.call(1, add), None);
    assert!(matches!(stand.request(), Some((_, _, PeerRequest::FetchAndAdd { .. }))));
}

#[test]
fn what_was_under_way_when_an_endpoint_failed_is_done_again() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    assert_eq!(stand.read(1), None);
    let cause = FabricError::Local { step: "go on with RDMA", cause: "status 2".into() };
    stand.plane.disconnect(endpoint, DisconnectReason::Failed(cause));
    stand.step(0);
    assert_eq!(stand.answer(1), Some(RackAnswer::Moved));
}

#[test]
fn an_endpoint_that_ends_takes_its_leases_and_what_was_under_way() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    assert_eq!(stand.read(1), None);
    stand.plane.disconnect(endpoint, DisconnectReason::PeerGone);
    stand.step(0);
    assert_eq!(stand.answer(1), Some(RackAnswer::Moved));
    assert_eq!(
        stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }),
        None,
        "it is asked for again"
    );
}

#[test]
fn who_asks_after_a_question_was_sent_is_not_told_that_nothing_was_allocated_before() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    stand.asks(endpoint, &revoke(REMOTE, 5));
    let write = RackRequest::Translate { page: REMOTE, access: Access::Write };
    assert_eq!(stand.call(0, write), None);
    let (_, call, _) = stand.request().unwrap();
    // The page is allocated now, and the second caller was told.
    assert_eq!(stand.call(1, write), None);
    stand.reply((endpoint, call), &PeerReply::NotAllocated);
    assert_eq!((stand.answer(0), stand.answer(1)), (Some(RackAnswer::NotAllocated), None));
    let (_, call, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { page: REMOTE, .. }), "it is asked again");
    stand.reply((endpoint, call), &location(7));
    assert_eq!(stand.answer(1), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
}

#[test]
fn that_nothing_is_allocated_answers_all_who_asked_before_that_question() {
    let mut stand = Stand::new();
    let (endpoint, _) = stand.lease();
    stand.asks(endpoint, &revoke(REMOTE, 5));
    let [read, write] =
        [Access::Read, Access::Write].map(|access| RackRequest::Translate { page: REMOTE, access });
    let nothing = Some(RackAnswer::NotAllocated);
    assert_eq!(stand.call(0, write), None);
    let (_, first, _) = stand.request().unwrap();
    // The first reader causes a lookup of its own.
    assert_eq!(stand.call(1, read), None);
    let (_, second, _) = stand.request().unwrap();
    assert_eq!(stand.call(2, read), None);
    stand.reply((endpoint, second), &PeerReply::NotAllocated);
    assert_eq!([0, 1, 2].map(|cell| stand.answer(cell)), [nothing, nothing, None]);
    // The answer to a lookup that was sent before the third call says nothing about that call.
    stand.reply((endpoint, first), &PeerReply::NotAllocated);
    assert_eq!(stand.answer(2), None);
    while let Some((_, call, _)) = stand.request() {
        stand.reply((endpoint, call), &PeerReply::NotAllocated);
    }
    assert_eq!(stand.answer(2), nothing);
}

#[test]
fn who_asks_after_the_metadata_server_was_asked_is_not_told_that_there_was_no_page_before() {
    let mut stand = Stand::new();
    let unknown = PageId(5000);
    let translate = RackRequest::Translate { page: unknown, access: Access::Read };
    assert_eq!(stand.call(0, translate), None);
    assert_eq!(stand.call(1, translate), None);
    stand.plane.located(unknown, None).unwrap();
    stand.step(0);
    assert_eq!((stand.answer(0), stand.answer(1)), (Some(RackAnswer::NotAllocated), None));
    // The rack that holds the page was not connected before.
    stand.plane.located(unknown, Some(HOME)).unwrap();
    stand.step(0);
    stand.plane.connect(Some(HOME)).unwrap();
    stand.step(0);
    let (endpoint, call, _) = stand.request().unwrap();
    stand.reply((endpoint, call), &location(7));
    assert_eq!(stand.answer(1), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
}
