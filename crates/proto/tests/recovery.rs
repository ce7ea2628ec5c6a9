//! The recovery of reservations, step by step: each variant of a publication, and what a crash
//! leaves.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[macro_use]
#[expect(unused_macros, reason = "other tests use the rest")]
mod absent;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rackpool_model::{
    Armed, ArmedMode, Borrowed, ClientId, FrameId, FrameWord, GlobalAddr, HeatRules, MemoryId,
    PageEvent, PageId, PageRange, PageSize, PageWord, RackId, ReservationState,
};
use rackpool_proto::exchange::{
    Caller, ClientThread, ExchangeAction, ExchangeIdentity, ExchangeRules, ObjectMemory,
};
use rackpool_proto::lease::LeaseRules;
use rackpool_proto::lock::LockRules;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::publication::{
    Decision, RecordPlace, RecoveryAction, RecoveryEvent, RecoveryRules, ReservationMemory,
    WordAccess, WordAnswer,
};
use rackpool_proto::rack::{
    LineRules, PageWords, RackAction, RackEvent, RackMachine, RackPast, RackRules,
};
use rackpool_proto::share::ShareRules;
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, SwapRules};
use rackpool_proto::{Located, Time};
use rackpool_wire::peer::PeerRequest;

const OWN: RackId = RackId(0);
const A: RackId = RackId(1);
const B: RackId = RackId(2);
const MEMORY: MemoryId = MemoryId(7);
const SIZE: PageSize = PageSize::DEFAULT;
const OWNER: ClientThread = ClientThread { client: ClientId(3), thread: 0 };
const RECORD: RecordPlace = RecordPlace { owner: OWNER, record: 0 };
/// The page that is here.
const HERE: PageId = PageId(1);
/// A page that was born in rack A.
const FAR: PageId = PageId(8);
/// A page of which nothing is known.
const UNKNOWN: PageId = PageId(20);
const AGAIN: u64 = 100;
/// How long requests of an earlier daemon may be under way.
const EARLIER: u64 = 2_000;
const TOKEN: u64 = 1 << 50;
const WORD: u64 = 0x77;
const STAMP: u64 = 5;

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn object(page: PageId, index: u64) -> GlobalAddr {
    GlobalAddr::new(page, index * 64, SIZE).unwrap()
}

fn old() -> GlobalAddr {
    object(HERE, 2)
}

fn new() -> GlobalAddr {
    object(HERE, 3)
}

fn place() -> GlobalAddr {
    object(HERE, 1)
}

fn stamp_of(addr: GlobalAddr) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw() + 8)
}

/// A publication that replaces the old object by the new one.
fn armed(link: GlobalAddr, mode: ArmedMode) -> Armed {
    let (object, replaced) = (new().raw(), old().raw());
    Armed { object, token: TOKEN, link: link.raw(), word: WORD, mask: u64::MAX, replaced, mode }
}

/// One frame, its objects and words, and the file of one client.
struct Memory {
    word: PageWord,
    words: BTreeMap<GlobalAddr, u64>,
    allocated: BTreeSet<GlobalAddr>,
    magazine: BTreeSet<GlobalAddr>,
    record: ReservationState,
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

impl ReservationMemory for Memory {
    fn array_objects(&self, _: ClientId) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.magazine.iter().map(|addr| (OWNER, *addr))
    }
    fn reservations(&self, _: ClientId) -> impl Iterator<Item = RecordPlace> {
        [RECORD].into_iter().filter(|_| self.record != ReservationState::Free)
    }
    fn reservation(&self, _: RecordPlace) -> ReservationState {
        self.record
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
        None
    }
    fn free_frames(&self) -> u32 {
        0
    }
    fn takes(&self, _: Caller) -> bool {
        false
    }
    fn holds(&self, _: ClientThread, addr: GlobalAddr) -> bool {
        self.held().any(|(_, held)| held == addr)
    }
    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        let noted = self.record.noted().map(GlobalAddr::from_raw);
        self.magazine.iter().copied().chain(noted).map(|addr| (OWNER, addr))
    }
}

no_moves!(Memory);

struct Rack {
    machine: RackMachine,
    memory: Memory,
    asked: Vec<RecoveryAction>,
    decisions: Vec<Decision>,
    freed: Vec<GlobalAddr>,
    /// Objects that another rack was asked to free.
    sent: Vec<GlobalAddr>,
    located: usize,
}

