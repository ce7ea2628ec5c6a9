use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClaimId, ClientId, LockClaim, LockMode, PageId, RackId};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use super::beats::Beats;
use super::{LockAction, LockEvent, LockMemory, LockRules};
use crate::Time;
use crate::exchange::Caller;
use crate::lease::EndpointToken;
use crate::planted_bugs::{Bug, Bugs, Sound};
use crate::rack::PageWords;

/// The locks of other racks' pages that clients of this rack hold or request.
#[derive(Debug)]
pub struct RemoteLocks<B = Sound> {
    rules: LockRules,
    bugs: B,
    now: Time,
    /// The number of the last request.
    last: u64,
    locks: BTreeMap<u64, RemoteLock>,
    /// The numbers of locks of each thread, and of each page.
    of_threads: BTreeSet<(ClientId, u16, u64)>,
    of_pages: BTreeSet<(PageId, u64)>,
    /// Those that end when no operation under them is under way.
    ending: BTreeSet<u64>,
    /// Clients of which locks have ended since the last action.
    ended: BTreeSet<ClientId>,
    beats: Beats,
    /// When the beats are looked at next; `None` while no lock is held.
    look_at: Option<Time>,
    actions: VecDeque<LockAction>,
}

#[derive(Clone, Copy, Debug)]
struct RemoteLock {
    id: ClaimId,
    claim: LockClaim,
    state: State,
}

/// The state of a lock. A crash of the daemon loses it: its endpoints end with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request was sent. Left by the answer.
    Requested(Caller),
    /// The home has queued the request. Left by its message.
    Queued(Caller, EndpointToken),
    /// The client does not want the lock any more, but the home has not answered. Left by the
    /// answer, which is followed by an unlock.
    Withdrawn,
    /// The client holds the lock.
    Held(EndpointToken),
    /// The client has unlocked, has ended, or stands still. Left when no operation of its thread on
    /// the page is under way: then the home is told.
    Ending {
        /// The endpoint over which the lock was granted.
        endpoint: EndpointToken,
        /// How it ends.
        end: LockEnd,
    },
}

impl State {
    const fn endpoint(self) -> Option<EndpointToken> {
        match self {
            Self::Requested(_) | Self::Withdrawn => None,
            Self::Queued(_, endpoint) | Self::Held(endpoint) | Self::Ending { endpoint, .. } => {
                Some(endpoint)
            }
        }
    }
}

