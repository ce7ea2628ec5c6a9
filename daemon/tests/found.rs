//! Bugs of the data plane that fuzzing (or writing a target) found, one test for each.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

use std::cell::RefCell;
use std::time::Duration;

use rackpool_daemon::testing::PlaneUnderTest;
use rackpool_fabric::EndpointId;
use rackpool_model::{
    Access, ClientId, Epoch, FrameId, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, RackId,
};
use rackpool_ring::call::CallCell;
use rackpool_ring::client_file::{CELLS_PER_THREAD, RingKind, ThreadSlot};
use rackpool_ring::request::Request;
use rackpool_rrpc::message::{self, Message};
use rackpool_sync::atomic::Ordering;
use rackpool_wire::metadata::Member;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};
use rackpool_wire::{decode, encode};

const CLIENT: ClientId = ClientId(1);

thread_local! {
    /// The number of the last call in each cell.
    static ASKED: RefCell<[u32; CELLS_PER_THREAD]> = const { RefCell::new([0; CELLS_PER_THREAD]) };
}

fn rack_with_a_client() -> PlaneUnderTest {
    let mut plane = PlaneUnderTest::new().unwrap();
    plane.open(CLIENT, 1).unwrap();
    step(&mut plane);
    plane
}

fn step(plane: &mut PlaneUnderTest) {
    plane.step(Duration::from_millis(5)).unwrap();
}

fn slot(plane: &PlaneUnderTest) -> &ThreadSlot {
    plane.client(CLIENT).unwrap().file().thread(0).unwrap()
}

fn cell(plane: &PlaneUnderTest, cell: u8) -> &CallCell {
    &plane.client(CLIENT).unwrap().file().cells(0).unwrap()[usize::from(cell)]
}

/// Posts a request and lets the daemon process it; returns the answer, if there is one at once.
fn ask(plane: &mut PlaneUnderTest, at: u8, request: RackRequest) -> Option<RackAnswer> {
    let call = ASKED.with_borrow_mut(|asked| {
        asked[usize::from(at)] += 1;
        asked[usize::from(at)]
    });
    let (code, arguments) = request.to_words();
    let entry = Request { code, cell: at, thread: 0, call, life: plane.life(), arguments };
    plane.client(CLIENT).unwrap().file().ring(RingKind::Rack).push(&[entry]).unwrap();
    step(plane);
    answer(plane, at)
}

fn answer(plane: &PlaneUnderTest, at: u8) -> Option<RackAnswer> {
    let found = cell(plane, at).answer(ASKED.with_borrow(|asked| asked[usize::from(at)]))?;
    RackAnswer::from_words(found.status, found.values)
}

fn member(rack: u16) -> Member {
    Member {
        rack: RackId(rack),
        incarnation: Incarnation(1),
        memory: MemoryId(u128::from(rack)),
        alive: true,
        pages: PageRange { first: PageId(u32::from(rack) * 1000), count: 16 },
        free_frames: 16,
        control_path: String::new(),
        fabric_address: format!("rack {rack}"),
    }
}

/// Fills the rack, so that the next refill must go to another rack.
fn fill(plane: &mut PlaneUnderTest) {
    let all = u64::from(PlaneUnderTest::FRAMES) * 4096;
    let refill = RackRequest::Refill { bytes: all, count: 1 };
    assert_eq!(ask(plane, 0, refill), Some(RackAnswer::Done(1)));
    // As if the program had taken the object.
    slot(plane).inbox[0].store(0, Ordering::Relaxed);
}

/// The requests that the daemon sent.
fn requests(plane: &PlaneUnderTest) -> Vec<(EndpointId, u64, PeerRequest)> {
    let sent = plane.sent().into_iter();
    let requests = sent.filter_map(|(endpoint, bytes)| match message::decode(&bytes).unwrap() {
        Message::Request { number, body, .. } => {
            Some((endpoint, number, decode(&bytes[body]).unwrap()))
        }
        _ => None,
    });
    requests.collect()
}

