//! The search for the home of a page, step by step: what a rack asks whom, and what its clients are
//! told.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[macro_use]
mod absent;
mod members;

use std::time::Duration;

use rackpool_model::{
    Access, ClientId, Epoch, FrameId, FrameWord, HeatRules, MemoryId, PageEvent, PageId, PageRange,
    PageSize, PageWord, RackId,
};
use rackpool_proto::exchange::{Caller, ExchangeIdentity, ExchangeRules};
use rackpool_proto::lease::{EndpointToken, Lease, LeaseId, LeaseKind, LeaseRules};
use rackpool_proto::lock::LockRules;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::publication::RecoveryRules;
use rackpool_proto::rack::{
    Executor, LeaseAnswer, LineRules, PageWords, RackAction, RackEvent, RackMachine, RackPast,
    RackRules,
};
use rackpool_proto::share::ShareRules;
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, SwapRules};
use rackpool_proto::{Located, Time};
use rackpool_wire::metadata::Member;
use rackpool_wire::rack::RackAnswer;

/// Born in rack [`BIRTH`].
const PAGE: PageId = PageId(103);
/// Born in no rack that this one knows.
const UNKNOWN: PageId = PageId(900);
const RECOVERY: RecoveryRules = RecoveryRules {
    page_size: PageSize::DEFAULT,
    again: Duration::from_millis(100),
    earlier_requests: Duration::from_secs(2),
};

const EXCHANGE: ExchangeRules = ExchangeRules {
    page_size: PageSize::DEFAULT,
    timeout: Duration::from_secs(1),
    defer: Duration::from_millis(250),
    again: Duration::from_millis(20),
};
const OWN: RackId = RackId(0);
const BIRTH: RackId = RackId(1);
const OTHER: RackId = RackId(2);

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

/// The memory of a rack that holds at most one page.
#[derive(Default)]
struct Memory {
    here: Option<PageWord>,
}

impl PageWords for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        let word = self.here.filter(|word| word.page() == page)?;
        Some(FrameWord { frame: FrameId(0), word })
    }
    fn word(&self, _: FrameId) -> Option<PageWord> {
        self.here
    }
}

no_objects!(Memory);

no_moves!(Memory);

struct Rack {
    machine: RackMachine,
    memory: Memory,
}

fn member(rack: RackId, alive: bool) -> Member {
    let first = PageId(u32::from(rack.0) * 100);
    let pages = PageRange { first, count: 16 };
    members::member(rack, MemoryId(rack.0.into()), alive, pages)
}

fn caller(call: u32) -> Caller {
    Caller { client: ClientId(1), thread: 0, cell: 0, call }
}

fn answer(call: u32, answer: RackAnswer) -> RackAction {
    RackAction::Answer { caller: caller(call), answer }
}

fn found(home: RackId) -> RackAnswer {
    RackAnswer::Remote { home, usage: 9 }
}

/// Returns the number of the request for a lease of [`PAGE`] in these actions, which must be the
/// last one.
fn asked(actions: &[RackAction], of: RackId, with: Access) -> u64 {
    match actions.last() {
        Some(RackAction::RequestLease { page: PAGE, home, question, access, replica: false }) => {
            assert_eq!((*home, *access), (of, with));
            *question
        }
        other => panic!("{of} is not asked: {other:?}"),
    }
}

/// Returns the number of the question to the metadata server, which must be the last action.
fn located(actions: &[RackAction], of: PageId) -> u64 {
    match actions.last() {
        Some(RackAction::LocatePage { page, question }) if *page == of => *question,
        other => panic!("the metadata server is not asked: {other:?}"),
    }
}

fn lease(kind: LeaseKind, home: RackId) -> LeaseAnswer {
    let (id, endpoint, epoch) = (LeaseId(4), EndpointToken(5), Epoch::ZERO);
    let lease = Lease { id, kind, home, endpoint, frame: FrameId(77), epoch };
    LeaseAnswer::Granted { lease, usage: 9, forwards: false }
}

impl Rack {
    fn new() -> Self {
        let rules = RackRules {
            swap: SwapRules::DEFAULT,
            lease: LeaseRules::DEFAULT,
            share: ShareRules::DEFAULT,
            shares: false,
            heat: HeatRules::DEFAULT,
            lines: LineRules { in_page: 64, forwarded: 8, sent: 16 },
            exchange: EXCHANGE,
            recovery: RECOVERY,
            lock: LockRules::DEFAULT,
            barrier_delay: Duration::from_millis(1),
        };
        let records = [[0; RECORD_WORDS]; RECORDS];
        let own = ExchangeIdentity { rack: OWN, memory: MemoryId(1) };
        let past = RackPast {
            first: 1 << 32,
            restarted: true,
            records: &records,
            foreign_claims: &[],
            own,
        };
        let machine = RackMachine::restore(Time::ZERO, rules, &past, [], 0, Sound).unwrap();
        let mut rack = Self { machine, memory: Memory::default() };
        rack.members(true);
        rack
    }

