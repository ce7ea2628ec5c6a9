//! A rack of the world: memory that outlives its daemon, and the daemon's machines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackpool_model::{
    ClaimId, ClientId, FrameId, FrameWord, LockClaim, LockWord, LockWordIndex, PageEvent, PageId,
    PageWord, RackId,
};
use rackpool_proto::Time;
use rackpool_proto::exchange::Caller;
use rackpool_proto::lease::EndpointToken;
use rackpool_proto::lock::{LockAction, LockEvent, LockHome, LockMemory, RemoteLocks};
use rackpool_proto::rack::PageWords;
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::{Counter, RULES};
use crate::plant::Plant;

/// The memory of a rack and of its clients.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The pages that are here.
    pub(super) pages: BTreeMap<PageId, PageWord>,
    pub(super) words: BTreeMap<LockWordIndex, LockWord>,
    pub(super) claims: BTreeMap<ClaimId, LockClaim>,
    /// Stores to claims that only their own processor sees until a barrier.
    pub(super) buffered: BTreeMap<ClaimId, Option<LockClaim>>,
    pub(super) foreign: BTreeMap<u32, LockClaim>,
    pub(super) lost: BTreeSet<ClaimId>,
    pub(super) beats: BTreeMap<ClientId, u64>,
    /// The claims under which an access is under way.
    pub(super) accesses: BTreeSet<ClaimId>,
    /// The claims under which operations of the daemon are under way, and their number.
    pub(super) posted: BTreeMap<ClaimId, u32>,
    /// The line caches in which bytes were written, or may be.
    pub(super) caches: BTreeMap<ClaimId, Cache>,
}

/// A claim's line cache, of the lock with this number: the counters that were written.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    pub(super) number: u64,
    pub(super) written: BTreeMap<Counter, u64>,
}

impl Memory {
    pub(super) fn word(&self, index: LockWordIndex) -> LockWord {
        self.words.get(&index).copied().unwrap_or(LockWord::FREE)
    }

    /// A client's stores are visible: it has executed an atomic operation.
    pub(super) fn drain(&mut self, id: ClaimId) {
        match self.buffered.remove(&id) {
            Some(Some(claim)) => drop(self.claims.insert(id, claim)),
            Some(None) => drop(self.claims.remove(&id)),
            None => {}
        }
    }

    /// A heavy barrier.
    pub(super) fn drain_all(&mut self) {
        for id in self.buffered.keys().copied().collect::<Vec<_>>() {
            self.drain(id);
        }
    }

    /// A client's compare-and-swap of a lock word.
    pub(super) fn exchange(
        &mut self,
        id: ClaimId,
        index: LockWordIndex,
        from: LockWord,
        to: LockWord,
    ) -> bool {
        self.drain(id);
        let is_equal = self.word(index) == from;
        if is_equal {
            self.words.insert(index, to);
        }
        is_equal
    }

    fn counts(&self, id: ClaimId) -> bool {
        !self.lost.contains(&id) || self.uses(id)
    }

    fn uses(&self, id: ClaimId) -> bool {
        self.accesses.contains(&id) || self.posted.contains_key(&id)
    }

    /// An operation has ended.
    pub(super) fn ended(&mut self, id: ClaimId) {
        if let Some(count) = self.posted.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.posted.remove(&id);
            }
        }
    }
}

impl PageWords for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.pages.get(&page).map(|word| FrameWord { frame: FrameId(page.0), word: *word })
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.pages.get(&PageId(frame.0)).copied()
    }
}

impl LockMemory for Memory {
    fn lock_word(&self, index: LockWordIndex) -> LockWord {
        self.word(index)
    }

    fn claim(&self, id: ClaimId) -> Option<LockClaim> {
        self.claims.get(&id).copied().filter(|_| self.counts(id))
    }

    fn claims(&self) -> impl Iterator<Item = (ClaimId, LockClaim)> {
        self.claims.iter().filter(|(id, _)| self.counts(**id)).map(|(id, claim)| (*id, *claim))
    }

    fn beat(&self, client: ClientId) -> Option<u64> {
        self.beats.get(&client).copied()
    }

    fn is_using(&self, id: ClaimId, _: PageId) -> bool {
        self.uses(id)
    }
}