#[test]
fn a_member_with_a_number_that_no_rack_has_ends_no_daemon() {
    let mut plane = rack_with_a_client();
    plane.members(vec![member(300)]).unwrap();
    fill(&mut plane);
    let refill = RackRequest::Refill { bytes: 64, count: 1 };
    let refused = ask(&mut plane, 0, refill);
    assert!(matches!(refused, Some(RackAnswer::OutOfMemory { asked: 0, .. })), "{refused:?}");
}

#[test]
fn a_home_with_a_number_that_no_rack_has_ends_no_daemon() {
    let mut plane = rack_with_a_client();
    let page = PageId(7000);
    let addr = GlobalAddr::new(page, 0, PlaneUnderTest::page_size()).unwrap();
    slot(&plane).outbox[0].store(addr.raw(), Ordering::Relaxed);
    assert_eq!(ask(&mut plane, 0, RackRequest::Release), None);
    plane.located(page, Some(RackId(300))).unwrap();
    step(&mut plane);
    assert_eq!(answer(&plane, 0), Some(RackAnswer::Done(1)), "it was no object");
}

#[test]
fn an_object_waits_as_long_as_its_frames_get_memory() {
    let mut plane = rack_with_a_client();
    plane.reserve_on_demand();
    let refill = RackRequest::Refill { bytes: 8 * 4096, count: 1 };
    assert_eq!(ask(&mut plane, 0, refill), None);
    // Each frame takes nearly as long as an allocation waits without any.
    let mut frames = 0;
    while answer(&plane, 0).is_none() {
        assert!(plane.reserve().unwrap(), "nothing is left to wait for after {frames} frames");
        plane.step(Duration::from_millis(800)).unwrap();
        frames += 1;
    }
    assert_eq!(answer(&plane, 0), Some(RackAnswer::Done(1)), "after {frames} frames");
    assert!(frames >= 7, "only {frames} frames got memory");
}

#[test]
fn an_object_does_not_wait_for_memory_that_does_not_come() {
    let mut plane = rack_with_a_client();
    plane.reserve_on_demand();
    let refill = RackRequest::Refill { bytes: 8 * 4096, count: 1 };
    assert_eq!(ask(&mut plane, 0, refill), None);
    plane.step(Duration::from_millis(1100)).unwrap();
    let refused = answer(&plane, 0);
    assert!(matches!(refused, Some(RackAnswer::OutOfMemory { .. })), "{refused:?}");
}

#[test]
fn a_refill_into_an_inbox_that_is_not_empty_loses_nothing() {
    let mut plane = rack_with_a_client();
    let refill = |bytes| RackRequest::Refill { bytes, count: 1 };
    assert_eq!(ask(&mut plane, 0, refill(64)), Some(RackAnswer::Done(1)));
    assert_eq!(ask(&mut plane, 0, refill(4096)), Some(RackAnswer::Invalid));
    slot(&plane).inbox[5]
        .store(slot(&plane).inbox[0].swap(0, Ordering::Relaxed), Ordering::Relaxed);
    assert_eq!(ask(&mut plane, 0, refill(64)), Some(RackAnswer::Invalid));
    plane.kill(CLIENT).unwrap();
    step(&mut plane);
    assert_eq!(plane.metrics().allocated_bytes, 0);
}

#[test]
fn a_rack_that_answers_in_anothers_place_does_not_cut_that_one_off() {
    let mut plane = rack_with_a_client();
    plane.members(vec![member(1), member(2)]).unwrap();
    fill(&mut plane);
    assert_eq!(ask(&mut plane, 0, RackRequest::Refill { bytes: 64, count: 1 }), None);
    // The daemon connects to rack 1, the first of those with equally many free frames; another rack
    // answers.
    let wrong = plane.connect(Some(RackId(77))).unwrap();
    step(&mut plane);
    assert_eq!(requests(&plane), []);
    plane.message(wrong, b"anything");
    let again = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(2));
        step(&mut plane);
        plane.connect(Some(RackId(1)))
    });
    step(&mut plane);
    let sent = requests(&plane);
    assert!(
        matches!(sent[..], [(endpoint, _, PeerRequest::Allocate { .. })] if Some(endpoint) == again)
    );
}

