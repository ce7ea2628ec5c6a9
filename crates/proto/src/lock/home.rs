use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{
    ClaimId, ClientId, FOREIGN_CLAIMS, LockClaim, LockMode, LockWord, LockWordIndex, PageId,
    PageState,
};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::beats::Beats;
use super::page::{AbandonedLine, HeldLock, PageLocks, RemovedLock, WaitingLock};
use super::words::{Claims, ManagedWords};
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

    /// Returns the number of held locks and of waiting requests.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let sum = |of: fn(&PageLocks) -> usize| self.pages.values().map(of).sum();
        (sum(|page| page.held.len()), sum(|page| page.waiting.len()))
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
            self.expire(page);
            self.advance(memory, page);
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at_beats(memory);
        }
        !self.actions.is_empty()
    }

    /// Ends lost locks whose holders' accesses have ended. Returns true if there are actions.
    pub fn end_lost(&mut self, now: Time, memory: &(impl PageWords + LockMemory)) -> bool {
        self.now = now;
        let held = self.pages.values().flat_map(|page| &page.held);
        let is_over = |held: &&HeldLock| {
            let hasty = self.bugs.has(Bug::PassLostLockAtOnce);
            held.is_losing
                && matches!(held.holder, LockHolder::Client(id)
                    if hasty || !memory.is_using(id, held.claim.page()))
        };
        for holder in held.filter(is_over).map(|held| held.holder).collect::<Vec<_>>() {
            self.end(memory, holder, LockEnd::Abandoned);
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

    /// Counts the claim as a user of its words, and has new ones managed.
    fn use_words(&mut self, memory: &impl LockMemory, claim: LockClaim) {
        self.use_words_with(claim, |index| memory.lock_word(index));
    }

    fn use_words_with(&mut self, claim: LockClaim, word: impl Fn(LockWordIndex) -> LockWord) {
        if self.words.take(claim, word) {
            self.actions.push_back(LockAction::Manage(claim));
            self.actions.push_back(LockAction::Queue(LockEvent::WordsManaged(claim)));
        }
    }

    fn words_managed(&mut self, memory: &(impl PageWords + LockMemory), claim: LockClaim) {
        let mut to_read = Vec::new();
        for index in claim.words() {
            let word = memory.lock_word(index);
            let Some(managed) = self.words.get_mut(index) else { continue };
            if managed.claims != Claims::Unread {
                continue;
            }
            if managed.is_inherited || word.is_shared() && word.claim().is_none() {
                managed.claims = Claims::Awaited;
                to_read.push(index);
                continue;
            }
            managed.claims = Claims::Known;
            if let Some(id) = word.claim() {
                let found = memory.claim(id).filter(|claim| claim.words().any(|of| of == index));
                let is_mode =
                    |found: &LockClaim| (found.mode() == LockMode::Read) == word.is_shared();
                if let Some(found) = found.filter(is_mode) {
                    self.found(memory, id, found);
                }
            }
        }
        if !to_read.is_empty() {
            if !self.bugs.has(Bug::ReadClaimsWithoutBarrier) {
                self.actions.push_back(LockAction::Barrier);
            }
            self.actions.push_back(LockAction::Queue(LockEvent::WordsReadable(to_read)));
        }
        self.advance(memory, claim.page());
    }

    fn words_readable(&mut self, memory: &(impl PageWords + LockMemory), words: &[LockWordIndex]) {
        for (id, claim) in memory.claims() {
            // A writer of a word that was shared has not got the lock.
            let may_hold = |index: LockWordIndex| {
                let inherited = self.words.get(index).is_some_and(|word| word.is_inherited);
                words.contains(&index) && (inherited || claim.mode() == LockMode::Read)
            };
            if claim.words().any(may_hold) && !self.bugs.has(Bug::OverlookSharedClaims) {
                self.found(memory, id, claim);
            }
        }
        for index in words {
            if let Some(word) = self.words.get_mut(*index) {
                word.claims = Claims::Known;
            }
        }
        let pages: Vec<PageId> = self.pages.keys().copied().collect();
        for page in pages {
            self.advance(memory, page);
        }
    }

    /// A claim in memory may be held.
    fn found(&mut self, memory: &impl LockMemory, id: ClaimId, claim: LockClaim) {
        let holder = LockHolder::Client(id);
        if self.holders.contains_key(&holder) {
            return;
        }
        self.hold(holder, claim, None);
        self.use_words(memory, claim);
    }

    fn hold(&mut self, holder: LockHolder, claim: LockClaim, foreign: Option<u32>) {
        self.holders.insert(holder, claim.page());
        let page = self.pages.entry(claim.page()).or_default();
        page.held.push(HeldLock { holder, claim, foreign, is_losing: false });
    }

    /// From `earlier_end` on no lock is in use that an earlier daemon granted to another rack.
    fn end_earlier(&mut self, memory: &(impl PageWords + LockMemory)) {
        if self.now < self.earlier_end {
            return;
        }
        while let Some((holder @ LockHolder::Earlier(_), _)) = self.holders.first_key_value() {
            self.end(memory, *holder, LockEnd::Abandoned);
        }
    }

    fn take_cell(&mut self) -> Option<u32> {
        self.free_cells.pop().or_else(|| {
            let cell = self.unused_cell;
            (cell < FOREIGN_CLAIMS).then(|| self.unused_cell += 1).map(|()| cell)
        })
    }

    fn store_foreign(&mut self, claim: LockClaim) -> Option<u32> {
        let cell = self.take_cell()?;
        self.actions.push_back(LockAction::StoreForeign(cell, Some(claim)));
        Some(cell)
    }

    fn clear_foreign(&mut self, cell: Option<u32>) {
        if let Some(cell) = cell {
            self.free_cells.push(cell);
            self.actions.push_back(LockAction::StoreForeign(cell, None));
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

    fn give_back(&mut self, claim: LockClaim) {
        let actions = &mut self.actions;
        self.words.give_back(claim, |index| {
            actions.push_back(LockAction::StoreLockWord(index, LockWord::FREE));
        });
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

    /// A writer ended without an unlock: the next holders of its lines are told.
    fn abandon(&mut self, claim: LockClaim) {
        for claim in claim.each_line() {
            let page = self.pages.entry(claim.page()).or_default();
            if page.abandoned.iter().any(|line| line.claim == claim) {
                continue;
            }
            // The words of the line stay managed.
            self.use_words_with(claim, |_| LockWord::MANAGED);
            let foreign = self.store_foreign(claim);
            if let Some(page) = self.pages.get_mut(&claim.page()) {
                page.abandoned.push(AbandonedLine { claim, foreign });
            }
        }
    }

    /// A writer of these lines has unlocked.
    fn end_abandonment(&mut self, claim: LockClaim) {
        let Some(page) = self.pages.get_mut(&claim.page()) else { return };
        let covered = |line: &mut AbandonedLine| line.claim.overlaps(claim);
        let ended: Vec<AbandonedLine> = page.abandoned.extract_if(.., covered).collect();
        for AbandonedLine { claim, foreign } in ended {
            self.clear_foreign(foreign);
            self.give_back(claim);
        }
    }

    fn client_gone(&mut self, memory: &impl LockMemory, client: ClientId) {
        let wrote = memory
            .claims()
            .filter(|(id, claim)| id.client == client && claim.mode() == LockMode::Write);
        let mut claims = Vec::new();
        for (id, claim) in wrote.collect::<Vec<_>>() {
            let is_inherited = |index| match self.words.get(index) {
                Some(word) => word.is_inherited && word.claims != Claims::Known,
                None => memory.lock_word(index).is_managed(),
            };
            if claim.words().any(is_inherited) {
                // The words do not say whether the claim was held.
                self.found(memory, id, claim);
            }
            // Locks that the client took without the daemon are found when their words are managed.
            self.use_words(memory, claim);
            claims.push(claim);
        }
        self.going.insert(client, claims);
        self.actions.push_back(LockAction::Queue(LockEvent::ClaimsManaged(client)));
    }

    fn claims_managed(&mut self, memory: &(impl PageWords + LockMemory), client: ClientId) {
        let of_client =
            |holder: &&LockHolder| matches!(holder, LockHolder::Client(id) if id.client == client);
        for holder in self.holders.keys().filter(of_client).copied().collect::<Vec<_>>() {
            self.end(memory, holder, LockEnd::Abandoned);
        }
        for claim in self.going.remove(&client).unwrap_or_default() {
            self.give_back(claim);
        }
        // Last, after what its writers leave is stored.
        self.actions.push_back(LockAction::ClearClaims(client));
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
            let has_cell = !self.free_cells.is_empty() || self.unused_cell < FOREIGN_CLAIMS;
            let is_ready = |waiting: &WaitingLock| {
                let is_here = matches!(waiting.requester, LockRequester::Client(..));
                words.are_known(waiting.claim) && (is_here || has_cell)
            };
            let Some(granted) = locks.take_grantable(is_ready, bugs) else { return };
            let WaitingLock { requester, claim, .. } = granted;
            let recovered = locks.abandoned.iter().any(|line| line.claim.overlaps(claim));
            let foreign = match requester {
                LockRequester::Client(..) => None,
                LockRequester::Rack(..) => self.store_foreign(claim),
            };
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

    /// Refuses the requests whose time has passed.
    fn expire(&mut self, page: PageId) {
        let now = self.now;
        self.refuse(page, LockOutcome::TimedOut, |waiting| waiting.until <= now);
    }

    fn refuse(&mut self, page: PageId, outcome: LockOutcome, which: impl Fn(&WaitingLock) -> bool) {
        let Some(locks) = self.pages.get(&page) else { return };
        let refused = locks.waiting.iter().filter(|waiting| which(waiting));
        for requester in refused.map(|waiting| waiting.requester).collect::<Vec<_>>() {
            self.take_out(requester.holder());
            self.answer(requester, outcome);
        }
    }

    /// Looks for holders in the way of a request whose processes stand still.
    fn look_at_beats(&mut self, memory: &impl LockMemory) {
        let now = self.now;
        let in_the_way = self.pages.values().flat_map(|page| {
            page.held.iter().filter(|held| !held.is_losing && page.is_wanted(held))
        });
        let clients: Vec<(ClientId, PageId)> = in_the_way
            .filter_map(|held| match held.holder {
                LockHolder::Client(id) => Some((id.client, held.claim.page())),
                LockHolder::Rack(..) | LockHolder::Earlier(_) => None,
            })
            .collect();
        let lease = self.rules.lease;
        self.beats.look(now, lease, memory, clients.iter().map(|(client, _)| *client));
        self.look_at = (!clients.is_empty()).then(|| now.after(Beats::interval(lease)));
        for (client, page) in clients {
            if self.beats.is_stalled(now, lease, client) {
                self.lose(client, page);
            }
        }
    }

    /// A client that stands still loses its locks of a page.
    fn lose(&mut self, client: ClientId, page: PageId) {
        let Some(locks) = self.pages.get_mut(&page) else { return };
        for held in &mut locks.held {
            if let LockHolder::Client(id) = held.holder
                && id.client == client
                && !held.is_losing
            {
                held.is_losing = true;
                self.losing += 1;
                self.actions.push_back(LockAction::Lose(id));
            }
        }
        self.actions.push_back(LockAction::Barrier);
    }
}