    /// The metadata server names the members; the page's rack of birth may be dead.
    fn members(&mut self, birth_lives: bool) -> Vec<RackAction> {
        let members = vec![member(OWN, true), member(BIRTH, birth_lives), member(OTHER, true)];
        self.machine.members_changed(members);
        self.poll(Time::ZERO)
    }

    fn poll(&mut self, now: Time) -> Vec<RackAction> {
        std::iter::from_fn(|| self.machine.poll(now, &self.memory)).collect()
    }

    fn step(&mut self, now: Time, event: RackEvent) -> Vec<RackAction> {
        self.machine.handle(event);
        self.poll(now)
    }

    fn wants(&mut self, now: Time, call: u32, page: PageId, access: Access) -> Vec<RackAction> {
        assert_eq!(self.machine.known_access(now, page, access), None);
        self.step(now, RackEvent::AccessWanted { caller: caller(call), page, access })
    }

    fn answers(
        &mut self,
        now: Time,
        home: RackId,
        question: u64,
        answer: LeaseAnswer,
    ) -> Vec<RackAction> {
        self.step(now, RackEvent::LeaseAnswered { page: PAGE, question, home, answer })
    }

    fn locates(&mut self, page: PageId, question: u64, located: Located) -> Vec<RackAction> {
        self.step(at(1), RackEvent::PageLocated { page, question, located })
    }
}

#[test]
fn the_rack_of_birth_is_asked_first_then_the_metadata_server_then_the_home_that_it_names() {
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    let question = located(&rack.answers(at(1), BIRTH, question, LeaseAnswer::NotHere), PAGE);
    let named = rack.locates(PAGE, question, Located::Home(OTHER));
    let question = asked(&named, OTHER, Access::Read);
    let granted = lease(LeaseKind::Write, OTHER);
    assert_eq!(rack.answers(at(1), OTHER, question, granted), [answer(1, found(OTHER))]);
    assert_eq!(rack.machine.known_access(at(2), PAGE, Access::Write), Some(found(OTHER)));
    assert_eq!(rack.machine.awaited_questions().next(), None);
}

#[test]
fn a_home_that_was_named_and_does_not_have_the_page_is_not_asked_again_at_once() {
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    let question = located(&rack.answers(at(1), BIRTH, question, LeaseAnswer::NotHere), PAGE);
    let named = rack.locates(PAGE, question, Located::Home(OTHER));
    let question = asked(&named, OTHER, Access::Read);
    assert_eq!(rack.answers(at(1), OTHER, question, LeaseAnswer::NotHere), []);
    assert_eq!(rack.machine.deadline(), Some(at(3)), "the first pause");
    located(&rack.step(at(3), RackEvent::DeadlinePassed), PAGE);
}

#[test]
fn a_rack_of_birth_that_is_dead_is_named_only_if_the_metadata_server_names_it_too() {
    let mut rack = Rack::new();
    rack.members(false);
    let question = located(&rack.wants(at(1), 1, PAGE, Access::Read), PAGE);
    asked(&rack.locates(PAGE, question, Located::Home(OTHER)), OTHER, Access::Read);
    let mut rack = Rack::new();
    rack.members(false);
    let question = located(&rack.wants(at(1), 1, PAGE, Access::Read), PAGE);
    let dead = answer(1, RackAnswer::RackUnavailable(BIRTH));
    assert_eq!(rack.locates(PAGE, question, Located::Home(BIRTH)), [dead]);
}

#[test]
fn a_denial_does_not_concern_callers_that_came_after_the_question() {
    let nothing = |call| answer(call, RackAnswer::NotAllocated);
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    assert_eq!(rack.wants(at(1), 2, PAGE, Access::Read), []);
    let denied = rack.answers(at(2), BIRTH, question, LeaseAnswer::NotAllocated);
    assert_eq!(denied[..1], [nothing(1)]);
    let again = asked(&denied, BIRTH, Access::Read);
    assert_eq!(rack.answers(at(3), BIRTH, again, LeaseAnswer::NotAllocated), [nothing(2)]);

    let question = located(&rack.wants(at(4), 3, UNKNOWN, Access::Read), UNKNOWN);
    assert_eq!(rack.wants(at(4), 4, UNKNOWN, Access::Read), []);
    let denied = rack.locates(UNKNOWN, question, Located::NoSuchPage);
    assert_eq!(denied[..1], [nothing(3)]);
    located(&denied, UNKNOWN);
}