impl Rack {
    fn new(record: ReservationState) -> Self {
        Self::started(record, false)
    }

    fn started(record: ReservationState, restarted: bool) -> Self {
        let again = Duration::from_millis(20);
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
                defer: again,
                again,
            },
            recovery: RecoveryRules {
                page_size: SIZE,
                again: Duration::from_millis(AGAIN),
                earlier_requests: Duration::from_millis(EARLIER),
            },
            lock: LockRules::DEFAULT,
            barrier_delay: Duration::from_millis(1),
        };
        let records = [[0; RECORD_WORDS]; RECORDS];
        let own = ExchangeIdentity { rack: OWN, memory: MEMORY };
        let past = RackPast { first: 1, restarted, records: &records, foreign_claims: &[], own };
        let machine = RackMachine::restore(Time::ZERO, rules, &past, [], 0, Sound).unwrap();
        let memory = Memory {
            word: PageWord::free(HERE).apply(PageEvent::Allocated).unwrap(),
            words: BTreeMap::from([(new(), TOKEN), (stamp_of(old()), STAMP)]),
            allocated: BTreeSet::from([old(), new()]),
            magazine: BTreeSet::new(),
            record,
        };
        let mut rack = Self {
            machine,
            memory,
            asked: Vec::new(),
            decisions: Vec::new(),
            freed: Vec::new(),
            sent: Vec::new(),
            located: 0,
        };
        rack.a_is(true);
        rack
    }

    /// The metadata server names rack A, in which one page was born.
    fn a_is(&mut self, alive: bool) {
        let pages = PageRange { first: FAR, count: 1 };
        self.machine.members_changed(vec![members::member(A, MEMORY, alive, pages)]);
    }

    fn step(&mut self, ms: u64, event: RecoveryEvent) {
        self.machine.handle(RackEvent::Recovery(event));
        self.poll(ms);
    }

    /// Executes all actions; words of this rack are accessed at once.
    fn poll(&mut self, ms: u64) {
        while let Some(action) = self.machine.poll(at(ms), &self.memory) {
            match action {
                RackAction::Recovery(action) => self.recover(action),
                RackAction::Exchange(ExchangeAction::Free { addr, .. }) => {
                    assert!(self.memory.allocated.remove(&addr), "{addr} is free");
                    self.freed.push(addr);
                }
                RackAction::Exchange(ExchangeAction::Strike(_, addrs)) => {
                    self.memory.magazine.retain(|addr| !addrs.contains(addr));
                    let noted = self.memory.record.noted().map(GlobalAddr::from_raw);
                    if noted.is_some_and(|noted| addrs.contains(&noted)) {
                        self.memory.record = ReservationState::Free;
                    }
                }
                RackAction::Exchange(ExchangeAction::Request(_, request)) => {
                    let PeerRequest::Free { addrs, .. } = request else { continue };
                    self.sent.extend(addrs);
                }
                _ => {}
            }
        }
    }

    fn recover(&mut self, action: RecoveryAction) {
        match action {
            RecoveryAction::AccessWord { question, rack: OWN, addr, access } => {
                let word = self.memory.words.entry(addr).or_default();
                let before = *word;
                if let WordAccess::Swap { expected, new } = access
                    && before == expected
                {
                    *word = new;
                }
                let answer = WordAnswer::Value(before);
                let event = RecoveryEvent::WordAnswered { question, answer };
                self.machine.handle(RackEvent::Recovery(event));
            }
            RecoveryAction::AccessWord { .. } => self.asked.push(action),
            RecoveryAction::Locate(_) => self.located += 1,
            RecoveryAction::Decide(_, decision) => {
                self.memory.record = match (decision, self.memory.record) {
                    (Decision::Held, ReservationState::Armed(armed)) => {
                        ReservationState::Held(armed.object)
                    }
                    (Decision::Replaced, ReservationState::Armed(armed)) => match armed.mode {
                        ArmedMode::Settle(_) => ReservationState::Settling(armed),
                        _ => ReservationState::Replaced(armed.replaced),
                    },
                    _ => ReservationState::Free,
                };
                self.decisions.push(decision);
            }
            _ => {}
        }
    }

    fn client_gone(&mut self, ms: u64) {
        self.step(ms, RecoveryEvent::ClientGone(OWNER.client));
        self.step(ms, RecoveryEvent::OperationsEnded(OWNER.client));
    }

    /// Answers the last question to another rack.
    fn answer(&mut self, ms: u64, answer: WordAnswer) {
        let Some(RecoveryAction::AccessWord { question, .. }) = self.asked.last() else {
            panic!("no rack is asked");
        };
        let question = *question;
        self.step(ms, RecoveryEvent::WordAnswered { question, answer });
    }

    fn locate(&mut self, ms: u64, page: PageId, located: Located) {
        self.machine.handle(RackEvent::PageLocated { page, question: 0, located });
        self.poll(ms);
    }

    /// Returns the racks that were asked, with the address.
    fn racks(&self) -> Vec<(RackId, GlobalAddr)> {
        let asked = self.asked.iter().filter_map(|action| match action {
            RecoveryAction::AccessWord { rack, addr, .. } => Some((*rack, *addr)),
            _ => None,
        });
        asked.collect()
    }

    #[track_caller]
    fn assert_freed(&self, freed: &[GlobalAddr]) {
        assert_eq!(self.freed, freed);
        assert_eq!(self.machine.resolving(), 0);
        assert!(!self.machine.returns_of(OWNER.client));
    }
}

