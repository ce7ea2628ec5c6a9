//! Location leases: who may use a page of another rack by one-sided operations. The rules are the
//! machines of `rackpool_proto::lease`; here is what they say and are told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, Incarnation, PageId, RackId};
use rackpool_proto::Time;
use rackpool_proto::lease::{
    EndpointToken, HolderAction, HolderEvent, HomeAction, HomeEvent, Lease, LeaseHolder, LeaseHome,
    LeaseId, LeaseKind, LeaseRules, Users,
};
use rackpool_proto::planted::Sound;
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::peers::Purpose;
use super::swap::MESSAGE;

/// A lease, the endpoint it is good for, and whose right to use the page is called back.
type GrantedLease = (PageId, EndpointToken, LeaseId, Users);

/// All leases, given and held.
#[derive(Debug)]
pub(super) struct Leases {
    rules: LeaseRules,
    /// The start of the machines' clock.
    start: Instant,
    home: LeaseHome,
    holder: LeaseHolder,
    /// Until then leases of another memory of this rack may be in use.
    forgotten_end: Time,
    /// The home's machine has been told something since its deadline was looked at.
    home_told: bool,
    home_due: Option<Time>,
    /// Called back, and neither answered nor in vain.
    called_back: BTreeSet<GrantedLease>,
    /// Endpoints over which nothing lands here any more, and which have not ended.
    fenced: BTreeSet<EndpointToken>,
    /// Homes that wait for a lease of theirs.
    waiting_homes: BTreeMap<GrantedLease, Vec<RequestId>>,
    /// Where pages of other racks were found last.
    found: BTreeMap<PageId, Found>,
}

/// Where a page was found, and what it was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) home: RackId,
    pub(super) usage: u64,
    /// It moves, and its home writes it for others.
    pub(super) forwards: bool,
    /// When it has gone there from this rack, if nothing has been heard of it since.
    pub(super) gone: Option<Instant>,
}

/// The fabric never gives a number twice, for endpoints that it accepted and connected alike.
pub(super) const fn token(endpoint: EndpointId) -> EndpointToken {
    EndpointToken(endpoint.0)
}

/// The endpoint of a token.
pub(super) const fn endpoint_of(token: EndpointToken) -> EndpointId {
    EndpointId(token.0)
}

impl Leases {
    /// No leases. `restarted`: an earlier daemon may have given some.
    pub(super) fn new(
        start: Instant,
        rules: LeaseRules,
        life: Incarnation,
        restarted: bool,
    ) -> Self {
        // Nanoseconds: they grow faster than leases and questions are numbered.
        let first = life.0;
        let wait = rules.good_at_home().saturating_add(rules.flight);
        let forgotten_end = if restarted { Time::ZERO } else { Time::ZERO.after(wait) };
        Self {
            rules,
            start,
            forgotten_end,
            home: LeaseHome::new(Time::ZERO, rules, LeaseId(first), restarted, Sound),
            holder: LeaseHolder::new(Time::ZERO, rules, first, Sound),
            home_told: false,
            home_due: None,
            called_back: BTreeSet::new(),
            fenced: BTreeSet::new(),
            waiting_homes: BTreeMap::new(),
            found: BTreeMap::new(),
        }
    }

    /// The time of the machines.
    pub(super) fn at(&self, now: Instant) -> Time {
        Time::ZERO.after(now.saturating_duration_since(self.start))
    }

    /// Whether this memory is so new that leases of pages of the one before it may be in use.
    pub(super) fn may_be_used_by_the_dead(&self, now: Instant) -> bool {
        self.at(now) < self.forgotten_end
    }

    /// Whether the home's machine wants to be woken some time.
    pub(super) const fn has_deadlines(&self) -> bool {
        self.home_told || self.home_due.is_some()
    }

    /// The number of a question for a page's lease, which is sent now.
    pub(super) fn ask(&mut self, now: Instant, page: PageId) -> u64 {
        let now = self.at(now);
        self.holder.ask(now, page)
    }

