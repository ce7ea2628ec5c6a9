//! The exchange of objects, step by step: what is stored before what, and what a restart does.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[macro_use]
#[expect(unused_macros, reason = "other tests use the rest")]
mod absent;
mod members;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rackpool_model::{
    ClientId, FrameId, FrameWord, GlobalAddr, HeatRules, MemoryId, PageEvent, PageId, PageRange,
    PageSize, PageWord, RackId,
};
use rackpool_proto::exchange::{
    AskedRecord, AskedState, CallResult, Caller, ClientThread, ExchangeAction, ExchangeEvent,
    ExchangeIdentity, ExchangeKind, ExchangeRules, ObjectMemory, Obstacle, PeerRecord,
    ServedRecord, ServedState,
};
use rackpool_proto::lease::LeaseRules;
use rackpool_proto::lock::LockRules;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::publication::RecoveryRules;
use rackpool_proto::rack::{
    LineRules, PageWords, RackAction, RackEvent, RackMachine, RackPast, RackRules,
};
use rackpool_proto::share::ShareRules;
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, SwapRules};
use rackpool_proto::{Located, Time};
use rackpool_wire::peer::{PeerReply, PeerRequest};

const OWN: RackId = RackId(0);
const A: RackId = RackId(1);
const B: RackId = RackId(2);
const MEMORY: MemoryId = MemoryId(7);
const SIZE: PageSize = PageSize::DEFAULT;
const OWNER: ClientThread = ClientThread { client: ClientId(3), thread: 0 };
const CALLER: Caller = Caller { client: ClientId(3), thread: 0, cell: 0, call: 1 };
/// The page that is here.
const HERE: PageId = PageId(1);
/// Pages of other racks.
const FAR: PageId = PageId(8);
const FARTHER: PageId = PageId(9);
const AGAIN: u64 = 20;

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn object(page: PageId, index: u64) -> GlobalAddr {
    GlobalAddr::new(page, index * 64, SIZE).unwrap()
}

/// One frame, its objects, and the cells of one client.
struct Memory {
    word: PageWord,
    allocated: BTreeSet<GlobalAddr>,
    outbox: BTreeSet<GlobalAddr>,
    inbox: BTreeSet<GlobalAddr>,
    waits: bool,
}

impl PageWords for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        let found = FrameWord { frame: FrameId(0), word: self.word };
        (self.word.page() == page).then_some(found)
    }
    fn word(&self, frame: FrameId) -> Option<PageWord> {
        (frame == FrameId(0)).then_some(self.word)
    }
}

impl ObjectMemory for Memory {
    fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.allocated.contains(&addr)
    }
    fn may_free(&self, addr: GlobalAddr, _: Option<ClientId>) -> bool {
        self.allocated.contains(&addr)
    }
    fn candidate(&self, _: u64) -> Option<GlobalAddr> {
        (0..3).map(|index| object(HERE, index)).find(|addr| !self.allocated.contains(addr))
    }
    fn free_frames(&self) -> u32 {
        5
    }
    fn takes(&self, _: Caller) -> bool {
        self.waits && self.inbox.is_empty()
    }
    fn holds(&self, owner: ClientThread, addr: GlobalAddr) -> bool {
        owner == OWNER && self.outbox.contains(&addr)
    }
    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.inbox.iter().chain(&self.outbox).map(|addr| (OWNER, *addr))
    }
}

no_moves!(Memory);
no_reservations!(Memory);

struct Rack {
    machine: RackMachine,
    memory: Memory,
}

