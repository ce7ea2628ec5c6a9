//! Exactly-once exchange of objects between racks: a rack allocates objects in another one, and
//! returns objects to the rack that has their page. Objects of dead clients return the same way.
//!
//! Both sides keep a durable record of the last exchange of each pair of racks. The requester
//! stores its record before it sends the request, and repeats the request until it is answered. The
//! server stores its record before it changes anything, and answers a repeated request from the
//! record. See docs/design/exchange.md.

mod event;
mod record;
mod requester;
mod resume;
mod returns;
mod server;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClientId, GlobalAddr, MemoryId, PageId, PageSize, RackId};

use crate::Time;
use crate::planted_bugs::{Bugs, Sound};

pub use event::{CallResult, Caller, ClientThread, ExchangeAction, ExchangeEvent, Obstacle};
pub use record::{
    AskedRecord, AskedState, BATCH, ExchangeKind, PeerRecord, ServedRecord, ServedState,
};
use requester::{Active, Allocation};
use returns::{Release, Return};
use server::{Allocating, Deferred};

/// The parameters of exchanges.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeRules {
    /// The pool's page size.
    pub page_size: PageSize,
    /// The time after which a caller is told that a rack does not answer.
    pub timeout: Duration,
    /// How long a request to free objects waits for a page that moves.
    pub defer: Duration,
    /// The time between two looks at a page that moves, and between two questions about a home.
    pub again: Duration,
}

/// The rack and its memory, to which its sequence numbers belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeIdentity {
    /// The rack.
    pub rack: RackId,
    /// Its memory.
    pub memory: MemoryId,
}

/// The objects of a rack's memory and of its clients' files.
pub trait ObjectMemory {
    /// Returns true if the address is an allocated object of a page in this rack.
    fn is_allocated(&self, addr: GlobalAddr) -> bool;
    /// Returns true if the object is allocated and `client` may free it; `None`: another rack.
    fn may_free(&self, addr: GlobalAddr, client: Option<ClientId>) -> bool;
    /// Returns a free object of at least `bytes` bytes. Nothing else takes it before the actions
    /// that follow are executed.
    fn candidate(&self, bytes: u64) -> Option<GlobalAddr>;
    /// Returns the number of free frames.
    fn free_frames(&self) -> u32;
    /// Returns true if the caller waits for objects and its inbox is empty.
    fn takes(&self, caller: Caller) -> bool;
    /// Returns true if a cell from which the daemon may take objects holds this one: a cell of the
    /// outbox, or any cell if the client has gone.
    fn holds(&self, owner: ClientThread, addr: GlobalAddr) -> bool;
    /// Returns what the cells of all clients hold.
    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)>;
}

/// Where a page is, for freeing an object of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Here and at rest: live or free.
    Here,
    /// Here or on its way, and moving, shared or leaving.
    Moving,
    /// Lost on its way here.
    Lost,
    /// In another rack.
    Elsewhere,
}

/// Objects, and what the rack knows about pages.
pub(crate) trait ObjectView: ObjectMemory {
    /// Returns where a page is.
    fn place(&self, page: PageId) -> Place;
    /// Returns true if the page is in a frame of this rack.
    fn is_here(&self, page: PageId) -> bool;
    /// Returns the presumed home of a page that is not here.
    fn home_of(&self, page: PageId) -> Option<RackId>;
}

/// The exchanges with one other rack.
#[derive(Debug, Default)]
struct Peer {
    asked: AskedRecord,
    served: ServedRecord,
    /// The exchange in the state `Sent`.
    active: Option<Active>,
    /// When the current exchange is overdue. Callers that wait for its end are then refused.
    overdue_at: Time,
    /// The pages that have arrived in this rack since the active allocation began.
    arrived: BTreeSet<PageId>,
    /// Allocations that wait for the current exchange to end.
    waiting: VecDeque<Allocation>,
    /// A request of the other rack that waits for a page.
    deferred: Option<Deferred>,
}

impl Peer {
    /// Returns the deadline of a caller that waits for the current exchange to end.
    fn limit(&self, deadline: Time) -> Time {
        if self.asked.state == AskedState::Idle { deadline } else { deadline.min(self.overdue_at) }
    }
}

/// All exchanges of a rack.
///
/// The shell executes each action before it passes the next event.
#[derive(Debug)]
pub(crate) struct Exchanges<B = Sound> {
    rules: ExchangeRules,
    own: ExchangeIdentity,
    bugs: B,
    peers: BTreeMap<RackId, Peer>,
    /// Objects that have to be freed and are in no exchange.
    returns: Vec<Return>,
    releases: BTreeMap<u64, Release>,
    /// The allocation that is being executed for another rack.
    allocating: Option<Allocating>,
    /// Gone clients of which a return has ended in the current event.
    ended: BTreeSet<ClientId>,
    /// The last number drawn, for releases and for the order of arrival.
    last: u64,
    actions: VecDeque<ExchangeAction>,
}