fn resolved(mode: ArmedMode, words: &[(GlobalAddr, u64)]) -> Rack {
    let mut rack = Rack::new(ReservationState::Armed(armed(place(), mode)));
    rack.memory.words.extend(words.iter().copied());
    rack.client_gone(1);
    rack
}

#[test]
fn a_held_object_is_freed_and_a_replaced_one_too() {
    for (state, freed) in [
        (ReservationState::Held(new().raw()), new()),
        (ReservationState::Replaced(old().raw()), old()),
    ] {
        let mut rack = Rack::new(state);
        rack.client_gone(1);
        rack.assert_freed(&[freed]);
    }
}

#[test]
fn nothing_is_freed_while_an_operation_of_the_client_is_under_way() {
    let mut rack = Rack::new(ReservationState::Held(new().raw()));
    rack.memory.magazine.insert(old());
    rack.step(1, RecoveryEvent::ClientGone(OWNER.client));
    rack.poll(500);
    assert!(rack.freed.is_empty() && rack.machine.returns_of(OWNER.client));
    assert_eq!(rack.machine.unsettled_clients().collect::<Vec<_>>(), [OWNER.client]);
    rack.step(501, RecoveryEvent::OperationsEnded(OWNER.client));
    rack.assert_freed(&[old(), new()]);
}

/// Regression: a restarted daemon freed the objects of gone clients in other racks at once, while a
/// write or an atomic operation of its predecessor could still land in them.
#[test]
fn a_restarted_rack_frees_nothing_before_the_requests_of_its_predecessor_have_ended() {
    let mut rack = Rack::started(ReservationState::Held(object(FAR, 0).raw()), true);
    rack.memory.magazine.insert(object(FAR, 1));
    rack.client_gone(1);
    rack.poll(EARLIER - 1);
    assert!(rack.sent.is_empty() && rack.machine.returns_of(OWNER.client));
    assert_eq!(rack.machine.deadline(), Some(at(EARLIER)));
    rack.poll(EARLIER);
    assert_eq!(rack.sent, [object(FAR, 1), object(FAR, 0)]);
}

/// The predecessor may have sent the swap of the link, which would be made after the link was read.
#[test]
fn a_restarted_rack_reads_no_link_before_the_requests_of_its_predecessor_have_ended() {
    let state = ReservationState::Armed(armed(object(FAR, 0), ArmedMode::Plain));
    let mut rack = Rack::started(state, true);
    rack.client_gone(1);
    assert!(rack.asked.is_empty());
    rack.poll(EARLIER);
    assert_eq!(rack.racks(), [(A, object(FAR, 0))]);
}

#[test]
fn the_link_decides_a_plain_publication() {
    let made = resolved(ArmedMode::Plain, &[(place(), WORD)]);
    assert_eq!(made.decisions, [Decision::Replaced]);
    made.assert_freed(&[old()]);
    let lost = resolved(ArmedMode::Plain, &[(place(), 9)]);
    assert_eq!(lost.decisions, [Decision::Held]);
    lost.assert_freed(&[new()]);
}

