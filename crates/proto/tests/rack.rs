//! The machine of a rack, step by step: what it does in which order, and when a frame counts as
//! quiesced.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[macro_use]
#[expect(unused_macros, reason = "other tests use the rest")]
mod absent;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::slice;
use std::time::Duration;

use rackpool_model::{
    Access, Epoch, FrameId, FrameWord, HeatRules, MemoryId, Occupants, PageEvent, PageId, PageSize,
    PageState, PageWord, RackId,
};
use rackpool_proto::Time;
use rackpool_proto::exchange::{ExchangeIdentity, ExchangeRules};
use rackpool_proto::lease::{
    EndpointToken, GrantedLease, Lease, LeaseId, LeaseKind, LeaseRules, Revocation, Users,
};
use rackpool_proto::lock::LockRules;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::publication::RecoveryRules;
use rackpool_proto::rack::{
    LeaseAnswer, LeaseReply, LeaseRequest, LineRules, PageAccess, PageWords, RackAction, RackEvent,
    RackMachine, RackMemory, RackPast, RackRules,
};
use rackpool_proto::share::{ShareRules, SharingId};
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, SwapRules};
use rackpool_wire::swap::{Between, PageLife, SwapId, SwapMessage};

const PAGE: PageId = PageId(7);
const FRAME: FrameId = FrameId(0);
const SPARE: FrameId = FrameId(1);
const OVER: EndpointToken = EndpointToken(5);
const OTHER: RackId = RackId(2);
const LINES: LineRules = LineRules { in_page: 64, forwarded: 8, sent: 16 };
const BARRIER_DELAY: Duration = Duration::from_millis(1);
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

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

/// Two frames, and the uses that clients have of them.
struct Memory {
    words: BTreeMap<FrameId, PageWord>,
    used: RefCell<Vec<(FrameId, Occupants)>>,
    is_short: bool,
}

impl Memory {
    fn new() -> Self {
        let live = PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap();
        let words = BTreeMap::from([(FRAME, live), (SPARE, PageWord::free(PageId(8)))]);
        Self { words, used: RefCell::new(Vec::new()), is_short: false }
    }
}

impl PageWords for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        let mut all =
            self.words.iter().map(|(frame, word)| FrameWord { frame: *frame, word: *word });
        all.find(|found| {
            found.word.page() == page && found.word.state() != Some(PageState::Arriving)
        })
    }
    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.words.get(&frame).copied()
    }
}

no_objects!(Memory);
no_locks!(Memory);

impl RackMemory for Memory {
    fn spare(&self) -> Option<FrameId> {
        Some(SPARE)
    }
    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        std::iter::empty()
    }
    fn movable_pages(&self) -> impl Iterator<Item = PageId> {
        std::iter::empty()
    }
    fn may_move(&self, _: PageId) -> bool {
        true
    }
    fn may_share(&self, _: PageId) -> bool {
        true
    }
    fn frame_for_replica(&self, _: &dyn Fn(PageId) -> bool) -> Option<FrameId> {
        Some(SPARE)
    }
    fn is_short_of_frames(&self) -> bool {
        self.is_short
    }
    fn is_quiesced(&self, frame: FrameId, occupants: Occupants) -> bool {
        !self.used.borrow().iter().any(|(of, kind)| *of == frame && *kind <= occupants)
    }
}

struct Rack {
    machine: RackMachine,
    memory: Memory,
}

impl Rack {
    fn new(restarted: bool) -> Self {
        let rules = RackRules {
            swap: SwapRules::DEFAULT,
            lease: LeaseRules::DEFAULT,
            share: ShareRules::DEFAULT,
            shares: true,
            heat: HeatRules::DEFAULT,
            lines: LINES,
            exchange: EXCHANGE,
            recovery: RECOVERY,
            lock: LockRules::DEFAULT,
            barrier_delay: BARRIER_DELAY,
        };
        let records = [[0; RECORD_WORDS]; RECORDS];
        let own = ExchangeIdentity { rack: RackId(1), memory: MemoryId(1) };
        let past =
            RackPast { first: 1 << 32, restarted, records: &records, foreign_claims: &[], own };
        let machine = RackMachine::restore(Time::ZERO, rules, &past, [], 0, Sound).unwrap();
        Self { machine, memory: Memory::new() }
    }