impl Rack {
    fn new() -> Self {
        let rules = RackRules {
            swap: SwapRules::DEFAULT,
            lease: LeaseRules::DEFAULT,
            share: ShareRules::DEFAULT,
            shares: true,
            heat: HeatRules::DEFAULT,
            lines: LineRules { in_page: 64, forwarded: 8, sent: 16 },
            exchange: ExchangeRules {
                page_size: SIZE,
                timeout: Duration::from_secs(1),
                defer: Duration::from_millis(250),
                again: Duration::from_millis(AGAIN),
            },
            recovery: RecoveryRules {
                page_size: SIZE,
                again: Duration::from_millis(100),
                earlier_requests: Duration::from_secs(2),
            },
            lock: LockRules::DEFAULT,
            barrier_delay: Duration::from_millis(1),
        };
        let records = [[0; RECORD_WORDS]; RECORDS];
        let own = ExchangeIdentity { rack: OWN, memory: MEMORY };
        let past =
            RackPast { first: 1, restarted: false, records: &records, foreign_claims: &[], own };
        let machine = RackMachine::restore(Time::ZERO, rules, &past, [], 0, Sound).unwrap();
        let memory = Memory {
            word: PageWord::free(HERE).apply(PageEvent::Allocated).unwrap(),
            allocated: BTreeSet::new(),
            outbox: BTreeSet::new(),
            inbox: BTreeSet::new(),
            waits: true,
        };
        let mut rack = Self { machine, memory };
        rack.pages_of_a(2);
        rack
    }

    /// The metadata server names rack A, in which the first `count` pages from [`FAR`] were born.
    fn pages_of_a(&mut self, count: u32) {
        let pages = PageRange { first: FAR, count };
        self.machine.members_changed(vec![members::member(A, MEMORY, true, pages)]);
    }

    /// Handles an event and executes its actions on the memory. Returns the actions.
    fn step(&mut self, ms: u64, event: ExchangeEvent) -> Vec<ExchangeAction> {
        self.machine.handle(RackEvent::Exchange(event));
        self.poll(ms)
    }

    fn poll(&mut self, ms: u64) -> Vec<ExchangeAction> {
        let mut actions = Vec::new();
        while let Some(action) = self.machine.poll(at(ms), &self.memory) {
            let RackAction::Exchange(action) = action else { continue };
            match &action {
                ExchangeAction::Allocate { addr, .. } => {
                    assert!(self.memory.allocated.insert(*addr), "{addr} is in use");
                }
                ExchangeAction::Free { addr, .. } => {
                    assert!(self.memory.allocated.remove(addr), "{addr} is free");
                }
                ExchangeAction::FillInbox(_, addrs) => self.memory.inbox.extend(addrs),
                ExchangeAction::Strike(_, addrs) | ExchangeAction::StrikeEverywhere(addrs) => {
                    self.memory.outbox.retain(|addr| !addrs.contains(addr));
                }
                _ => {}
            }
            actions.push(action);
        }
        actions
    }

    /// Returns objects that are in the outbox.
    fn release(&mut self, ms: u64, addrs: &[GlobalAddr]) -> Vec<ExchangeAction> {
        self.memory.outbox.extend(addrs);
        let (caller, addrs) = (Some(CALLER), addrs.to_vec());
        self.step(ms, ExchangeEvent::Return { owner: OWNER, caller, addrs, refused: 0 })
    }

    fn restart(&mut self, records: Vec<(RackId, PeerRecord)>) -> Vec<ExchangeAction> {
        self.step(1, ExchangeEvent::Restarted(records))
    }
}

fn asked(state: AskedState, sequence: u64, addrs: &[GlobalAddr]) -> AskedRecord {
    let (kind, addrs) = (ExchangeKind::Free, addrs.to_vec());
    AskedRecord { state, sequence, kind, bytes: 0, count: 0, addrs }
}

fn stored(to: RackId, state: AskedState, sequence: u64, addrs: &[GlobalAddr]) -> ExchangeAction {
    ExchangeAction::StoreAsked(to, asked(state, sequence, addrs))
}

fn free(to: RackId, sequence: u64, addrs: &[GlobalAddr]) -> ExchangeAction {
    let addrs = addrs.to_vec();
    ExchangeAction::Request(to, PeerRequest::Free { rack: OWN, memory: MEMORY, sequence, addrs })
}

fn freed(moved: &[GlobalAddr]) -> PeerReply {
    PeerReply::Freed { refused: 0, moved: moved.to_vec() }
}

fn peer(asked: AskedRecord) -> PeerRecord {
    PeerRecord { asked, served: ServedRecord::default() }
}

