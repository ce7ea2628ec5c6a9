//! Recovery of what a gone client has left: returns the objects of its arrays, resolves the
//! publications that its records leave in doubt, and returns the objects that are unreachable then.
//!
//! The machine reads the records of gone clients and asks for the words that decide: the link, the
//! owner word, the stamp, the place of a borrowed object. Each decision is one store or one swap;
//! after a crash the next daemon begins anew with the record. See docs/design/publication.md.

mod event;
mod resolve;
mod words;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClientId, GlobalAddr, PageId, PageSize, RackId, ReservationState};

use crate::Time;
use crate::exchange::{ClientThread, Place};
use crate::planted_bugs::{Bug, Bugs, Sound};

pub use event::{Decision, RecordPlace, RecoveryAction, RecoveryEvent, WordAccess, WordAnswer};
use resolve::Step;

/// The parameters of the recovery of reservations.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryRules {
    /// The pool's page size.
    pub page_size: PageSize,
    /// The time after which a rack, a page that moves, or the metadata server is asked again.
    pub again: Duration,
    /// How long after a restart racks may still execute requests of the earlier daemon, and its
    /// one-sided operations may still land. Until then its operations for clients are under way.
    pub earlier_requests: Duration,
}

/// The cells and the reservation records of clients' files.
pub trait ReservationMemory {
    /// Returns the objects in the arrays of a client's threads: inbox, outbox and magazines.
    fn array_objects(&self, client: ClientId) -> impl Iterator<Item = (ClientThread, GlobalAddr)>;
    /// Returns the records of a client that are not free.
    fn reservations(&self, client: ClientId) -> impl Iterator<Item = RecordPlace>;
    /// Returns what a record says.
    fn reservation(&self, place: RecordPlace) -> ReservationState;
}

/// Records, and what the rack knows about pages.
pub(crate) trait RecoveryView: ReservationMemory {
    /// Returns where a page is.
    fn place(&self, page: PageId) -> Place;
    /// Returns true if the page is here and can be read.
    fn is_readable(&self, page: PageId) -> bool;
    /// Returns the presumed home of a page that is not here, unless it is known to be dead.
    fn living_home_of(&self, page: PageId) -> Option<RackId>;
    /// Returns true if the rack's lease with the metadata server is known to have expired.
    fn is_dead(&self, rack: RackId) -> bool;
}

/// What a resolution waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// The answer to the question with this number.
    Answer(u64),
    /// The metadata server, which is asked again at this time.
    Home(Time),
    /// This time, or a change of the page's word.
    Until(Time),
}

/// A record that is not resolved.
#[derive(Clone, Copy, Debug)]
struct Resolution {
    step: Step,
    wait: Wait,
    /// The page of the word that decides the step.
    page: Option<PageId>,
    /// The rack that is asked, and whether the metadata server has named it.
    asked: Option<(RackId, bool)>,
}

/// The records of gone clients.
///
/// The shell executes each action before it passes the next event.
#[derive(Debug)]
pub(crate) struct Recovery<B = Sound> {
    rules: RecoveryRules,
    own: RackId,
    bugs: B,
    /// Until then operations of an earlier daemon may be under way.
    earlier_requests_end: Time,
    /// Gone clients of which operations of this daemon may be under way.
    unsettled: BTreeSet<ClientId>,
    /// Gone clients of which only operations of an earlier daemon may be under way.
    waiting: BTreeSet<ClientId>,
    open: BTreeMap<RecordPlace, Resolution>,
    /// The number of the last question.
    last: u64,
    actions: VecDeque<RecoveryAction>,
}

impl<B: Bugs> Recovery<B> {
    pub(crate) const fn new(
        rules: RecoveryRules,
        own: RackId,
        earlier_requests_end: Time,
        bugs: B,
    ) -> Self {
        Self {
            rules,
            own,
            bugs,
            earlier_requests_end,
            unsettled: BTreeSet::new(),
            waiting: BTreeSet::new(),
            open: BTreeMap::new(),
            last: 0,
            actions: VecDeque::new(),
        }
    }

    pub(crate) fn handle(&mut self, now: Time, view: &impl RecoveryView, event: RecoveryEvent) {
        match event {
            RecoveryEvent::ClientGone(client) => {
                self.unsettled.insert(client);
                if self.bugs.has(Bug::ResolveUnderOperations) {
                    self.operations_ended(now, view, client);
                }
            }
            RecoveryEvent::OperationsEnded(client) => self.operations_ended(now, view, client),
            RecoveryEvent::WordAnswered { question, answer } => {
                self.answered(now, view, question, answer);
            }
        }
    }

