mod claims;
mod foreign;
mod losing;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClaimId, ClientId, LockClaim, LockMode, LockWord, PageId, PageState};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::beats::Beats;
use super::page::{AbandonedLine, HeldLock, PageLocks, RemovedLock, WaitingLock};
use super::words::ManagedWords;
use super::{LockAction, LockEvent, LockHolder, LockMemory, LockRequester, LockRules, earlier};
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
    words: ManagedWords,
    /// Number of held locks whose holders lose them.
    losing: usize,
    /// The claims of gone clients whose words are being managed.
    going: BTreeMap<ClientId, Vec<LockClaim>>,
    now: Time,
    /// Until then, locks that an earlier daemon granted to other racks may be in use.
    earlier_end: Time,
    /// The cells for foreign claims that are free, and the first one that was never used.
    free_cells: Vec<u32>,
    unused_cell: u32,
    beats: Beats,
    /// When the beats are looked at next; `None` while no client is in the way of a request.
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
            words: ManagedWords::default(),
            losing: 0,
            going: BTreeMap::new(),
            now,
            earlier_end: now.after(rules.earlier_holders),
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
                home.hold(LockHolder::Earlier(cell), claim, Some(cell));
                home.use_words_with(claim, |_| LockWord::MANAGED);
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
        let waiting = self.pages.values().flat_map(|page| &page.waiting);
        let until = waiting.map(|waiting| waiting.until).min();
        let inherited = Some(self.earlier_end).filter(|_| self.has_earlier());
        earlier(earlier(until, inherited), self.look_at)
    }

    /// Returns true if locks are held for which an earlier daemon answered.
    fn has_earlier(&self) -> bool {
        matches!(self.holders.first_key_value(), Some((LockHolder::Earlier(_), _)))
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

    /// An endpoint has ended: nothing that was sent over it can land any more.
    fn endpoint_ended(&mut self, memory: &(impl PageWords + LockMemory), ended: EndpointToken) {
        let of = |holder: &&LockHolder| matches!(holder, LockHolder::Rack(at, _) if *at == ended);
        for holder in self.holders.keys().filter(of).copied().collect::<Vec<_>>() {
            self.end(memory, holder, LockEnd::Abandoned);
        }
    }

    /// Does what is due. Returns true if there are actions.
    pub fn look(&mut self, now: Time, memory: &(impl PageWords + LockMemory)) -> bool {
        self.now = now;
        self.end_earlier(memory);
        for page in self.pages.keys().copied().collect::<Vec<_>>() {
            if self.expire(page) {
                self.advance(memory, page);
            }
        }
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
        // The claim was found in memory before its thread asked, or the call was repeated.
        self.take_out(holder);
        let page = self.pages.entry(claim.page()).or_default();
        page.waiting.push(WaitingLock { requester, claim, until: self.now.after(timeout) });
        self.holders.insert(holder, claim.page());
        self.look_at.get_or_insert(self.now.after(Beats::interval(self.rules.lease)));
        self.use_words(memory, claim);
        self.advance(memory, claim.page());
        if timeout.is_zero() && self.words.are_known(claim) {
            self.expire(claim.page());
        }
    }

    /// Takes a lock or a request out, and gives its words back.
    fn take_out(&mut self, holder: LockHolder) -> Option<RemovedLock> {
        let page = self.holders.remove(&holder)?;
        let locks = self.pages.get_mut(&page)?;
        let removed = locks.remove(holder)?;
        self.losing -= usize::from(removed.was_losing);
        if locks.is_empty() {
            self.pages.remove(&page);
        }
        self.clear_foreign(removed.foreign);
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
            let WaitingLock { requester, claim, .. } = granted;
            let recovered = locks.abandoned.iter().any(|line| line.claim.overlaps(claim));
            let foreign = match requester {
                LockRequester::Client(..) => None,
                LockRequester::Rack(..) => self.store_foreign(claim),
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
            LockRequester::Client(id, caller) => LockAction::Answer(id, caller, outcome),
            LockRequester::Rack(endpoint, number) => {
                LockAction::AnswerRack { endpoint, number, outcome }
            }
        });
    }

    /// The page is not here: its requests go to the new home.
    fn moved(&mut self, page: PageId) {
        self.refuse(page, LockOutcome::Moved, |_| true);
        // A page with abandoned lines does not move: it was freed.
        if let Some(locks) = self.pages.get_mut(&page) {
            for AbandonedLine { claim, foreign } in core::mem::take(&mut locks.abandoned) {
                self.clear_foreign(foreign);
                self.give_back(claim);
            }
        }
        if self.pages.get(&page).is_some_and(PageLocks::is_empty) {
            self.pages.remove(&page);
        }
    }

    /// Refuses the requests whose time has passed. Returns true if there were any.
    fn expire(&mut self, page: PageId) -> bool {
        let now = self.now;
        self.refuse(page, LockOutcome::TimedOut, |waiting| waiting.until <= now)
    }

    fn refuse(
        &mut self,
        page: PageId,
        outcome: LockOutcome,
        which: impl Fn(&WaitingLock) -> bool,
    ) -> bool {
        let waiting = self.pages.get(&page).into_iter().flat_map(|locks| &locks.waiting);
        let refused: Vec<LockRequester> =
            waiting.filter(|waiting| which(waiting)).map(|waiting| waiting.requester).collect();
        for requester in &refused {
            self.take_out(requester.holder());
            self.answer(*requester, outcome);
        }
        !refused.is_empty()
    }
}
