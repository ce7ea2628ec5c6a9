mod claims;
mod foreign;
mod losing;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClaimId, ClientId, LockClaim, LockMode, LockWord, PageId, PageState};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::beats::Beats;
use super::page::{HeldLock, PageLocks, RemovedLock, WaitingLock};
use super::words::ManagedWords;
use super::{LockAction, LockEvent, LockHolder, LockMemory, LockRequester, LockRules};
use crate::Time;
use crate::lease::EndpointToken;
use crate::planted_bugs::{Bug, Bugs, Sound};
use crate::rack::PageWords;

/// The locks of a rack's pages, except those that clients have taken without their daemon.
#[derive(Debug)]
pub struct LockHome<B = Sound> {
    rules: LockRules,
    bugs: B,
    pages: BTreeMap<PageId, PageLocks>,
    holders: BTreeMap<LockHolder, PageId>,
    /// When each waiting request times out, and when held locks pass on.
    timeouts: BTreeSet<(Time, LockHolder)>,
    words: ManagedWords,
    /// Number of held locks whose holders lose them.
    losing: usize,
    /// The claims of gone clients whose words are being managed.
    going: BTreeMap<ClientId, Vec<LockClaim>>,
    now: Time,
    /// The cells for foreign claims that are free, and the first one that was never used.
    free_cells: Vec<u32>,
    unused_cell: u32,
    /// Number of cells with locks of other racks' clients, and of an earlier daemon.
    foreign_locks: u32,
    beats: Beats,
    /// When the beats are looked at next; `None` while no request waits.
    look_at: Option<Time>,
    actions: VecDeque<LockAction>,
}

impl<B: Bugs> LockHome<B> {
    /// A machine with the locks for which an earlier daemon answered. The shell must poll at once.
    pub fn restore(
        now: Time,
        rules: LockRules,
        foreign: impl IntoIterator<Item = (u32, LockClaim)>,
        bugs: B,
    ) -> Self {
        let mut home = Self {
            rules,
            bugs,
            pages: BTreeMap::new(),
            holders: BTreeMap::new(),
            timeouts: BTreeSet::new(),
            foreign_locks: 0,
            words: ManagedWords::default(),
            losing: 0,
            going: BTreeMap::new(),
            now,
            free_cells: Vec::new(),
            unused_cell: 0,
            beats: Beats::default(),
            look_at: None,
            actions: VecDeque::new(),
        };
        for (cell, claim) in foreign {
            home.free_cells.extend(home.unused_cell..cell);
            home.unused_cell = cell + 1;
            if !bugs.has(Bug::TrustInheritedLocks) {
                home.foreign_locks += 1;
                home.hold(LockHolder::Earlier(cell), claim, Some(cell));
                home.use_words_with(claim, |_| LockWord::MANAGED);
                home.end_at(LockHolder::Earlier(cell), now.after(rules.earlier_holders));
            }
        }
        home
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<LockAction> {
        self.actions.pop_front()
    }

    /// Returns when [`Self::look`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let until = self.timeouts.first().map(|(until, _)| *until);
        until.into_iter().chain(self.look_at).min()
    }

    /// Returns true if the page stays here: the machine knows locks of it, or that a writer ended
    /// without an unlock.
    #[must_use]
    pub fn pins(&self, page: PageId) -> bool {
        let locks = self.pages.get(&page);
        locks.is_some_and(|locks| !locks.held.is_empty() || !locks.abandoned.is_empty())
    }

    /// Returns true if a lock is held until its holder's access has ended.
    #[must_use]
    pub const fn is_losing(&self) -> bool {
        self.losing > 0
    }

    /// Returns the number of locks that are held or requested, as far as the machine knows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// Returns true if a lock of the page is held, or may be. The caller has changed the page word,
    /// so that no client takes a lock of the page without the daemon, and had a barrier executed.
    #[must_use]
    pub fn is_held(&self, page: PageId, memory: &impl LockMemory) -> bool {
        if self.bugs.has(Bug::MoveUnderLocks) {
            return false;
        }
        let locks = self.pages.get(&page);
        let waits = |id: ClaimId| {
            let waiting = locks.into_iter().flat_map(|locks| &locks.waiting);
            waiting.into_iter().any(|one| one.requester.holder() == LockHolder::Client(id))
        };
        self.pins(page) || memory.claims().any(|(id, claim)| claim.page() == page && !waits(id))
    }