    /// The lease of a page, if it is good, and good for that.
    pub(super) fn lease(&self, now: Instant, page: PageId, access: Access) -> Option<Lease> {
        let lease = self.holder.lease(self.at(now), page)?;
        (access == Access::Read || lease.kind == LeaseKind::Write).then_some(lease)
    }

    /// The lease of a page, if it is good, and until when it is.
    pub(super) fn lease_until(&self, now: Instant, page: PageId) -> Option<(Lease, Time)> {
        self.holder.lease_until(self.at(now), page)
    }

    /// Clients read a copy of the page: its lease is asked for again in time.
    pub(super) fn used_by_copy(&mut self, now: Instant, page: PageId) {
        let now = self.at(now);
        self.holder.used_by_copy(now, page);
    }

    /// Begins an operation; [`DataPlane::operation_ended`] has to follow.
    pub(super) fn begin(&mut self, now: Instant, page: PageId, access: Access) -> Option<Lease> {
        let now = self.at(now);
        self.holder.begin(now, page, access)
    }

    /// Where a page of another rack was found last.
    pub(super) fn found(&self, page: PageId) -> Option<Found> {
        self.found.get(&page).copied()
    }

    /// A page lies in another rack, as that rack has said.
    pub(super) fn note_found(&mut self, page: PageId, found: Found) {
        self.found.insert(page, found);
    }

    /// The metadata server has said where a page is.
    pub(super) fn note_home(&mut self, page: PageId, home: RackId) {
        let usage = self.found.get(&page).map_or(0, |found| found.usage);
        self.found.insert(page, Found { home, usage, forwards: false, gone: None });
    }

    /// A page has gone to another rack.
    pub(super) fn note_gone(&mut self, now: Instant, page: PageId, home: RackId) {
        self.note_home(page, home);
        if let Some(found) = self.found.get_mut(&page) {
            found.gone = Some(now);
        }
    }

    /// The home of the page does not write it for others, or not any more.
    pub(super) fn note_unforwarded(&mut self, page: PageId) {
        if let Some(found) = self.found.get_mut(&page) {
            found.forwards = false;
        }
    }

    /// The home of a page that it writes for this rack without a lease for that: it goes away, or
    /// has come from here no longer than a lease ago.
    pub(super) fn writing_home(&self, now: Instant, page: PageId) -> Option<RackId> {
        let found = self.found(page)?;
        match found.gone {
            Some(gone) if now < gone + self.rules.lease => Some(found.home),
            _ => self.forward(now, page),
        }
    }

    /// The home of a page that is leased for reading, if it writes it for others.
    pub(super) fn forward(&self, now: Instant, page: PageId) -> Option<RackId> {
        let (lease, found) = (self.lease(now, page, Access::Read)?, self.found(page)?);
        let is_meant = found.forwards && lease.home == found.home && lease.kind == LeaseKind::Read;
        is_meant.then_some(found.home)
    }

    /// Its home has said that the page is not there.
    pub(super) fn forget(&mut self, page: PageId) {
        self.found.remove(&page);
        self.holder.forget(page);
    }

    /// What was leased from this rack is gone with its memory.
    pub(super) fn forget_home(&mut self, home: RackId) {
        self.found.retain(|_, found| found.home != home);
        self.holder.forget_home(home);
    }

    /// The lease of a page is not used any more.
    pub(super) fn drop_lease(&mut self, page: PageId) {
        self.holder.forget(page);
    }
}

impl DataPlane {
    /// Nobody may write this page from afar any more, or use it at all. [`Self::page_clean`]
    /// follows, perhaps before this returns; meanwhile, and as long as the page's word does not
    /// allow more, nobody gets a lease that is good for it.
    pub(super) fn page_needed(&mut self, page: PageId, users: Users) -> anyhow::Result<()> {
        self.tell_home(HomeEvent::PageNeeded(page, users))
    }