impl<B: Bugs> RemoteLocks<B> {
    /// A machine without locks. `first` is above the numbers of earlier daemons' requests.
    pub fn new(now: Time, rules: LockRules, first: u64, bugs: B) -> Self {
        Self {
            rules,
            bugs,
            now,
            last: first,
            locks: BTreeMap::new(),
            of_threads: BTreeSet::new(),
            of_pages: BTreeSet::new(),
            ending: BTreeSet::new(),
            ended: BTreeSet::new(),
            beats: Beats::default(),
            look_at: None,
            actions: VecDeque::new(),
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<LockAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        // Last, so that their unlocks are sent before.
        while let Some(client) = self.ended.pop_first() {
            if !self.has_any_of(client) {
                return Some(LockAction::RemoteLocksEnded(client));
            }
        }
        None
    }

    /// Returns when [`Self::look`] is due.
    #[must_use]
    pub const fn deadline(&self) -> Option<Time> {
        self.look_at
    }

    /// Returns true if a lock is held until an operation under it has ended.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Returns true if there is no lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Returns the endpoints for which locks of the page that the thread holds are valid. An
    /// operation of the thread over another endpoint is refused: the locks are lost.
    pub fn endpoints(
        &self,
        client: ClientId,
        thread: u16,
        page: PageId,
    ) -> impl Iterator<Item = EndpointToken> {
        let numbers = self.of_threads.range((client, thread, 0)..=(client, thread, u64::MAX));
        let locks = numbers.filter_map(|(.., number)| self.locks.get(number));
        locks.filter(move |lock| lock.claim.page() == page).filter_map(|lock| match lock.state {
            State::Held(endpoint) | State::Ending { endpoint, .. } => Some(endpoint),
            _ => None,
        })
    }

    /// Copies of some locks, with their numbers.
    fn copies(&self, which: impl Fn(&RemoteLock) -> bool) -> Vec<(u64, RemoteLock)> {
        let all = self.locks.iter().filter(|(_, lock)| which(lock));
        all.map(|(number, lock)| (*number, *lock)).collect()
    }

    /// The numbers of the locks of a claim.
    fn of_claim(&self, id: ClaimId) -> Vec<u64> {
        let of_thread = (id.client, id.thread, 0)..=(id.client, id.thread, u64::MAX);
        let numbers = self.of_threads.range(of_thread).map(|(.., number)| *number);
        let is_its = |number: &u64| self.locks.get(number).is_some_and(|lock| lock.id == id);
        numbers.filter(is_its).collect()
    }

    /// The numbers of the locks of a client.
    fn of_client(&self, client: ClientId) -> Vec<u64> {
        let of_client = (client, 0, 0)..=(client, u16::MAX, u64::MAX);
        self.of_threads.range(of_client).map(|(.., number)| *number).collect()
    }

    /// Sets what is known of a lock; `None`: it has ended.
    fn set(&mut self, number: u64, lock: Option<RemoteLock>) {
        let before = match lock {
            Some(lock) => self.locks.insert(number, lock),
            None => self.locks.remove(&number),
        };
        if let Some(RemoteLock { id, claim, .. }) = before {
            self.of_threads.remove(&(id.client, id.thread, number));
            self.of_pages.remove(&(claim.page(), number));
            self.ending.remove(&number);
            if lock.is_none() {
                self.ended.insert(id.client);
            }
        }
        if let Some(RemoteLock { id, claim, state }) = lock {
            self.of_threads.insert((id.client, id.thread, number));
            self.of_pages.insert((claim.page(), number));
            if matches!(state, State::Ending { .. }) {
                self.ending.insert(number);
            }
        }
    }

    /// Returns true if the client holds or requests locks.
    #[must_use]
    pub fn has_any_of(&self, client: ClientId) -> bool {
        let of_client = (client, 0, 0)..=(client, u16::MAX, u64::MAX);
        self.of_threads.range(of_client).next().is_some()
    }

    /// Returns true if clients hold or request locks of the page.
    #[must_use]
    pub fn is_used(&self, page: PageId) -> bool {
        self.of_pages.range((page, 0)..=(page, u64::MAX)).next().is_some()
    }

    /// Handles an event that concerns locks in other racks.
    pub fn handle(&mut self, now: Time, memory: &impl PageWords, event: &LockEvent) {
        self.now = now;
        match *event {
            LockEvent::RequestedElsewhere { id, caller, home, claim, timeout } => {
                self.withdraw(self.of_claim(id), LockEnd::Withdrawn);
                let is_ending = self.of_claim(id).iter().any(|one| self.ending.contains(one));
                if is_ending && !self.bugs.has(Bug::ReuseEndingClaims) {
                    // What is in its line cache is still that lock's: the client asks again.
                    return self.refuse(id, caller, LockOutcome::Moved);
                }
                self.request(id, caller, home, claim, timeout);
            }
            LockEvent::Answered { number, endpoint, outcome } => {
                self.answered(number, endpoint, outcome);
            }
            LockEvent::Unlocked { id, end } => self.withdraw(self.of_claim(id), end),
            LockEvent::ClientGone(client) => {
                self.withdraw(self.of_client(client), LockEnd::Abandoned);
            }
            LockEvent::EndpointEnded(endpoint) => {
                self.lose(|lock| lock.state.endpoint() == Some(endpoint));
            }
            // A page with held locks does not move: its old home has ended the endpoint.
            LockEvent::PageChanged(page) if memory.find(page).is_some() => {
                self.lose(|lock| lock.claim.page() == page && lock.state.endpoint().is_some());
            }
            _ => {}
        }
    }

    fn request(
        &mut self,
        id: ClaimId,
        caller: Caller,
        home: RackId,
        claim: LockClaim,
        timeout: Duration,
    ) {
        self.last += 1;
        let number = self.last;
        self.set(number, Some(RemoteLock { id, claim, state: State::Requested(caller) }));
        self.actions.push_back(LockAction::Request { home, number, claim, timeout });
    }

    fn answered(&mut self, number: u64, endpoint: EndpointToken, outcome: Option<LockOutcome>) {
        let Some(lock) = self.locks.get(&number).copied() else { return };
        let id = lock.id;
        let caller = match lock.state {
            State::Requested(caller) => caller,
            State::Queued(caller, over) if over == endpoint => caller,
            State::Withdrawn => {
                self.set(number, None);
                if matches!(outcome, Some(LockOutcome::Granted { .. } | LockOutcome::Queued)) {
                    self.unlock(endpoint, number, LockEnd::Withdrawn, None);
                }
                return;
            }
            State::Queued(..) | State::Held(_) | State::Ending { .. } => return,
        };
        match outcome {
            Some(LockOutcome::Queued) => {
                let state = State::Queued(caller, endpoint);
                self.set(number, Some(RemoteLock { state, ..lock }));
            }
            Some(granted @ LockOutcome::Granted { .. }) => {
                let state = State::Held(endpoint);
                self.set(number, Some(RemoteLock { state, ..lock }));
                self.look_at.get_or_insert(self.now.after(Beats::interval(self.rules.lease)));
                let (outcome, number) = (granted, Some(number));
                self.actions.push_back(LockAction::Answer { id, caller, outcome, number });
            }
            Some(refused @ (LockOutcome::TimedOut | LockOutcome::Moved)) => {
                self.set(number, None);
                self.refuse(id, caller, refused);
            }
            // Its endpoint has ended, and with it the lock if it was granted.
            None => {
                self.set(number, None);
                self.refuse(id, caller, LockOutcome::Moved);
            }
        }
    }

    fn refuse(&mut self, id: ClaimId, caller: Caller, outcome: LockOutcome) {
        self.actions.push_back(LockAction::Answer { id, caller, outcome, number: None });
    }

    fn unlock(
        &mut self,
        endpoint: EndpointToken,
        number: u64,
        end: LockEnd,
        writer: Option<ClaimId>,
    ) {
        self.actions.push_back(LockAction::Unlock { endpoint, number, end, writer });
    }

    /// Gives locks and requests up.
    fn withdraw(&mut self, numbers: Vec<u64>, end: LockEnd) {
        for number in numbers {
            let Some(lock) = self.locks.get(&number).copied() else { continue };
            let state = match lock.state {
                State::Requested(_) => State::Withdrawn,
                State::Queued(_, endpoint) => {
                    self.set(number, None);
                    self.unlock(endpoint, number, LockEnd::Withdrawn, None);
                    continue;
                }
                State::Held(endpoint) => State::Ending { endpoint, end },
                State::Withdrawn | State::Ending { .. } => continue,
            };
            self.set(number, Some(RemoteLock { state, ..lock }));
        }
    }

    /// Locks have ended at their home.
    fn lose(&mut self, which: impl Fn(&RemoteLock) -> bool) {
        for (number, lock) in self.copies(which) {
            self.set(number, None);
            match lock.state {
                State::Queued(caller, _) => {
                    self.refuse(lock.id, caller, LockOutcome::Moved);
                }
                State::Ending { .. } => {}
                _ if self.bugs.has(Bug::KeepLocksOfEndedEndpoints) => {}
                _ => self.actions.push_back(LockAction::Lose(lock.id)),
            }
        }
    }

    /// Looks for holders whose processes stand still. Returns true if there are actions.
    pub fn look(&mut self, now: Time, memory: &impl LockMemory) -> bool {
        self.now = now;
        let held = |lock: &&RemoteLock| matches!(lock.state, State::Held(_));
        let holders: Vec<ClientId> =
            self.locks.values().filter(held).map(|lock| lock.id.client).collect();
        let lease = self.rules.lease;
        self.beats.look(now, lease, memory, holders.iter().copied());
        self.look_at = (!holders.is_empty()).then(|| now.after(Beats::interval(lease)));
        for (number, lock) in self.copies(|lock| matches!(lock.state, State::Held(_))) {
            if let State::Held(endpoint) = lock.state
                && self.beats.is_stalled(now, lease, lock.id.client)
            {
                let state = State::Ending { endpoint, end: LockEnd::Abandoned };
                self.set(number, Some(RemoteLock { state, ..lock }));
                self.actions.extend([LockAction::Lose(lock.id), LockAction::Barrier]);
            }
        }
        !self.actions.is_empty()
    }

    /// Gives locks back under which no operation is under way any more. Returns true if there are
    /// actions.
    pub fn end(&mut self, now: Time, memory: &impl LockMemory) -> bool {
        self.now = now;
        let hasty = self.bugs.has(Bug::PassLostLockAtOnce);
        for number in self.ending.iter().copied().collect::<Vec<_>>() {
            if let Some(lock) = self.locks.get(&number).copied()
                && let State::Ending { endpoint, end } = lock.state
                && (hasty || !memory.is_using(lock.id, lock.claim.page()))
            {
                self.set(number, None);
                let writes = lock.claim.mode() == LockMode::Write;
                let forgets = self.bugs.has(Bug::ForgetLineCaches);
                let writer = Some(lock.id).filter(|_| writes && !forgets);
                self.unlock(endpoint, number, end, writer);
            }
        }
        !self.actions.is_empty()
    }
}