impl<B: Bugs> Exchanges<B> {
    pub(crate) const fn new(rules: ExchangeRules, own: ExchangeIdentity, bugs: B) -> Self {
        Self {
            rules,
            own,
            bugs,
            peers: BTreeMap::new(),
            returns: Vec::new(),
            releases: BTreeMap::new(),
            allocating: None,
            ended: BTreeSet::new(),
            last: 0,
            actions: VecDeque::new(),
        }
    }

    pub(crate) const fn own(&self) -> ExchangeIdentity {
        self.own
    }

    pub(crate) fn handle(&mut self, now: Time, view: &impl ObjectView, event: ExchangeEvent) {
        match event {
            ExchangeEvent::Restarted(records) => self.resume(now, view, records),
            ExchangeEvent::Allocate { caller, rack, bytes, count } => {
                self.allocate(now, view, caller, rack, bytes, count);
            }
            ExchangeEvent::Return { owner, caller, addrs, refused } => {
                self.return_objects(now, owner, caller, addrs, refused);
            }
            ExchangeEvent::Answered(rack, reply) => self.answered(now, view, rack, reply),
            ExchangeEvent::Unanswered(rack) => self.send(rack),
            ExchangeEvent::Requested(ask, request) => self.requested(now, view, ask, request),
            ExchangeEvent::Located(page, home) => self.located(now, view, page, home),
        }
        self.finish_event(now, view);
    }

    fn finish_event(&mut self, now: Time, view: &impl ObjectView) {
        self.begin_queued(now, view);
        for client in core::mem::take(&mut self.ended) {
            if !self.returns_of(client) {
                self.act(ExchangeAction::Returned(client));
            }
        }
    }

    pub(crate) fn poll(&mut self) -> Option<ExchangeAction> {
        self.actions.pop_front()
    }

    /// Returns true if [`Self::continue_allocation`] has to be called once all actions are
    /// executed.
    pub(crate) const fn is_allocating(&self) -> bool {
        self.allocating.is_some()
    }

    /// A page word has changed: what waits for the page is looked at again.
    pub(crate) fn page_changed(&mut self, page: PageId) {
        self.returns.iter_mut().for_each(|one| one.page_changed(page));
        for deferred in self.peers.values_mut().filter_map(|peer| peer.deferred.as_mut()) {
            deferred.again = Time::ZERO;
        }
    }

    /// A swap has brought a page here, perhaps with objects of an answer that is under way.
    pub(crate) fn page_arrived(&mut self, page: PageId) {
        for peer in self.peers.values_mut() {
            if matches!(peer.active, Some(Active::Allocate(_))) {
                peer.arrived.insert(page);
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let returns = self.returns.iter().filter_map(Return::due);
        let releases = self.releases.values().map(|release| release.deadline);
        let deferred = self.peers.values().filter_map(|peer| peer.deferred.as_ref());
        let deferred = deferred.map(|deferred| deferred.again.min(deferred.until));
        let active = self.peers.values().filter_map(|peer| peer.active.as_ref()?.deadline());
        let waiting = self
            .peers
            .values()
            .flat_map(|peer| peer.waiting.iter().map(|one| peer.limit(one.deadline)));
        let queued = self.returns.iter().filter_map(|one| one.gives_up_at(&self.peers));
        returns.chain(releases).chain(deferred).chain(active).chain(waiting).chain(queued).min()
    }

    /// Does what is due: looks at pages again, repeats questions, and answers callers that have
    /// waited long enough.
    pub(crate) fn deadline_passed(&mut self, now: Time, view: &impl ObjectView) {
        self.look_at_returns(now, view);
        self.look_at_deferred(now, view);
        self.expire_releases(now);
        self.expire_allocations(now);
        self.finish_event(now, view);
    }

    /// Returns true if objects that the client's cells hold are being returned.
    pub(crate) fn returns_of(&self, client: ClientId) -> bool {
        self.returns.iter().any(|one| one.is_of(client))
    }

    /// Returns the number of exchanges and returns that are not finished.
    pub(crate) fn under_way(&self) -> usize {
        let busy = |peer: &&Peer| peer.asked.state != AskedState::Idle || peer.deferred.is_some();
        self.returns.len() + self.releases.len() + self.peers.values().filter(busy).count()
    }

    fn page(&self, addr: GlobalAddr) -> Option<PageId> {
        addr.page(self.rules.page_size)
    }

    fn act(&mut self, action: ExchangeAction) {
        self.actions.push_back(action);
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}