    /// The page is not needed any more: nobody waits for [`Self::page_clean`].
    pub(super) fn page_spared(&mut self, page: PageId) -> anyhow::Result<()> {
        self.tell_home(HomeEvent::PageSpared(page))
    }

    /// A page that was needed is written by nobody from afar, or used by nobody.
    fn page_clean(&mut self, page: PageId, users: Users) {
        if users == Users::Everyone {
            self.leaving.clean(page);
        }
        self.swap_page_clean(page, users);
        self.share_page_clean(page);
    }

    /// Another rack asks for a lease over this endpoint of a page that lies here, and whose word
    /// allows `most`.
    pub(super) fn grant(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        most: LeaseKind,
    ) -> Option<(LeaseId, LeaseKind)> {
        self.peers.rack_at(endpoint)?;
        if self.leases.fenced.contains(&token(endpoint)) {
            return None;
        }
        let now = self.leases.at(self.now());
        self.leases.home.grant(now, page, token(endpoint), most)
    }

    fn tell_home(&mut self, event: HomeEvent) -> anyhow::Result<()> {
        let now = self.now();
        let at = self.leases.at(now);
        self.leases.home.handle(at, event);
        self.leases.home_told = true;
        while let Some(action) = self.leases.home.poll() {
            match action {
                HomeAction::Revoke(page, endpoint, lease, users) => {
                    self.call_back(now, (page, endpoint, lease, users))?;
                }
                HomeAction::Fence(endpoint) => {
                    let endpoint = endpoint_of(endpoint);
                    if let Some(rack) = self.peers.rack_at(endpoint) {
                        tracing::warn!("{rack} does not give a lease back: it is cut off");
                    }
                    // Torn down first, so that no late write can land; then its leases are void.
                    self.fabric.disconnect(endpoint);
                }
                HomeAction::Clean(page, users) => self.page_clean(page, users),
            }
        }
        Ok(())
    }

    /// A request that was sent arrives unless its endpoint ends: it is not sent again meanwhile.
    fn call_back(&mut self, now: Instant, granted: GrantedLease) -> anyhow::Result<()> {
        if !self.leases.called_back.insert(granted) {
            return Ok(());
        }
        let (page, endpoint, lease, users) = granted;
        let keep_reading = users == Users::Writers;
        let request = PeerRequest::Revoke { page, lease: lease.0, keep_reading };
        // The machine fences before.
        let deadline = now + self.leases.rules.grace * 2;
        let purpose = Purpose::Revoke { page, lease, users };
        self.ask_over(endpoint_of(endpoint), request, purpose, deadline)
    }

    /// The other rack has given a lease back, or the right to write, over the endpoint that the
    /// lease is good for.
    pub(super) fn returned(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        lease: LeaseId,
        users: Users,
    ) -> anyhow::Result<()> {
        let endpoint = token(endpoint);
        self.leases.called_back.remove(&(page, endpoint, lease, users));
        self.tell_home(HomeEvent::Returned(page, endpoint, lease, users))
    }

    /// A call could not be made or was not answered: it may be made again.
    pub(super) fn call_back_failed(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        lease: LeaseId,
        users: Users,
    ) {
        self.leases.called_back.remove(&(page, token(endpoint), lease, users));
    }

    /// Does what is due with time.
    pub(super) fn drive_leases(&mut self, now: Instant) -> anyhow::Result<()> {
        if std::mem::take(&mut self.leases.home_told) {
            self.leases.home_due = self.leases.home.deadline();
        }
        if self.leases.home_due.is_some_and(|due| self.leases.at(now) >= due) {
            self.tell_home(HomeEvent::DeadlinePassed)?;
        }
        Ok(())
    }