#[test]
fn a_cleared_owner_word_proves_a_publication_whose_link_has_changed() {
    let made = resolved(ArmedMode::Plain, &[(place(), 9), (new(), 0)]);
    made.assert_freed(&[old()]);
}

#[test]
fn the_stamp_decides_a_publication_that_compares() {
    let counts = resolved(ArmedMode::Compare(STAMP), &[(place(), WORD)]);
    assert_eq!(counts.memory.words[&new()], 0);
    counts.assert_freed(&[old()]);
    let mut aborted = resolved(ArmedMode::Compare(STAMP + 1), &[(place(), WORD)]);
    assert_eq!(aborted.memory.words[&new()], !TOKEN);
    assert!(aborted.freed.is_empty(), "it stands for the replaced object");
    aborted.poll(1 + AGAIN);
    assert_eq!((aborted.freed.len(), aborted.machine.resolving()), (0, 1));
    aborted.memory.words.insert(place(), 9);
    aborted.poll(1 + 2 * AGAIN);
    aborted.assert_freed(&[new()]);
}

#[test]
fn a_link_is_settled_before_the_replaced_object_is_freed() {
    let rack = resolved(ArmedMode::Settle(0x11), &[(place(), WORD)]);
    assert_eq!(
        (rack.memory.words[&place()], rack.decisions.as_slice()),
        (0x11, &[Decision::Replaced][..])
    );
    rack.assert_freed(&[old()]);
    // A crash of the earlier daemon after its decision.
    let armed = Armed { mask: 0xff, ..armed(place(), ArmedMode::Settle(0x11)) };
    let mut rack = Rack::new(ReservationState::Settling(armed));
    rack.memory.words.insert(place(), 0x500 | WORD);
    rack.client_gone(1);
    assert_eq!(rack.memory.words[&place()], 0x511, "bits outside the mask stay");
    rack.assert_freed(&[old()]);
}

#[test]
fn an_unlinked_object_is_freed_only_if_the_link_proves_it() {
    for (word, freed) in [(WORD, vec![old()]), (9, vec![])] {
        let armed = Armed { object: 0, ..armed(place(), ArmedMode::Plain) };
        let mut rack = Rack::new(ReservationState::Armed(armed));
        rack.memory.words.insert(place(), word);
        rack.client_gone(1);
        rack.assert_freed(&freed);
    }
}

#[test]
fn a_borrowed_object_or_the_one_that_it_replaced_is_put_back() {
    let link = object(HERE, 4);
    let borrowed = Borrowed { object: new().raw(), token: TOKEN, place: place().raw() };
    let mut rack = Rack::new(ReservationState::Borrowed(borrowed));
    rack.memory.words.insert(place(), TOKEN);
    rack.client_gone(1);
    assert_eq!(rack.memory.words[&place()], new().raw());
    rack.assert_freed(&[]);
    for (word, back) in [(WORD, old()), (9, new())] {
        let state = armed(link, ArmedMode::Borrowed(place().raw()));
        let mut rack = Rack::new(ReservationState::Armed(state));
        rack.memory.words.extend([(place(), TOKEN), (link, word)]);
        rack.client_gone(1);
        assert_eq!(rack.memory.words[&place()], back.raw());
        rack.assert_freed(&[]);
        // A successor that begins anew changes nothing.
        rack.memory.record = ReservationState::Armed(state);
        rack.memory.words.insert(place(), 6);
        rack.client_gone(2);
        assert_eq!(rack.memory.words[&place()], 6);
    }
}

#[test]
fn a_rack_that_is_silent_busy_or_dead_is_asked_again() {
    let state = ReservationState::Armed(armed(object(FAR, 0), ArmedMode::Plain));
    let mut rack = Rack::new(state);
    rack.client_gone(1);
    rack.answer(2, WordAnswer::Unanswered);
    rack.poll(2 + AGAIN);
    rack.answer(200, WordAnswer::Busy);
    rack.poll(200 + AGAIN);
    assert_eq!(rack.asked.len(), 3);
    rack.answer(400, WordAnswer::Unanswered);
    rack.a_is(false);
    rack.poll(400 + AGAIN);
    assert_eq!((rack.asked.len(), rack.located), (3, 1), "the page may have moved");
    rack.locate(600, FAR, Located::Home(B));
    assert_eq!(rack.racks().last(), Some(&(B, object(FAR, 0))));
    rack.answer(700, WordAnswer::Value(WORD));
    rack.assert_freed(&[old()]);
}