#[test]
fn objects_that_another_rack_can_not_have_handed_out_reach_no_client() {
    let size = PlaneUnderTest::page_size();
    let elsewhere = GlobalAddr::new(PageId(1000), 64, size).unwrap();
    let here = GlobalAddr::new(PlaneUnderTest::FIRST, 0, size).unwrap();
    for objects in [
        vec![here],
        vec![GlobalAddr::NULL],
        vec![elsewhere, elsewhere],
        (0..40).map(|at| elsewhere.add(at * 64).unwrap()).collect(),
    ] {
        let mut plane = rack_with_a_client();
        plane.members(vec![member(1)]).unwrap();
        fill(&mut plane);
        assert_eq!(ask(&mut plane, 0, RackRequest::Refill { bytes: 64, count: 64 }), None);
        plane.connect(Some(RackId(1))).unwrap();
        step(&mut plane);
        let [(endpoint, call, _)] = requests(&plane)[..] else { panic!("one request") };
        let reply = PeerReply::Allocated(objects);
        plane.message(endpoint, &message::answer(call, &encode(&reply).unwrap(), 0));
        step(&mut plane);
        assert_eq!(answer(&plane, 0), Some(RackAnswer::Invalid));
        assert!(slot(&plane).inbox.iter().all(|cell| cell.load(Ordering::Relaxed) == 0));
    }
}

#[test]
fn a_record_with_the_last_of_all_numbers_ends_no_daemon() {
    let mut plane = rack_with_a_client();
    let log = &plane.metadata().peer(RackId(1)).unwrap().asked;
    log.sequence.store(u64::MAX, Ordering::Relaxed);
    plane.members(vec![member(1)]).unwrap();
    fill(&mut plane);
    assert_eq!(ask(&mut plane, 0, RackRequest::Refill { bytes: 64, count: 1 }), None);
    plane.restart().unwrap();
    step(&mut plane);
}

#[test]
fn a_request_out_of_bounds_is_refused_and_not_passed_on() {
    let mut plane = rack_with_a_client();
    plane.members(vec![member(1)]).unwrap();
    fill(&mut plane);
    let size = PlaneUnderTest::page_size();
    let there = |offset| GlobalAddr::new(PageId(1000), offset, size).unwrap();
    let refill = |bytes, count| RackRequest::Refill { bytes, count };
    // A batch for each request: after a refused request the rest of its batch is ignored.
    let batches = std::cell::Cell::new(0);
    let batch = || batches.replace(batches.get() + 1);
    let read = |addr, len, data| RackRequest::Read { addr, len, data, batch: batch() };
    let write = |addr, len| RackRequest::Write { addr, len, data: 0, batch: batch() };
    let add = |addr| RackRequest::FetchAndAdd { addr, delta: 1 };
    let most = PlaneUnderTest::FRAMES.max(member(1).pages.count);
    let most = u64::from(most) * size.bytes();
    for bytes in [most + 1, size.bytes() << 24, u64::MAX] {
        let refused = Some(RackAnswer::TooLarge { most });
        assert_eq!(ask(&mut plane, 0, refill(bytes, 1)), refused, "{bytes} B");
    }
    for request in [
        refill(0, 1),
        refill(64, 0),
        read(there(0), 0, 0),
        read(there(8), size.bytes(), 0),
        read(there(0), 8, u64::MAX),
        read(there(0), u64::MAX, 0),
        read(GlobalAddr::from_raw(u64::MAX), 8, 0),
        write(there(0), 0),
        write(there(8), size.bytes()),
        add(there(4)),
        add(GlobalAddr::from_raw(u64::MAX)),
        RackRequest::CompareAndSwap { addr: there(1), expected: 0, new: 1 },
    ] {
        assert_eq!(ask(&mut plane, 0, request), Some(RackAnswer::Invalid), "{request:?}");
        assert_eq!(requests(&plane), [], "{request:?}");
        assert_eq!(ask(&mut plane, 0, RackRequest::Ping), Some(RackAnswer::Done(0)));
    }
}