    /// A page's home calls a lease back, or the right to write. It is answered when the operations
    /// on their way have ended.
    pub(super) fn revoked(
        &mut self,
        page: PageId,
        lease: LeaseId,
        users: Users,
        ask: RequestId,
    ) -> anyhow::Result<()> {
        let endpoint = token(ask.endpoint);
        // Before it is answered.
        self.hide_copy(page)?;
        self.leases.waiting_homes.entry((page, endpoint, lease, users)).or_default().push(ask);
        self.tell_holder(HolderEvent::Revoked(page, endpoint, lease, users))
    }

    /// An operation that [`Leases::begin`] began has ended, well or not.
    pub(super) fn operation_ended(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        access: Access,
    ) -> anyhow::Result<()> {
        self.tell_holder(HolderEvent::OperationEnded(page, token(endpoint), access))
    }

    fn tell_holder(&mut self, event: HolderEvent) -> anyhow::Result<()> {
        // Nothing that happens to a holder depends on the clock.
        self.leases.holder.handle(Time::ZERO, event);
        self.do_for_holder()
    }

    /// Gives leases back, and asks for new ones in time.
    pub(super) fn do_for_holder(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.leases.holder.poll() {
            match action {
                HolderAction::Return(page, endpoint, lease, users) => {
                    let granted = (page, endpoint, lease, users);
                    match self.leases.waiting_homes.remove(&granted) {
                        Some(asks) => {
                            for ask in asks {
                                self.reply(ask, &PeerReply::Returned)?;
                            }
                        }
                        None if users == Users::Everyone => {
                            self.give_back_unasked(page, endpoint_of(endpoint), lease)?;
                        }
                        // The right to write goes back only when it is called back.
                        None => {}
                    }
                }
                HolderAction::Renew(page, home) => self.renew(page, home)?,
            }
        }
        Ok(())
    }

    /// A page has come here. Its old home need not call back what was leased from it, and hears of
    /// that before it hears that the page can be read here.
    pub(super) fn arrived(&mut self, page: PageId) -> anyhow::Result<()> {
        // Before the lease is back.
        self.hide_copy(page)?;
        self.tell_holder(HolderEvent::Arrived(page))
    }

    /// This rack has left a page that it gives: its clients may write it at its new home.
    pub(super) fn left(&mut self, page: PageId) -> anyhow::Result<()> {
        self.tell_holder(HolderEvent::Quiesced(page))?;
        self.finish_leased(page);
        Ok(())
    }

    fn give_back_unasked(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        lease: LeaseId,
    ) -> anyhow::Result<()> {
        let request = PeerRequest::Return { page, lease: lease.0 };
        self.ask_over(endpoint, request, Purpose::Swap, self.now() + MESSAGE)
    }

    /// A page's home has answered a question with a lease.
    pub(super) fn granted(
        &mut self,
        page: PageId,
        question: u64,
        lease: Lease,
    ) -> anyhow::Result<()> {
        self.tell_holder(HolderEvent::Granted { page, question, lease })?;
        self.keep(page)
    }

    /// Nothing lands here any more that comes over the endpoint: what was leased over it is void.
    /// What this side has posted may still be under way.
    pub(super) fn endpoint_fenced(&mut self, endpoint: EndpointId) -> anyhow::Result<()> {
        self.forget_asks(|ask| ask.endpoint == endpoint);
        let endpoint = token(endpoint);
        self.leases.fenced.insert(endpoint);
        self.tell_home(HomeEvent::EndpointEnded(endpoint))
    }

    /// An endpoint has ended: nothing can come over it any more, so its leases are void.
    pub(super) fn endpoint_ended(&mut self, endpoint: EndpointId) -> anyhow::Result<()> {
        let endpoint = token(endpoint);
        self.leases.fenced.remove(&endpoint);
        self.leases.called_back.retain(|(_, over, ..)| *over != endpoint);
        self.leases.waiting_homes.retain(|(_, over, ..), _| *over != endpoint);
        self.tell_holder(HolderEvent::EndpointEnded(endpoint))?;
        self.tell_home(HomeEvent::EndpointEnded(endpoint))
    }
}