#[test]
fn objects_from_another_rack_are_in_the_record_until_they_are_in_the_inbox() {
    let mut rack = Rack::new();
    let addrs = vec![object(FAR, 0), object(FAR, 1)];
    let allocate = ExchangeEvent::Allocate { caller: CALLER, rack: A, bytes: 64, count: 2 };
    let record = |state, addrs: &[GlobalAddr]| {
        let (kind, addrs) = (ExchangeKind::Allocate, addrs.to_vec());
        let record = AskedRecord { state, sequence: 1, kind, bytes: 64, count: 2, addrs };
        ExchangeAction::StoreAsked(A, record)
    };
    let (bytes, count) = (64, 2);
    let request = PeerRequest::Allocate { rack: OWN, memory: MEMORY, sequence: 1, bytes, count };
    let request = ExchangeAction::Request(A, request);
    let sent = [record(AskedState::Sent, &[]), request.clone()];
    assert_eq!(rack.step(1, allocate), sent);
    assert_eq!(rack.step(2, ExchangeEvent::Unanswered(A)), [request]);
    let answered = ExchangeEvent::Answered(A, PeerReply::Allocated(addrs.clone()));
    let handed_over = [
        record(AskedState::Received, &addrs),
        ExchangeAction::FillInbox(CALLER, addrs.clone()),
        record(AskedState::Idle, &addrs),
        ExchangeAction::Finish(CALLER, CallResult::Allocated(2)),
    ];
    assert_eq!(rack.step(3, answered), handed_over);
}

#[test]
fn objects_without_a_taker_are_freed_by_the_next_exchange() {
    let mut rack = Rack::new();
    rack.step(1, ExchangeEvent::Allocate { caller: CALLER, rack: A, bytes: 64, count: 1 });
    let late = [ExchangeAction::NotAllocated(CALLER, A, None)];
    assert_eq!(rack.poll(1_001), late);
    let addrs = [object(FAR, 0)];
    let answered = ExchangeEvent::Answered(A, PeerReply::Allocated(addrs.to_vec()));
    let actions = rack.step(1_002, answered);
    assert_eq!(actions[1..], [stored(A, AskedState::Sent, 2, &addrs), free(A, 2, &addrs)]);
}

#[test]
fn objects_are_in_the_record_before_they_leave_the_outbox_and_after_that_the_request_is_sent() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0), object(FAR, 1)];
    let begun = [
        stored(A, AskedState::Owned, 1, &addrs),
        ExchangeAction::Strike(OWNER, addrs.to_vec()),
        stored(A, AskedState::Sent, 1, &addrs),
        free(A, 1, &addrs),
    ];
    assert_eq!(rack.release(1, &addrs), begun);
    let ended =
        [ExchangeAction::Finish(CALLER, CallResult::Freed(0)), stored(A, AskedState::Idle, 1, &[])];
    assert_eq!(rack.step(2, ExchangeEvent::Answered(A, freed(&[]))), ended);
}

/// Regression: while a rack was away, each of many calls waited for it as long as the first.
#[test]
fn calls_behind_an_exchange_that_is_overdue_do_not_wait() {
    let mut rack = Rack::new();
    rack.release(1, &[object(FAR, 0)]);
    let freed = ExchangeAction::Finish(CALLER, CallResult::Freed(0));
    assert_eq!(rack.poll(1_001), [freed], "the record owns the object");
    let kept = CallResult::Kept(Obstacle::RackUnavailable(A));
    assert_eq!(rack.release(1_500, &[object(FAR, 1)]), [ExchangeAction::Finish(CALLER, kept)]);
    let allocate = ExchangeEvent::Allocate { caller: CALLER, rack: A, bytes: 64, count: 1 };
    assert_eq!(rack.step(1_501, allocate), [ExchangeAction::NotAllocated(CALLER, A, None)]);
}

#[test]
fn objects_that_wait_for_another_exchange_stay_in_the_outbox_when_the_call_is_late() {
    let mut rack = Rack::new();
    rack.step(1, ExchangeEvent::Allocate { caller: CALLER, rack: A, bytes: 64, count: 1 });
    assert_eq!(rack.release(2, &[object(FAR, 0)]), []);
    let kept = CallResult::Kept(Obstacle::RackUnavailable(A));
    assert_eq!(rack.poll(1_002)[0], ExchangeAction::Finish(CALLER, kept));
    assert_eq!(rack.memory.outbox.len(), 1);
}