    pub(crate) fn poll(&mut self) -> Option<RecoveryAction> {
        self.actions.pop_front()
    }

    fn operations_ended(&mut self, now: Time, view: &impl RecoveryView, client: ClientId) {
        if self.unsettled.remove(&client) {
            self.waiting.insert(client);
            if now >= self.settles_at() {
                self.settle(now, view, client);
            }
        }
    }

    /// Returns when no operation of an earlier daemon is under way any more.
    fn settles_at(&self) -> Time {
        let is_early = self.bugs.has(Bug::ResolveBeforeEarlierRequestsEnd);
        if is_early { Time::ZERO } else { self.earlier_requests_end }
    }

    /// No operation of the client is under way: returns what its arrays hold, and begins to resolve
    /// its records. Before, a write for the client could land in memory that others have got.
    fn settle(&mut self, now: Time, view: &impl RecoveryView, client: ClientId) {
        self.waiting.remove(&client);
        let mut held = BTreeMap::<ClientThread, BTreeSet<GlobalAddr>>::new();
        for (owner, addr) in view.array_objects(client) {
            held.entry(owner).or_default().insert(addr);
        }
        for (owner, addrs) in held {
            self.act(RecoveryAction::Return(owner, addrs.into_iter().collect()));
        }
        for place in view.reservations(client).collect::<Vec<_>>() {
            self.begin(now, view, place);
        }
        self.report_resolved(client);
    }

    /// A page word has changed: what waits for the page is looked at again.
    pub(crate) fn page_changed(&mut self, page: PageId) {
        for one in self.open.values_mut().filter(|one| one.page == Some(page)) {
            if let Wait::Until(at) = &mut one.wait {
                *at = Time::ZERO;
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let waiting = self.waiting.first().map(|_| self.settles_at());
        self.open.values().filter_map(Resolution::due).chain(waiting).min()
    }

    /// Looks again at one client or record whose time has come. Its actions are executed before the
    /// next one is looked at.
    pub(crate) fn deadline_passed(&mut self, now: Time, view: &impl RecoveryView) {
        if let Some(client) = self.waiting.first().copied().filter(|_| now >= self.settles_at()) {
            return self.settle(now, view, client);
        }
        let is_due = |one: &Resolution| one.due().is_some_and(|at| now >= at);
        let due = self.open.iter().find(|(_, one)| is_due(one)).map(|(place, _)| *place);
        if let Some(place) = due {
            self.look_at(now, view, place);
        }
    }

    /// Returns the gone clients whose last operations the shell has to report.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = ClientId> {
        self.unsettled.iter().copied()
    }

    /// Returns true if the client has gone and its records are not resolved.
    pub(crate) fn is_resolving(&self, client: ClientId) -> bool {
        self.unsettled.contains(&client)
            || self.waiting.contains(&client)
            || self.open.keys().any(|place| place.owner.client == client)
    }

    /// Returns the number of clients and records that are not resolved.
    pub(crate) fn under_way(&self) -> usize {
        self.unsettled.len() + self.waiting.len() + self.open.len()
    }

    /// Returns the page and the rack of the question with this number.
    pub(crate) fn asked(&self, question: u64) -> Option<(PageId, RackId)> {
        let one = self.open.values().find(|one| one.wait == Wait::Answer(question))?;
        Some((one.page?, one.asked?.0))
    }

    /// The record is resolved, or nothing can be known about it.
    fn end(&mut self, place: RecordPlace) {
        if self.open.remove(&place).is_some() {
            self.report_resolved(place.owner.client);
        }
    }

    fn report_resolved(&mut self, client: ClientId) {
        if !self.is_resolving(client) {
            self.act(RecoveryAction::Resolved(client));
        }
    }

    fn return_object(&mut self, owner: ClientThread, object: u64) {
        let addr = GlobalAddr::from_raw(object);
        if !addr.is_null() {
            self.act(RecoveryAction::Return(owner, Vec::from([addr])));
        }
    }

    fn act(&mut self, action: RecoveryAction) {
        self.actions.push_back(action);
    }
}

impl Resolution {
    const fn due(&self) -> Option<Time> {
        match self.wait {
            Wait::Home(at) | Wait::Until(at) => Some(at),
            Wait::Answer(_) => None,
        }
    }
}