    /// Returns true if locks of the page are held or requested, as far as the machine knows.
    #[must_use]
    pub fn is_used(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// Returns the lines that another rack's client has locked for writing over this endpoint,
    /// under its rack's number.
    #[must_use]
    pub fn writer(&self, endpoint: EndpointToken, number: u64) -> Option<LockClaim> {
        let holder = LockHolder::Rack(endpoint, number);
        let locks = self.holders.get(&holder).and_then(|page| self.pages.get(page))?;
        let mut held = locks.held.iter().filter(|held| held.holder == holder);
        held.find(|held| held.claim.mode() == LockMode::Write).map(|held| held.claim)
    }

    /// Handles an event that concerns locks of this rack's pages.
    pub fn handle(&mut self, now: Time, memory: &(impl PageWords + LockMemory), event: LockEvent) {
        self.now = now;
        match event {
            LockEvent::Requested { requester, claim, timeout } => {
                self.requested(memory, requester, claim, timeout);
            }
            LockEvent::Unlocked { id, end } => self.end(memory, LockHolder::Client(id), end),
            LockEvent::UnlockedElsewhere { endpoint, number, end } => {
                self.end(memory, LockHolder::Rack(endpoint, number), end);
            }
            LockEvent::ClientGone(client) => self.client_gone(memory, client),
            LockEvent::ClaimsManaged(client) => self.claims_managed(memory, client),
            LockEvent::WordsManaged(claim) => self.words_managed(memory, claim),
            LockEvent::WordsReadable(words) => self.words_readable(memory, &words),
            LockEvent::EndpointEnded(endpoint) => self.endpoint_ended(memory, endpoint),
            LockEvent::PageChanged(page) => self.advance(memory, page),
            LockEvent::RequestedElsewhere { .. } | LockEvent::Answered { .. } => {}
        }
    }

    /// Does what is due. Returns true if there are actions.
    pub fn look(&mut self, now: Time, memory: &(impl PageWords + LockMemory)) -> bool {
        self.now = now;
        self.expire(memory);
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at_beats(memory);
        }
        !self.actions.is_empty()
    }

    fn requested(
        &mut self,
        memory: &(impl PageWords + LockMemory),
        requester: LockRequester,
        claim: LockClaim,
        timeout: Duration,
    ) {
        let holder = requester.holder();
        // First, so that words that the holder used before stay managed.
        self.use_words(memory, claim);
        // The claim was found in memory before its thread asked, or the call was repeated.
        let before = self.holders.get(&holder).copied().filter(|page| *page != claim.page());
        self.take_out(holder);
        let until = self.now.after(timeout);
        let page = self.pages.entry(claim.page()).or_default();
        page.waiting.push(WaitingLock { requester, claim, until });
        self.holders.insert(holder, claim.page());
        self.timeouts.insert((until, holder));
        self.look_at.get_or_insert(self.now.after(Beats::interval(self.rules.lease)));
        for page in before.into_iter().chain([claim.page()]) {
            self.advance(memory, page);
        }
        if timeout.is_zero() && self.words.are_known(claim) {
            self.expire(memory);
        }
    }

    /// Takes a lock or a request out, and gives its words back.
    fn take_out(&mut self, holder: LockHolder) -> Option<RemovedLock> {
        let page = self.holders.remove(&holder)?;
        let locks = self.pages.get_mut(&page)?;
        let removed = locks.remove(holder)?;
        if locks.is_empty() {
            self.pages.remove(&page);
        }
        self.losing -= usize::from(removed.was_losing);
        if let Some(until) = removed.until {
            self.timeouts.remove(&(until, holder));
        }
        if removed.foreign.is_some() {
            self.foreign_locks -= 1;
            self.clear_foreign(removed.foreign);
        }
        self.give_back(removed.claim);
        Some(removed)
    }