/// Regression: callers were told that a dead rack has the page, in answer to a question that was
/// sent before they began to wait. The page had moved since.
#[test]
fn a_dead_home_that_was_named_before_a_caller_came_is_no_answer_to_it() {
    let mut rack = Rack::new();
    rack.members(false);
    let question = located(&rack.wants(at(1), 1, PAGE, Access::Read), PAGE);
    assert_eq!(rack.wants(at(1), 2, PAGE, Access::Read), []);
    let named = rack.locates(PAGE, question, Located::Home(BIRTH));
    assert_eq!(named[..1], [answer(1, RackAnswer::RackUnavailable(BIRTH))]);
    let question = located(&named, PAGE);
    asked(&rack.locates(PAGE, question, Located::Home(OTHER)), OTHER, Access::Read);
}

/// Regression: the answer to a question of the metadata server counted for the next search of the
/// page, whose callers may know of a rack that has joined since.
#[test]
fn a_late_answer_of_the_metadata_server_does_not_concern_the_next_search() {
    let mut rack = Rack::new();
    let late = located(&rack.wants(at(1), 1, UNKNOWN, Access::Read), UNKNOWN);
    let unreachable = answer(1, RackAnswer::MetadataUnreachable);
    rack.step(at(1_500), RackEvent::DeadlinePassed);
    let deadline = at(2_001);
    assert!(rack.step(at(1_900), RackEvent::DeadlinePassed).is_empty());
    assert_eq!(rack.step(deadline, RackEvent::DeadlinePassed), []);
    assert_eq!(rack.step(at(3_500), RackEvent::DeadlinePassed), [unreachable]);
    let next = located(&rack.wants(at(3_501), 2, UNKNOWN, Access::Read), UNKNOWN);
    assert_eq!(rack.locates(UNKNOWN, late, Located::NoSuchPage), []);
    let denied = answer(2, RackAnswer::NotAllocated);
    assert_eq!(rack.locates(UNKNOWN, next, Located::NoSuchPage), [denied]);
}

#[test]
fn an_answer_to_an_earlier_question_asks_nobody() {
    let mut rack = Rack::new();
    let earlier = asked(&rack.wants(at(1), 1, PAGE, Access::Write), BIRTH, Access::Write);
    // The first reader asks for a weaker lease.
    let latest = asked(&rack.wants(at(1), 2, PAGE, Access::Read), BIRTH, Access::Read);
    for refusal in [LeaseAnswer::Busy, LeaseAnswer::NotHere, LeaseAnswer::Invalid] {
        assert_eq!(rack.answers(at(2), BIRTH, earlier, refusal), []);
    }
    assert_eq!(rack.step(at(2), RackEvent::LeaseUnanswered { page: PAGE, question: earlier }), []);
    let readers = rack.answers(at(2), BIRTH, latest, lease(LeaseKind::Read, BIRTH));
    assert_eq!(readers[..1], [answer(2, found(BIRTH))], "the writer still waits");
    asked(&readers, BIRTH, Access::Write);
}

#[test]
fn a_request_whose_endpoint_has_ended_is_sent_again() {
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    let ended = rack.step(at(2), RackEvent::LeaseUnanswered { page: PAGE, question });
    assert!(asked(&ended, BIRTH, Access::Read) > question);
}

#[test]
fn pauses_double_up_to_50_ms_and_a_caller_is_told_what_was_in_the_way() {
    let mut rack = Rack::new();
    let mut question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    let mut now = 1;
    for pause in [2, 4, 8, 16, 32, 50, 50] {
        assert_eq!(rack.answers(at(now), BIRTH, question, LeaseAnswer::Busy), []);
        now += pause;
        assert_eq!(rack.step(at(now - 1), RackEvent::DeadlinePassed), []);
        let again = rack.step(at(now), RackEvent::DeadlinePassed);
        question = asked(&again, BIRTH, Access::Read);
    }
    while now < 1_900 {
        now += 200;
        assert_eq!(rack.step(at(now), RackEvent::DeadlinePassed), []);
    }
    assert_eq!(rack.machine.deadline(), Some(at(2_001)));
    let busy = answer(1, RackAnswer::PageBusy(BIRTH));
    assert_eq!(rack.step(at(2_001), RackEvent::DeadlinePassed), [busy]);
}