/// The object is in use by a program of this rack: no cell holds it.
#[test]
fn another_rack_hands_out_no_object_of_a_page_that_was_here_all_the_time() {
    let mut rack = Rack::new();
    let addr = object(HERE, 0);
    rack.memory.allocated.insert(addr);
    rack.step(1, ExchangeEvent::Allocate { caller: CALLER, rack: A, bytes: 64, count: 1 });
    let answered = ExchangeEvent::Answered(A, PeerReply::Allocated(vec![addr]));
    let refused = ExchangeAction::Finish(CALLER, CallResult::Invalid);
    assert_eq!(rack.step(2, answered)[0], refused);
    assert!(rack.memory.inbox.is_empty());
}

/// A request of another rack.
fn request(sequence: u64, addrs: Option<&[GlobalAddr]>) -> PeerRequest {
    let (rack, memory) = (A, MEMORY);
    match addrs {
        Some(addrs) => PeerRequest::Free { rack, memory, sequence, addrs: addrs.to_vec() },
        None => PeerRequest::Allocate { rack, memory, sequence, bytes: 64, count: 2 },
    }
}

#[test]
fn a_record_names_each_object_before_it_is_allocated_and_answers_repeated_requests() {
    let mut rack = Rack::new();
    let addrs = [object(HERE, 0), object(HERE, 1)];
    let doing = |state, addrs: &[GlobalAddr]| {
        let (kind, addrs) = (ExchangeKind::Allocate, addrs.to_vec());
        let (memory, sequence, moved) = (MEMORY, 4, Vec::new());
        let record = ServedRecord { state, memory, sequence, kind, addrs, moved };
        ExchangeAction::StoreServed(A, record)
    };
    let actions = rack.step(1, ExchangeEvent::Requested(1, request(4, None)));
    let writing = |action: &ExchangeAction| matches!(action, ExchangeAction::StoreServed(A, record) if record.state == ServedState::Writing);
    assert!(writing(&actions[0]), "{actions:?}");
    let answer = |ask| ExchangeAction::Answer(ask, PeerReply::Allocated(addrs.to_vec()));
    let executed = [
        doing(ServedState::Doing, &[]),
        doing(ServedState::Doing, &addrs[..1]),
        ExchangeAction::Allocate { addr: addrs[0], bytes: 64 },
        doing(ServedState::Doing, &addrs),
        ExchangeAction::Allocate { addr: addrs[1], bytes: 64 },
        doing(ServedState::Done, &addrs),
        answer(1),
    ];
    assert_eq!(actions[1..], executed);
    let repeated = ExchangeEvent::Requested(2, request(4, None));
    assert_eq!(rack.step(2, repeated), [answer(2)]);
    let actions = rack.step(3, ExchangeEvent::Requested(3, request(3, None)));
    assert!(matches!(actions[..], [ExchangeAction::Answer(3, PeerReply::Invalid(_))]));
}

#[test]
fn an_object_of_a_page_that_moves_for_too_long_is_named_in_the_answer_and_in_the_record() {
    let mut rack = Rack::new();
    let addr = object(HERE, 0);
    rack.memory.allocated.insert(addr);
    rack.memory.word = rack.memory.word.apply(PageEvent::Frozen).unwrap();
    let freeing = request(1, Some(&[addr]));
    assert_eq!(rack.step(1, ExchangeEvent::Requested(1, freeing.clone())), []);
    assert_eq!(rack.step(100, ExchangeEvent::Requested(2, freeing.clone())), []);
    let answer = |ask| ExchangeAction::Answer(ask, freed(&[addr]));
    assert_eq!(rack.poll(251).last(), Some(&answer(2)));
    assert!(rack.memory.allocated.contains(&addr));
    let repeated = ExchangeEvent::Requested(3, freeing);
    assert_eq!(rack.step(252, repeated), [answer(3)], "nothing is freed later");
}

/// The objects are in the record of `A`, which does not have them.
fn moved(rack: &mut Rack, addrs: &[GlobalAddr]) {
    rack.release(1, addrs);
    rack.step(2, ExchangeEvent::Answered(A, freed(addrs)));
}