/// A message between two daemons.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Lock { number: u64, claim: LockClaim },
    Decided { number: u64, outcome: LockOutcome },
    Unlock { number: u64, end: LockEnd, written: BTreeMap<Counter, u64> },
}

/// An answer to a client's call.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: ClaimId,
    pub(super) caller: Caller,
    pub(super) outcome: LockOutcome,
    /// The number of a lock of another rack's lines.
    pub(super) number: Option<u64>,
}

/// The life of a rack's daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) home: LockHome<Plant>,
    pub(super) remote: RemoteLocks<Plant>,
    pub(super) events: VecDeque<LockEvent>,
    /// Answers to clients' calls.
    pub(super) answers: Vec<Answer>,
    /// Messages for other racks: to a rack over this daemon's endpoint, or back over an endpoint.
    pub(super) requests: Vec<(RackId, Message)>,
    pub(super) replies: Vec<(EndpointToken, Message)>,
    /// Clients that have no locks in other racks any more: the files of those that have gone are
    /// removed.
    pub(super) forgotten: Vec<ClientId>,
}

impl Daemon {
    pub(super) fn new(now: Time, memory: &Memory, plant: Plant) -> Self {
        let first = now.as_nanos().max(1);
        Self {
            home: LockHome::restore(now, RULES, memory.foreign.clone(), plant),
            remote: RemoteLocks::new(now, RULES, first, plant),
            events: VecDeque::new(),
            answers: Vec::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            forgotten: Vec::new(),
        }
    }

    /// Handles one event, or does what is due; executes one action at a time. Returns false if
    /// there was nothing to do.
    pub(super) fn step(&mut self, now: Time, memory: &mut Memory) -> bool {
        if let Some(action) = self.home.poll().or_else(|| self.remote.poll()) {
            self.execute(memory, action);
            return true;
        }
        if let Some(event) = self.events.pop_front() {
            self.remote.handle(now, memory, &event);
            self.home.handle(now, memory, event);
            return true;
        }
        let is_due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
        let mut any = self.home.is_losing() && self.home.end_lost(now, memory);
        any |= self.remote.is_ending() && self.remote.end(now, memory);
        any |= is_due(self.home.deadline()) && self.home.look(now, memory);
        any |= is_due(self.remote.deadline()) && self.remote.look(now, memory);
        any
    }

    fn execute(&mut self, memory: &mut Memory, action: LockAction) {
        match action {
            LockAction::Manage(claim) => {
                for index in claim.words() {
                    let word = memory.word(index).raw() | LockWord::MANAGED.raw();
                    memory.words.insert(index, LockWord::from_raw(word));
                }
            }
            LockAction::StoreLockWord(index, word) => drop(memory.words.insert(index, word)),
            LockAction::StoreForeign(index, Some(claim)) => {
                memory.foreign.insert(index, claim);
            }
            LockAction::StoreForeign(index, None) => drop(memory.foreign.remove(&index)),
            LockAction::Barrier => memory.drain_all(),
            LockAction::Queue(event) => self.events.push_back(event),
            LockAction::Answer { id, caller, outcome, number } => {
                if matches!(outcome, LockOutcome::Granted { .. }) {
                    memory.lost.remove(&id);
                }
                self.answers.push(Answer { id, caller, outcome, number });
            }
            LockAction::AnswerRack { endpoint, number, outcome } => {
                self.replies.push((endpoint, Message::Decided { number, outcome }));
            }
            LockAction::Request { home, number, claim, .. } => {
                self.requests.push((home, Message::Lock { number, claim }));
            }
            LockAction::Unlock { endpoint, number, end, writer } => {
                let cache = writer.and_then(|id| memory.caches.get(&id));
                let of_lock = cache.filter(|cache| cache.number == number);
                let written = of_lock.map(|cache| cache.written.clone()).unwrap_or_default();
                self.replies.push((endpoint, Message::Unlock { number, end, written }));
            }
            LockAction::RemoteLocksEnded(client) => {
                self.forgotten.push(client);
            }
            LockAction::Lose(id) => drop(memory.lost.insert(id)),
            LockAction::ClearClaims(client) => {
                memory.claims.retain(|id, _| id.client != client);
                memory.buffered.retain(|id, _| id.client != client);
            }
        }
    }
}

/// The word of a page that was allocated.
pub(super) fn live(page: PageId) -> PageWord {
    PageWord::free(page).apply(PageEvent::Allocated).unwrap()
}