#[test]
fn a_caller_of_a_rack_that_stood_still_gets_its_time_again_once() {
    let mut rack = Rack::new();
    rack.wants(at(1), 1, PAGE, Access::Read);
    assert_eq!(rack.step(at(3_000), RackEvent::DeadlinePassed), []);
    let silent = answer(1, RackAnswer::RackUnavailable(BIRTH));
    assert_eq!(rack.step(at(6_000), RackEvent::DeadlinePassed), [silent]);
}

#[test]
fn callers_that_wait_elsewhere_find_a_page_that_has_come_here() {
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Read), BIRTH, Access::Read);
    rack.memory.here = Some(PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap());
    let ended = RackEvent::LeaseUnanswered { page: PAGE, question };
    assert_eq!(rack.step(at(2), ended), [answer(1, RackAnswer::Moved)]);
}

#[test]
fn the_members_are_asked_for_before_a_rack_that_they_do_not_name() {
    let mut rack = Rack::new();
    let question = located(&rack.wants(at(1), 1, UNKNOWN, Access::Read), UNKNOWN);
    let actions = rack.locates(UNKNOWN, question, Located::Home(RackId(7)));
    assert_eq!(actions[0], RackAction::AskForMembers);
    assert!(matches!(actions[1], RackAction::RequestLease { home: RackId(7), .. }));
}

#[test]
fn a_rack_number_that_no_rack_can_have_is_no_home() {
    let mut rack = Rack::new();
    let question = located(&rack.wants(at(1), 1, UNKNOWN, Access::Read), UNKNOWN);
    let nothing = answer(1, RackAnswer::NotAllocated);
    assert_eq!(rack.locates(UNKNOWN, question, Located::Home(RackId(300))), [nothing]);
}

/// A rack with a lease for writing of the page, which its rack of birth has granted.
fn with_lease() -> Rack {
    let mut rack = Rack::new();
    let question = asked(&rack.wants(at(1), 1, PAGE, Access::Write), BIRTH, Access::Write);
    let granted = lease(LeaseKind::Write, BIRTH);
    assert_eq!(rack.answers(at(1), BIRTH, question, granted), [answer(1, found(BIRTH))]);
    rack
}

#[test]
fn a_rack_that_has_lost_its_memory_is_disconnected_and_what_it_leased_forgotten() {
    let mut rack = with_lease();
    let other = Member { memory: MemoryId(99), ..member(BIRTH, true) };
    rack.machine.members_changed(vec![member(OWN, true), other, member(OTHER, true)]);
    assert_eq!(rack.poll(at(2)), [RackAction::DisconnectRack(BIRTH)]);
    assert_eq!(rack.machine.known_access(at(2), PAGE, Access::Read), None);
}

/// Regression: a client was told that a dead rack has the page, since the rack's lease was valid,
/// and that its atomic operation can't be sent there, since the rack was dead; it repeated both
/// without a pause until the lease ended.
#[test]
fn a_home_that_counts_as_dead_executes_atomics_while_its_lease_is_valid() {
    let mut rack = with_lease();
    rack.members(false);
    let executor = |rack: &Rack, ms| rack.machine.executor(at(ms), &rack.memory, PAGE, true);
    assert_eq!(rack.machine.known_access(at(2), PAGE, Access::Write), Some(found(BIRTH)));
    assert_eq!(executor(&rack, 2), Executor::Home(BIRTH));
    assert_eq!(rack.machine.known_access(at(2_100), PAGE, Access::Write), None);
    assert_eq!(executor(&rack, 2_100), Executor::Unknown);
}

#[test]
fn a_home_that_has_executed_a_write_is_asked_for_a_lease_once() {
    let mut rack = Rack::new();
    let written = RackEvent::WrittenByHome { page: PAGE, home: BIRTH };
    let question = asked(&rack.step(at(1), written.clone()), BIRTH, Access::Write);
    assert_eq!(rack.step(at(1), written.clone()), [], "a request is under way");
    assert_eq!(rack.answers(at(2), BIRTH, question, LeaseAnswer::Busy), []);
    let question = asked(&rack.step(at(3), written.clone()), BIRTH, Access::Write);
    assert_eq!(rack.answers(at(4), BIRTH, question, lease(LeaseKind::Write, BIRTH)), []);
    assert_eq!(rack.step(at(4), written), []);
}