#[test]
fn a_page_that_is_not_where_it_was_presumed_is_looked_for() {
    let state = ReservationState::Armed(armed(object(FAR, 0), ArmedMode::Plain));
    let mut rack = Rack::new(state);
    rack.client_gone(1);
    rack.answer(2, WordAnswer::NotHere);
    assert_eq!(rack.located, 1);
    rack.locate(3, FAR, Located::Unreachable);
    rack.poll(2 + AGAIN);
    rack.answer(102, WordAnswer::NotHere);
    assert_eq!((rack.asked.len(), rack.located), (2, 2), "asked again");
    rack.locate(103, FAR, Located::Home(B));
    rack.answer(104, WordAnswer::NotHere);
    assert!(rack.freed.is_empty(), "that the page has moved on proves nothing");
    rack.poll(104 + AGAIN);
    rack.answer(300, WordAnswer::Value(WORD));
    rack.assert_freed(&[old()]);
}

/// Regression: the metadata server named the rack that asked, which had given the page away since.
/// The word counted as one without link, and a published object was freed.
#[test]
fn an_old_answer_about_a_page_that_has_left_proves_nothing() {
    let state = ReservationState::Armed(armed(object(UNKNOWN, 0), ArmedMode::Plain));
    let mut rack = Rack::new(state);
    rack.client_gone(1);
    assert_eq!(rack.located, 1);
    rack.locate(2, UNKNOWN, Located::Home(OWN));
    assert!(rack.freed.is_empty() && rack.decisions.is_empty());
    rack.poll(2 + AGAIN);
    rack.locate(200, UNKNOWN, Located::Home(A));
    rack.answer(201, WordAnswer::Value(WORD));
    rack.assert_freed(&[old()]);
}

#[test]
fn memory_that_is_not_allocated_holds_no_link_and_lost_memory_proves_nothing() {
    let state = ReservationState::Armed(armed(object(FAR, 0), ArmedMode::Plain));
    let mut free = Rack::new(state);
    free.client_gone(1);
    free.answer(2, WordAnswer::NotAllocated);
    free.assert_freed(&[new()]);
    for answer in [WordAnswer::Lost, WordAnswer::Invalid] {
        let mut lost = Rack::new(state);
        lost.client_gone(1);
        lost.answer(2, answer);
        assert_eq!(lost.decisions, [Decision::Free]);
        lost.assert_freed(&[]);
    }
    let mut lost = Rack::new(ReservationState::Armed(armed(object(UNKNOWN, 0), ArmedMode::Plain)));
    lost.client_gone(1);
    lost.locate(2, UNKNOWN, Located::Lost);
    lost.assert_freed(&[]);
}

#[test]
fn a_word_of_a_page_that_moves_is_read_and_not_swapped() {
    let state = armed(place(), ArmedMode::Settle(0x11));
    let mut rack = Rack::new(ReservationState::Armed(state));
    rack.memory.words.insert(place(), WORD);
    let live = rack.memory.word;
    rack.memory.word = live.apply(PageEvent::Frozen).unwrap();
    rack.client_gone(1);
    assert_eq!(rack.decisions, [Decision::Replaced]);
    assert_eq!((rack.memory.words[&place()], rack.machine.resolving()), (WORD, 1));
    rack.memory.word = live;
    rack.poll(1 + AGAIN);
    assert_eq!(rack.memory.words[&place()], 0x11);
    rack.assert_freed(&[old()]);
}

#[test]
fn an_object_in_a_magazine_and_in_a_record_is_freed_once() {
    let mut rack = Rack::new(ReservationState::Held(new().raw()));
    rack.memory.magazine.insert(new());
    rack.client_gone(1);
    rack.assert_freed(&[new()]);
}

#[test]
fn answers_to_other_questions_are_ignored() {
    let state = ReservationState::Armed(armed(object(FAR, 0), ArmedMode::Plain));
    let mut rack = Rack::new(state);
    rack.client_gone(1);
    let (question, answer) = (77, WordAnswer::Value(WORD));
    rack.step(2, RecoveryEvent::WordAnswered { question, answer });
    assert!(rack.decisions.is_empty() && rack.machine.resolving() == 1);
}