#[test]
fn a_moved_object_is_in_the_record_of_its_home_before_it_leaves_the_other_one() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0), object(FARTHER, 0)];
    moved(&mut rack, &addrs);
    let passed_on = [
        stored(B, AskedState::Owned, 1, &addrs[..1]),
        stored(A, AskedState::Moved, 1, &addrs[1..]),
        stored(B, AskedState::Sent, 1, &addrs[..1]),
        free(B, 1, &addrs[..1]),
    ];
    let located = |page, rack| ExchangeEvent::Located(page, Located::Home(rack));
    assert_eq!(rack.step(3, located(FAR, B)), passed_on);
    // The other page has come back: the record is sent again.
    let again = [stored(A, AskedState::Sent, 2, &addrs[1..]), free(A, 2, &addrs[1..])];
    assert_eq!(rack.step(4, located(FARTHER, A)), again);
}

/// Each of two records has only objects of the other's rack, as after a swap of their pages.
#[test]
fn two_records_do_not_wait_for_each_other() {
    let mut rack = Rack::new();
    let home = |page: PageId| if page == FAR { B } else { A };
    let full = |page| (0..31).map(|index| object(page, index)).collect::<Vec<_>>();
    let records = [(A, full(FAR)), (B, full(FARTHER))];
    let records = records.map(|(to, addrs)| (to, peer(asked(AskedState::Moved, 1, &addrs))));
    let mut actions = VecDeque::from(rack.restart(records.into()));
    for step in 0..1_000 {
        let event = match actions.pop_front() {
            Some(ExchangeAction::Locate(page)) => {
                ExchangeEvent::Located(page, Located::Home(home(page)))
            }
            Some(ExchangeAction::Request(to, PeerRequest::Free { addrs, .. })) => {
                let is_away = |addr: &GlobalAddr| addr.page(SIZE).map(home) != Some(to);
                let away: Vec<_> = addrs.into_iter().filter(is_away).collect();
                ExchangeEvent::Answered(to, freed(&away))
            }
            Some(_) => continue,
            None if rack.machine.exchanging() == 0 => return,
            None => {
                actions.extend(rack.poll(step * AGAIN));
                continue;
            }
        };
        actions.extend(rack.step(step * AGAIN, event));
    }
    panic!("the records wait for each other");
}

/// Regression: the answer to a search that was older than the page said that there is no such page.
/// The objects to be freed were given up.
#[test]
fn an_answer_to_a_search_says_nothing_about_objects_to_be_freed() {
    let mut rack = Rack::new();
    rack.pages_of_a(0);
    let addrs = [object(FAR, 0)];
    assert_eq!(rack.release(1, &addrs), [ExchangeAction::Locate(FAR)]);
    let answer =
        |question| RackEvent::PageLocated { page: FAR, question, located: Located::NoSuchPage };
    rack.machine.handle(answer(77));
    assert_eq!(rack.poll(2), []);
    assert!(rack.memory.outbox.contains(&addrs[0]));
    rack.machine.handle(answer(0));
    assert_ne!(rack.poll(3), []);
    assert!(rack.memory.outbox.is_empty());
}

/// Regression: the metadata server's answer named this rack, which had had the page and given it
/// away since. The objects were taken for objects of a page that does not exist, and lost.
#[test]
fn an_old_answer_about_a_page_that_has_left_is_not_believed() {
    let mut rack = Rack::new();
    rack.pages_of_a(0);
    let addrs = [object(FAR, 0)];
    assert_eq!(rack.release(1, &addrs), [ExchangeAction::Locate(FAR)]);
    assert_eq!(rack.step(2, ExchangeEvent::Located(FAR, Located::Home(OWN))), []);
    assert!(rack.memory.outbox.contains(&addrs[0]));
    assert_eq!(rack.poll(2 + AGAIN), [ExchangeAction::Locate(FAR)]);
}

#[test]
fn an_object_that_is_returned_twice_is_freed_once() {
    let mut rack = Rack::new();
    let addr = object(HERE, 0);
    rack.memory.allocated.insert(addr);
    let live = rack.memory.word;
    rack.memory.word = live.apply(PageEvent::Frozen).unwrap();
    assert_eq!(rack.release(1, &[addr]), []);
    // The client dies while its call waits for the page.
    let (caller, addrs) = (None, vec![addr]);
    let gone = ExchangeEvent::Return { owner: OWNER, caller, addrs, refused: 0 };
    assert_eq!(rack.step(2, gone), []);
    assert!(rack.machine.returns_of(OWNER.client));
    rack.memory.word = live;
    let freed_once = [
        ExchangeAction::Free { addr, client: Some(OWNER.client) },
        ExchangeAction::Strike(OWNER, vec![addr]),
        ExchangeAction::Finish(CALLER, CallResult::Freed(0)),
        ExchangeAction::Returned(OWNER.client),
    ];
    assert_eq!(rack.poll(2 + AGAIN), freed_once);
}