    /// Handles an event and executes the stores of words. Returns all actions.
    fn step(&mut self, now: Time, event: RackEvent) -> Vec<RackAction> {
        self.machine.handle(event);
        self.poll(now)
    }

    fn poll(&mut self, now: Time) -> Vec<RackAction> {
        let mut actions = Vec::new();
        while let Some(action) = self.machine.poll(now, &self.memory) {
            if let RackAction::StoreWord(frame, word) = action {
                self.memory.words.insert(frame, word);
            }
            actions.push(action);
        }
        actions
    }

    fn lend(&mut self, now: Time, access: Access, replica: bool) -> LeaseReply {
        let request = LeaseRequest { page: PAGE, access, replica, endpoint: OVER };
        self.machine.request_lease(now, &self.memory, request)
    }

    fn grant(&mut self, now: Time, replica: bool) -> GrantedLease {
        match self.lend(now, Access::Read, replica) {
            LeaseReply::Granted { lease, .. } => lease,
            other => panic!("no lease is granted: {other:?}"),
        }
    }

    /// The page is frozen, and its writers log their lines.
    fn freeze(&mut self) -> FrameWord {
        let frozen = self.memory.words[&FRAME].apply(PageEvent::Frozen).unwrap();
        let word = frozen.apply(PageEvent::DirtyLogged).unwrap();
        self.memory.words.insert(FRAME, word);
        FrameWord { frame: FRAME, word }
    }

    /// The last object of the page is freed.
    fn free(&mut self, now: Time) -> Vec<RackAction> {
        let left = self.memory.words[&FRAME].apply(PageEvent::Left).unwrap();
        self.memory.words.insert(FRAME, left);
        self.step(now, RackEvent::PageFreed { frame: FRAME, page: PAGE })
    }
}

const FREE: RackAction = RackAction::FreeFrame { frame: FRAME, page: PAGE };

#[test]
fn a_freed_page_waits_for_leases_then_for_clients_and_no_scan_precedes_the_barrier() {
    let mut rack = Rack::new(true);
    let after = at(10_000);
    let lease = rack.grant(after, false).id;
    rack.memory.used.borrow_mut().push((FRAME, Occupants::Everyone));
    let revocation = Revocation { page: PAGE, endpoint: OVER, lease, users: Users::Everyone };
    let actions = rack.free(after);
    assert_eq!(actions, [RackAction::RevokeLease(revocation), RackAction::Barrier]);
    assert_eq!(rack.step(after, RackEvent::LeaseReturned(revocation)), []);
    assert!(rack.machine.is_quiescing(), "a client reads the page");
    rack.memory.used.borrow_mut().clear();
    assert!(rack.machine.has_quiesced(&rack.memory));
    assert_eq!(rack.poll(after), [FREE]);
    assert!(!rack.machine.is_quiescing());
}

#[test]
fn a_restarted_rack_frees_no_page_while_leases_of_its_earlier_life_may_be_in_use() {
    let mut rack = Rack::new(true);
    assert_eq!(rack.free(at(1)), [RackAction::Barrier]);
    let due = rack.machine.deadline().unwrap();
    assert!(due >= at(2500), "a lease and its flight: {due:?}");
    assert_eq!(rack.step(due, RackEvent::DeadlinePassed), [FREE]);
}

#[test]
fn a_rack_with_new_memory_does_not_say_that_it_has_quiesced_what_its_last_memory_lent() {
    let is_quiesced = Between { swap: SwapId(9), message: SwapMessage::IsQuiesced };
    let asked = RackEvent::RackSent(OTHER, is_quiesced);
    let quiesced = Between { swap: SwapId(9), message: SwapMessage::Quiesced };
    let answer = RackAction::TellRack(OTHER, quiesced);
    let mut rack = Rack::new(false);
    assert_eq!(rack.step(at(100), asked.clone()), []);
    assert_eq!(rack.step(at(10_000), asked.clone()), slice::from_ref(&answer));
    assert_eq!(Rack::new(true).step(at(100), asked), [answer], "its leases are accounted for");
}