#[test]
fn an_entry_that_is_pushed_again_or_has_no_number_is_no_new_call() {
    let mut plane = rack_with_a_client();
    let ring = |plane: &PlaneUnderTest, call, cell| {
        let (code, arguments) = RackRequest::Refill { bytes: 64, count: 1 }.to_words();
        let entry = Request { code, cell, thread: 0, call, life: plane.life(), arguments };
        plane.client(CLIENT).unwrap().file().ring(RingKind::Rack).push(&[entry]).unwrap();
    };
    ring(&plane, 0, 3);
    step(&mut plane);
    assert_eq!(slot(&plane).inbox[0].load(Ordering::Relaxed), 0, "a call without a number");
    // The request waits for another rack; pushed a thousand times it is still one call.
    plane.members(vec![member(1)]).unwrap();
    fill(&mut plane);
    for _ in 0..1000 {
        ring(&plane, 7, 4);
        step(&mut plane);
    }
    plane.connect(Some(RackId(1))).unwrap();
    step(&mut plane);
    let asked = requests(&plane);
    assert_eq!(asked.len(), 1, "{asked:?}");
}

/// A page of rack 1.
const ELSEWHERE: PageId = PageId(1003);
const LOOK: RackRequest = RackRequest::Translate { page: ELSEWHERE, access: Access::Read };

/// Rack 1 answers the only lookup with a lease for reading, or with a lease for a copy.
fn lease(plane: &mut PlaneUnderTest, lease: u64, sharing: Option<u64>) -> EndpointId {
    let [(endpoint, call, PeerRequest::Lookup { page: ELSEWHERE, .. })] = requests(plane)[..]
    else {
        panic!("one question")
    };
    let (frame, epoch) = (FrameId(3), Epoch::new(1));
    let (usage, writable, forwards) = (0, false, false);
    let reply = PeerReply::Location { lease, frame, epoch, usage, writable, forwards, sharing };
    plane.message(endpoint, &message::answer(call, &encode(&reply).unwrap(), 0));
    step(plane);
    endpoint
}

/// A rack whose client holds a lease of a page of rack 1.
fn rack_with_a_lease() -> PlaneUnderTest {
    let mut plane = rack_with_a_client();
    plane.members(vec![member(1)]).unwrap();
    assert_eq!(ask(&mut plane, 0, LOOK), None, "its home is asked");
    plane.connect(Some(RackId(1))).unwrap();
    step(&mut plane);
    lease(&mut plane, 1, None);
    assert!(matches!(answer(&plane, 0), Some(RackAnswer::Remote { .. })));
    plane
}

/// The time of a round of requests is not the time at which other racks' earlier messages arrived.
#[test]
fn a_question_after_a_long_rest_waits_for_its_answer() {
    let mut plane = rack_with_a_lease();
    plane.want_copy(ELSEWHERE).unwrap();
    // Longer than a lease, without any request.
    plane.step(Duration::from_secs(3)).unwrap();
    assert_eq!(ask(&mut plane, 1, LOOK), None);
    step(&mut plane);
    assert_eq!(answer(&plane, 1), None, "the home has time to answer");
}

#[test]
fn the_frame_of_the_last_copy_is_free_when_that_is_called_back() {
    let mut plane = rack_with_a_lease();
    plane.want_copy(ELSEWHERE).unwrap();
    step(&mut plane);
    let endpoint = lease(&mut plane, 2, Some(1));
    plane.complete(0);
    step(&mut plane);
    let copied = ask(&mut plane, 0, LOOK);
    assert!(matches!(copied, Some(RackAnswer::Copied { .. })), "{copied:?}");
    let call_back = PeerRequest::Revoke { page: ELSEWHERE, lease: 2, keep_reading: true };
    plane.message(endpoint, &message::ask(1, 0, None, &encode(&call_back).unwrap()));
    step(&mut plane);
    let again = ask(&mut plane, 0, LOOK);
    assert!(matches!(again, Some(RackAnswer::Remote { .. })), "it is read there: {again:?}");
    // All frames of the rack, as one object.
    fill(&mut plane);
}