#[test]
fn a_restarted_rack_frees_what_it_received_and_no_cell_holds() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0), object(FAR, 1)];
    rack.memory.inbox.insert(addrs[0]);
    let record = peer(asked(AskedState::Received, 5, &addrs));
    let freeing = [stored(A, AskedState::Sent, 6, &addrs[1..]), free(A, 6, &addrs[1..])];
    assert_eq!(rack.restart(vec![(A, record)]), freeing);
}

#[test]
fn a_restarted_rack_clears_the_outbox_of_what_a_record_owns_before_it_sends_the_request() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0)];
    let record = peer(asked(AskedState::Owned, 5, &addrs));
    let sent = [
        ExchangeAction::StrikeEverywhere(addrs.to_vec()),
        stored(A, AskedState::Sent, 5, &addrs),
        free(A, 5, &addrs),
    ];
    assert_eq!(rack.restart(vec![(A, record)]), sent);
}

/// Regression: the other rack had freed the object, its answer was lost, and a client of this rack
/// got the object again. Then the daemon was killed, and its successor removed the object from the
/// client's cells: nobody had it any more.
#[test]
fn a_restarted_rack_does_not_take_away_what_a_client_has_got_again() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0)];
    rack.memory.inbox.insert(addrs[0]);
    let record = peer(asked(AskedState::Sent, 5, &addrs));
    assert_eq!(rack.restart(vec![(A, record)]), [free(A, 5, &addrs)]);
}

#[test]
fn an_object_in_two_records_leaves_the_one_that_says_moved() {
    let mut rack = Rack::new();
    let addrs = [object(FAR, 0)];
    let records = [(A, AskedState::Moved), (B, AskedState::Owned)];
    let records = records.map(|(to, state)| (to, peer(asked(state, 5, &addrs))));
    let actions = rack.restart(records.into());
    let sent = stored(B, AskedState::Sent, 5, &addrs);
    let striking = ExchangeAction::StrikeEverywhere(addrs.to_vec());
    let passed_on = [stored(A, AskedState::Idle, 5, &[]), striking, sent, free(B, 5, &addrs)];
    assert_eq!(actions, passed_on);
}

#[test]
fn a_restarted_rack_finishes_what_it_was_doing_for_another() {
    let mut rack = Rack::new();
    let addrs = [object(HERE, 0), object(HERE, 1)];
    rack.memory.allocated.insert(addrs[0]);
    let served = |state, kind, addrs: &[GlobalAddr]| {
        let (memory, sequence, addrs, moved) = (MEMORY, 9, addrs.to_vec(), Vec::new());
        ServedRecord { state, memory, sequence, kind, addrs, moved }
    };
    let doing = served(ServedState::Doing, ExchangeKind::Allocate, &addrs);
    let record = PeerRecord { asked: AskedRecord::default(), served: doing };
    let done = served(ServedState::Done, ExchangeKind::Allocate, &addrs[..1]);
    assert_eq!(rack.restart(vec![(A, record)]), [ExchangeAction::StoreServed(A, done)]);

    let doing = served(ServedState::Doing, ExchangeKind::Free, &addrs);
    let record = PeerRecord { asked: AskedRecord::default(), served: doing };
    let done = served(ServedState::Done, ExchangeKind::Free, &addrs);
    let finished = [
        ExchangeAction::Free { addr: addrs[0], client: None },
        ExchangeAction::StoreServed(A, done),
    ];
    assert_eq!(rack.restart(vec![(A, record)]), finished);

    let writing = served(ServedState::Writing, ExchangeKind::Free, &addrs);
    let record = PeerRecord { asked: AskedRecord::default(), served: writing };
    rack.restart(vec![(A, record)]);
    assert!(!rack.machine.has_served(A, MEMORY, 9), "nothing was done: the request is new");
}