/// A rack that reads a page of another under a lease that permits a replica.
fn with_replica() -> (Rack, Lease) {
    let mut rack = Rack::new(true);
    rack.memory.words.remove(&FRAME);
    let kind = LeaseKind::Share(SharingId(3));
    let (id, home, endpoint, epoch) = (LeaseId(4), OTHER, OVER, Epoch::ZERO);
    let lease = Lease { id, kind, home, endpoint, frame: FrameId(77), epoch };
    rack.machine.locations_mut().note_home(PAGE, OTHER);
    let asks = rack.step(at(1), RackEvent::ReplicaWanted(PAGE));
    let [RackAction::RequestLease { question, .. }] = asks[..] else { panic!("{asks:?}") };
    let answer = LeaseAnswer::Granted { lease, usage: 0, forwards: false };
    let answered = RackEvent::LeaseAnswered { page: PAGE, question, home: OTHER, answer };
    let copies = rack.step(at(1), answered);
    assert_eq!(copies, [RackAction::CopyReplica { page: PAGE, lease, ours: SPARE }]);
    let copied = RackEvent::ReplicaCopied { page: PAGE, endpoint: OVER, whole: true };
    let published = rack.step(at(2), copied);
    assert!(matches!(published[..], [RackAction::PublishReplica { page: PAGE, ours: SPARE, .. }]));
    (rack, lease)
}

#[test]
fn a_page_is_elsewhere_although_a_damaged_record_has_left_a_frame_arriving() {
    let mut rack = Rack::new(true);
    let arriving = PageWord::new(PageState::Arriving, Epoch::new(4), PAGE);
    rack.memory.words.insert(FRAME, arriving);
    let reply = rack.lend(at(10_000), Access::Read, false);
    assert!(matches!(reply, LeaseReply::Refused(PageAccess::Elsewhere)), "{reply:?}");
    assert!(!rack.machine.is_moving(&rack.memory, PAGE), "no swap brings it");
}

#[test]
fn a_replica_is_hidden_before_its_lease_is_returned() {
    let (mut rack, lease) = with_replica();
    let revocation =
        Revocation { page: PAGE, endpoint: OVER, lease: lease.id, users: Users::Writers };
    let actions = rack.step(at(3), RackEvent::LeaseRevoked(revocation));
    assert_eq!(actions, [RackAction::HideReplica(SPARE), RackAction::ReturnLease(revocation)]);
}

#[test]
fn replicas_give_their_frames_back_when_memory_is_short() {
    let (mut rack, _) = with_replica();
    assert_eq!(rack.poll(at(3)), []);
    rack.memory.is_short = true;
    assert_eq!(rack.poll(at(3)), [RackAction::HideReplica(SPARE)]);
    assert!(rack.machine.copies().is_empty());
}

#[test]
fn the_lease_for_a_replica_is_requested_once_in_a_retry() {
    let mut rack = Rack::new(true);
    rack.memory.words.remove(&FRAME);
    rack.machine.locations_mut().note_home(PAGE, OTHER);
    let is_request = |actions: &[RackAction]| {
        matches!(actions, [RackAction::RequestLease { page: PAGE, home: OTHER, replica: true, .. }])
    };
    assert!(is_request(&rack.step(at(10), RackEvent::ReplicaWanted(PAGE))));
    let read = RackEvent::OperationEnded { page: PAGE, endpoint: OVER, access: Access::Read };
    assert_eq!(rack.step(at(11), read.clone()), []);
    assert!(is_request(&rack.step(at(12), read)));
}