    /// A holder has unlocked, withdraws its request, or has ended.
    fn end(&mut self, memory: &(impl PageWords + LockMemory), holder: LockHolder, end: LockEnd) {
        let Some(page) = self.holders.get(&holder).copied() else { return };
        let wrote =
            |held: &&HeldLock| held.holder == holder && held.claim.mode() == LockMode::Write;
        let locks = self.pages.get(&page);
        let claim = locks.and_then(|locks| locks.held.iter().find(wrote)).map(|held| held.claim);
        match (claim, end) {
            (Some(claim), LockEnd::Unlocked) => self.end_abandonment(claim),
            (Some(claim), LockEnd::Abandoned) if !self.bugs.has(Bug::ForgetAbandonedLocks) => {
                self.abandon(claim);
            }
            _ => {}
        }
        self.take_out(holder);
        if !self.bugs.has(Bug::ForgetWaitingLocks) {
            self.advance(memory, page);
        }
    }

    /// Grants what can be granted on a page. Refuses all requests if the page is not here.
    fn advance(&mut self, memory: &(impl PageWords + LockMemory), page: PageId) {
        match memory.find(page).and_then(|found| found.word.state()) {
            Some(PageState::Live | PageState::Shared) => {}
            // The page moves: its requests wait until it stays here, or has gone.
            Some(PageState::Frozen | PageState::Arriving) => return,
            Some(PageState::Free | PageState::Leaving) | None => return self.moved(page),
        }
        let bugs = self.bugs;
        while let Some(locks) = self.pages.get_mut(&page) {
            let words = &self.words;
            let is_ready = |claim| words.are_known(claim);
            let Some(granted) = locks.take_grantable(is_ready, bugs) else { return };
            let WaitingLock { requester, claim, until } = granted;
            self.timeouts.remove(&(until, requester.holder()));
            let recovered = locks.abandoned.iter().any(|line| line.claim.overlaps(claim));
            let foreign = match requester {
                LockRequester::Client(..) => None,
                LockRequester::Rack(..) => self.store_foreign_lock(claim),
            };
            if foreign.is_none() && matches!(requester, LockRequester::Rack(..)) {
                // There is no room to note the lock, which must outlive this daemon. The client
                // tries again.
                self.holders.remove(&requester.holder());
                self.give_back(claim);
                self.answer(requester, LockOutcome::Moved);
                continue;
            }
            self.hold(requester.holder(), claim, foreign);
            self.answer(requester, LockOutcome::Granted { recovered });
        }
    }

    fn answer(&mut self, requester: LockRequester, outcome: LockOutcome) {
        self.actions.push_back(match requester {
            LockRequester::Client(id, caller) => {
                LockAction::Answer { id, caller, outcome, number: None }
            }
            LockRequester::Rack(endpoint, number) => {
                LockAction::AnswerRack { endpoint, number, outcome }
            }
        });
    }

    /// The page is not here: its requests go to the new home.
    fn moved(&mut self, page: PageId) {
        let waiting = self.pages.get(&page).into_iter().flat_map(|locks| &locks.waiting);
        for holder in waiting.map(|waiting| waiting.requester.holder()).collect::<Vec<_>>() {
            self.refuse(holder, LockOutcome::Moved);
        }
        // A page with abandoned lines does not move: it was freed.
        self.forget_abandoned(page);
    }

    /// Returns true if the lock is held, not only requested.
    fn holds(&self, holder: LockHolder) -> bool {
        let locks = self.holders.get(&holder).and_then(|page| self.pages.get(page));
        locks.is_some_and(|locks| locks.held.iter().any(|held| held.holder == holder))
    }

    /// Refuses the requests whose time has passed, and passes on locks whose time has.
    fn expire(&mut self, memory: &(impl PageWords + LockMemory)) {
        while let Some((until, holder)) = self.timeouts.first().copied() {
            if until > self.now {
                return;
            }
            self.timeouts.remove(&(until, holder));
            if self.holds(holder) {
                self.end(memory, holder, LockEnd::Abandoned);
                continue;
            }
            let page = self.holders.get(&holder).copied();
            self.refuse(holder, LockOutcome::TimedOut);
            if let Some(page) = page {
                self.advance(memory, page);
            }
        }
    }

    fn refuse(&mut self, holder: LockHolder, outcome: LockOutcome) {
        let locks = self.holders.get(&holder).and_then(|page| self.pages.get(page));
        let waiting = locks.into_iter().flat_map(|locks| &locks.waiting);
        let mut requesters = waiting.map(|waiting| waiting.requester);
        let requester = requesters.find(|one| one.holder() == holder);
        self.take_out(holder);
        if let Some(requester) = requester {
            self.answer(requester, outcome);
        }
    }
}