#[test]
fn a_page_is_shared_when_its_writers_are_out_and_a_write_ends_the_sharing() {
    let mut rack = Rack::new(true);
    let now = at(10_000);
    let state = |rack: &Rack| rack.memory.words[&FRAME].state().unwrap();
    rack.memory.used.borrow_mut().push((FRAME, Occupants::Writers));
    rack.step(now, RackEvent::ReplicaRequested(PAGE));
    assert_eq!(state(&rack), PageState::Shared);
    let grant = |rack: &mut Rack| rack.grant(now, true);
    assert_eq!(grant(&mut rack).kind, LeaseKind::Read, "a client writes the page");
    rack.memory.used.borrow_mut().clear();
    rack.poll(now);
    let GrantedLease { id, kind } = grant(&mut rack);
    assert!(matches!(kind, LeaseKind::Share(_)));
    let users = Users::Writers;
    let revocation = Revocation { page: PAGE, endpoint: OVER, lease: id, users };
    let actions = rack.step(now, RackEvent::WriteNeeded(PAGE));
    assert_eq!(actions, [RackAction::RevokeLease(revocation), RackAction::Barrier]);
    assert_eq!(state(&rack), PageState::Shared, "a replica may be read");
    rack.step(now, RackEvent::LeaseReturned(revocation));
    assert_eq!(state(&rack), PageState::Live);
}

#[test]
fn a_page_that_moves_is_written_here_for_others_until_many_lines_are_dirty() {
    let mut rack = Rack::new(true);
    let now = at(10_000);
    let write = |rack: &Rack| rack.machine.access(&rack.memory, PAGE, Access::Write);
    assert!(matches!(write(&rack), PageAccess::Usable(_)));
    let found = rack.freeze();
    assert_eq!(write(&rack), PageAccess::Forwarded(found));
    let reply = rack.lend(now, Access::Write, false);
    let LeaseReply::Granted { lease, forwards: true, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(lease.kind, LeaseKind::Read, "it has its writes executed here");
    rack.machine.note_forwarded(found, 0..=7);
    assert_eq!(write(&rack), PageAccess::Busy, "as many lines are dirty as may be");
    assert!(matches!(rack.lend(now, Access::Write, false), LeaseReply::Refused(PageAccess::Busy)));
    assert!(matches!(rack.lend(now, Access::Read, false), LeaseReply::Granted { .. }));
}

#[test]
fn lines_behind_the_page_and_of_pages_that_do_not_move_are_not_dirty() {
    let mut rack = Rack::new(true);
    rack.machine.note_dirty(&rack.memory, FRAME, 0..=3);
    assert_eq!(rack.machine.dirty_lines(FRAME), Some(vec![]));
    rack.freeze();
    rack.machine.note_dirty(&rack.memory, FRAME, 62..=u32::MAX);
    assert_eq!(rack.machine.dirty_lines(FRAME), Some(vec![62, 63]));
}

#[test]
fn more_dirty_lines_than_a_message_holds_are_not_told_one_by_one() {
    let mut rack = Rack::new(true);
    rack.freeze();
    rack.machine.note_dirty(&rack.memory, FRAME, 1..=16);
    assert_eq!(rack.machine.dirty_lines(FRAME).map(|lines| lines.len()), Some(LINES.sent));
    rack.machine.note_dirty(&rack.memory, FRAME, 0..=0);
    assert_eq!(rack.machine.dirty_lines(FRAME), None);
}

#[test]
fn messages_of_a_rack_keep_their_order_with_what_it_returns() {
    let mut rack = Rack::new(true);
    let now = at(10_000);
    let prepare = SwapMessage::Prepare {
        wanted: PAGE,
        milli: 9000,
        read_hot: false,
        offered: PageLife { page: PageId(100), epoch: Epoch::ZERO },
        live: false,
    };
    let lease = rack.grant(now, false).id;
    let revocation = Revocation { page: PAGE, endpoint: OVER, lease, users: Users::Writers };
    // Both wait in the queue: the return of the lease came after the message.
    rack.machine.handle(RackEvent::RackSent(OTHER, Between { swap: SwapId(9), message: prepare }));
    rack.machine.handle(RackEvent::LeaseReturned(revocation));
    let actions = rack.poll(now);
    let revokes = |action: &RackAction| *action == RackAction::RevokeLease(revocation);
    assert!(
        actions.iter().any(revokes),
        "the page is frozen before the return counts: {actions:?}"
    );
}
