//! Location leases: the timed right to use a page of another rack by one-sided operations. The
//! rules are the machines of `rackpool_proto::lease`; this module executes their actions and passes
//! them events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, Incarnation, PageId, RackId};
use rackpool_proto::Time;
use rackpool_proto::lease::{
    EndpointToken, GrantedLease, HolderAction, HolderEvent, HomeAction, HomeEvent, Lease,
    LeaseHolder, LeaseHome, LeaseId, LeaseKind, LeaseRules, Revocation, TimedLease, Users,
};
use rackpool_proto::planted_bugs::Sound;
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::DataPlane;
use super::peers::Purpose;
use super::swap::MESSAGE;

/// All leases, granted and held.
#[derive(Debug)]
pub(super) struct Leases {
    rules: LeaseRules,
    /// The zero of the machines' clock.
    start: Instant,
    home: LeaseHome,
    holder: LeaseHolder,
    /// Until this time, leases granted by an earlier memory of this rack may be in use.
    forgotten_end: Time,
    /// Set when the home machine has had an event since its deadline was read.
    home_told: bool,
    home_due: Option<Time>,
    /// Revocations that are under way: neither answered nor failed.
    called_back: BTreeSet<Revocation>,
    /// Endpoints from which nothing can land here any more and that have not ended.
    fenced: BTreeSet<EndpointToken>,
    /// Requests of homes that wait for the return of their lease.
    waiting_homes: BTreeMap<Revocation, Vec<RequestId>>,
    /// Where pages of other racks were last found.
    found: BTreeMap<PageId, KnownLocation>,
}

/// The last known location of a page and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownLocation {
    pub(super) home: RackId,
    pub(super) usage: u64,
    /// Set while the page moves and its home executes writes for others.
    pub(super) forwards: bool,
    /// When the page went there from this rack, if this rack has no later information.
    pub(super) gone: Option<Instant>,
}

/// The token of an endpoint. The fabric never reuses a number, for accepted and connected endpoints
/// alike.
pub(super) const fn token(endpoint: EndpointId) -> EndpointToken {
    EndpointToken(endpoint.0)
}

/// The endpoint of a token.
pub(super) const fn endpoint_of(token: EndpointToken) -> EndpointId {
    EndpointId(token.0)
}

impl Leases {
    /// Creates the state without leases. `restarted`: an earlier daemon may have granted some.
    pub(super) fn new(
        start: Instant,
        rules: LeaseRules,
        life: Incarnation,
        restarted: bool,
    ) -> Self {
        // The incarnation, in nanoseconds, grows faster than the numbers of leases and questions.
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

    /// Converts to the machines' time.
    pub(super) fn at(&self, now: Instant) -> Time {
        Time::ZERO.after(now.saturating_duration_since(self.start))
    }

    /// Returns true while leases of pages of this rack's previous memory may be in use.
    pub(super) fn may_be_used_by_the_dead(&self, now: Instant) -> bool {
        self.at(now) < self.forgotten_end
    }

    /// Returns true if the home machine has, or may have, a deadline.
    pub(super) const fn has_deadlines(&self) -> bool {
        self.home_told || self.home_due.is_some()
    }

    /// Returns the number of a lease request for a page, which the caller sends now.
    pub(super) fn ask(&mut self, now: Instant, page: PageId) -> u64 {
        let now = self.at(now);
        self.holder.ask(now, page)
    }

    /// Returns the page's lease if it is valid and permits this access.
    pub(super) fn lease(&self, now: Instant, page: PageId, access: Access) -> Option<Lease> {
        let lease = self.holder.lease(self.at(now), page)?;
        (access == Access::Read || lease.kind == LeaseKind::Write).then_some(lease)
    }

    /// Returns the page's lease and its end, if it is valid.
    pub(super) fn lease_until(&self, now: Instant, page: PageId) -> Option<TimedLease> {
        self.holder.lease_until(self.at(now), page)
    }

    /// Records that clients read a copy of the page, so that its lease is renewed in time.
    pub(super) fn used_by_copy(&mut self, now: Instant, page: PageId) {
        let now = self.at(now);
        self.holder.used_by_copy(now, page);
    }

    /// Begins an operation under the page's lease. The caller must report its end with
    /// [`DataPlane::operation_ended`].
    pub(super) fn begin(&mut self, now: Instant, page: PageId, access: Access) -> Option<Lease> {
        let now = self.at(now);
        self.holder.begin(now, page, access)
    }

    /// Returns where a page of another rack was last found.
    pub(super) fn found(&self, page: PageId) -> Option<KnownLocation> {
        self.found.get(&page).copied()
    }

    /// Records a page's location as another rack has reported it.
    pub(super) fn note_found(&mut self, page: PageId, found: KnownLocation) {
        self.found.insert(page, found);
    }

    /// Records the home that the metadata server has named.
    pub(super) fn note_home(&mut self, page: PageId, home: RackId) {
        let usage = self.found.get(&page).map_or(0, |found| found.usage);
        self.found.insert(page, KnownLocation { home, usage, forwards: false, gone: None });
    }

    /// Records that a page has gone from this rack to another.
    pub(super) fn note_gone(&mut self, now: Instant, page: PageId, home: RackId) {
        self.note_home(page, home);
        if let Some(found) = self.found.get_mut(&page) {
            found.gone = Some(now);
        }
    }

    /// Records that the page's home does not write it for others any more.
    pub(super) fn note_unforwarded(&mut self, page: PageId) {
        if let Some(found) = self.found.get_mut(&page) {
            found.forwards = false;
        }
    }

    /// Returns the home that writes the page for this rack without a write lease: the page is
    /// leaving that home, or went there from this rack within the last lease time.
    pub(super) fn writing_home(&self, now: Instant, page: PageId) -> Option<RackId> {
        let found = self.found(page)?;
        match found.gone {
            Some(gone) if now < gone + self.rules.lease => Some(found.home),
            _ => self.forward(now, page),
        }
    }

    /// Returns the home of a page that is leased for reading, if the home executes writes for
    /// others.
    pub(super) fn forward(&self, now: Instant, page: PageId) -> Option<RackId> {
        let (lease, found) = (self.lease(now, page, Access::Read)?, self.found(page)?);
        let is_meant = found.forwards && lease.home == found.home && lease.kind == LeaseKind::Read;
        is_meant.then_some(found.home)
    }

    /// Forgets a page that its home does not have.
    pub(super) fn forget(&mut self, page: PageId) {
        self.found.remove(&page);
        self.holder.forget(page);
    }

    /// Forgets everything leased from a rack whose memory is gone.
    pub(super) fn forget_home(&mut self, home: RackId) {
        self.found.retain(|_, found| found.home != home);
        self.holder.forget_home(home);
    }

    /// Gives up the use of a page's lease.
    pub(super) fn drop_lease(&mut self, page: PageId) {
        self.holder.forget(page);
    }
}

impl DataPlane {
    /// Requires that no other rack writes the page (`Users::Writers`) or uses it
    /// (`Users::Everyone`). [`Self::page_clean`] is called when that holds, perhaps before this
    /// function returns. Until then, and while the page word does not allow more, no lease that
    /// would violate it is granted.
    pub(super) fn page_needed(&mut self, page: PageId, users: Users) -> anyhow::Result<()> {
        self.tell_home(HomeEvent::PageNeeded(page, users))
    }

    /// Ends the requirement of [`Self::page_needed`]: no code waits for [`Self::page_clean`] any
    /// more.
    pub(super) fn page_spared(&mut self, page: PageId) -> anyhow::Result<()> {
        self.tell_home(HomeEvent::PageSpared(page))
    }

    /// Called when no other rack writes, or uses, a needed page any more.
    fn page_clean(&mut self, page: PageId, users: Users) {
        if users == Users::Everyone {
            self.leaving.clean(page);
        }
        self.swap_page_clean(page, users);
        self.share_page_clean(page);
    }

    /// Grants another rack a lease over this endpoint of a page in this rack. `most` is the most
    /// that the page word allows.
    pub(super) fn grant(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        most: LeaseKind,
    ) -> Option<GrantedLease> {
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
                    self.call_back(now, Revocation { page, endpoint, lease, users })?;
                }
                HomeAction::Fence(endpoint) => {
                    let endpoint = endpoint_of(endpoint);
                    if let Some(rack) = self.peers.rack_at(endpoint) {
                        tracing::warn!("{rack} does not give a lease back: it is cut off");
                    }
                    // The endpoint is torn down first, so that no late write can land. Then its
                    // leases are void.
                    self.fabric.disconnect(endpoint);
                }
                HomeAction::Clean(page, users) => self.page_clean(page, users),
            }
        }
        Ok(())
    }

    /// Sends a revocation, unless one is under way: a request that was sent arrives unless its
    /// endpoint ends.
    fn call_back(&mut self, now: Instant, revocation: Revocation) -> anyhow::Result<()> {
        if !self.leases.called_back.insert(revocation) {
            return Ok(());
        }
        let Revocation { page, endpoint, lease, users } = revocation;
        let keep_reading = users == Users::Writers;
        let request = PeerRequest::Revoke { page, lease: lease.0, keep_reading };
        // The machine fences the endpoint before this deadline.
        let deadline = now + self.leases.rules.grace * 2;
        let purpose = Purpose::Revoke { page, lease, users };
        self.ask_over(endpoint_of(endpoint), request, purpose, deadline)
    }

    /// The other rack has returned a lease, or its right to write, over the lease's endpoint.
    pub(super) fn returned(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        lease: LeaseId,
        users: Users,
    ) -> anyhow::Result<()> {
        let endpoint = token(endpoint);
        self.leases.called_back.remove(&Revocation { page, endpoint, lease, users });
        self.tell_home(HomeEvent::Returned(page, endpoint, lease, users))
    }

    /// A revocation could not be sent or was not answered. It may be sent again.
    pub(super) fn call_back_failed(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        lease: LeaseId,
        users: Users,
    ) {
        let endpoint = token(endpoint);
        self.leases.called_back.remove(&Revocation { page, endpoint, lease, users });
    }

    /// Handles the deadlines of leases.
    pub(super) fn drive_leases(&mut self, now: Instant) -> anyhow::Result<()> {
        if std::mem::take(&mut self.leases.home_told) {
            self.leases.home_due = self.leases.home.deadline();
        }
        if self.leases.home_due.is_some_and(|due| self.leases.at(now) >= due) {
            self.tell_home(HomeEvent::DeadlinePassed)?;
        }
        Ok(())
    }

    /// A page's home revokes a lease, or the right to write. The answer is sent when the operations
    /// in progress have ended.
    pub(super) fn revoked(
        &mut self,
        page: PageId,
        lease: LeaseId,
        users: Users,
        ask: RequestId,
    ) -> anyhow::Result<()> {
        let endpoint = token(ask.endpoint);
        // Hide the published copy before the answer is sent.
        self.hide_copy(page)?;
        let revocation = Revocation { page, endpoint, lease, users };
        self.leases.waiting_homes.entry(revocation).or_default().push(ask);
        self.tell_holder(HolderEvent::Revoked(page, endpoint, lease, users))
    }

    /// An operation begun with [`Leases::begin`] has ended, successfully or not.
    pub(super) fn operation_ended(
        &mut self,
        page: PageId,
        endpoint: EndpointId,
        access: Access,
    ) -> anyhow::Result<()> {
        self.tell_holder(HolderEvent::OperationEnded(page, token(endpoint), access))
    }

    fn tell_holder(&mut self, event: HolderEvent) -> anyhow::Result<()> {
        // The holder machine's events do not depend on the clock.
        self.leases.holder.handle(Time::ZERO, event);
        self.do_for_holder()
    }

    /// Executes the holder machine's actions: returns leases and renews them in time.
    pub(super) fn do_for_holder(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.leases.holder.poll() {
            match action {
                HolderAction::Return(page, endpoint, lease, users) => {
                    let revocation = Revocation { page, endpoint, lease, users };
                    match self.leases.waiting_homes.remove(&revocation) {
                        Some(asks) => {
                            for ask in asks {
                                self.reply(ask, &PeerReply::Returned)?;
                            }
                        }
                        None if users == Users::Everyone => {
                            self.give_back_unasked(page, endpoint_of(endpoint), lease)?;
                        }
                        // The right to write is returned only on a revocation.
                        None => {}
                    }
                }
                HolderAction::Renew(page, home) => self.renew(page, home)?,
            }
        }
        Ok(())
    }

    /// A page has arrived here. Its lease is returned to the old home, which need not revoke it.
    /// The return reaches the old home before the report that the page can be read here.
    pub(super) fn arrived(&mut self, page: PageId) -> anyhow::Result<()> {
        // Hide the published copy before the lease is returned.
        self.hide_copy(page)?;
        self.tell_holder(HolderEvent::Arrived(page))
    }

    /// This rack has quiesced a page that it gives away. Its clients may write the page at the new
    /// home.
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

    /// A page's home has answered a lease request with a lease.
    pub(super) fn granted(
        &mut self,
        page: PageId,
        question: u64,
        lease: Lease,
    ) -> anyhow::Result<()> {
        self.tell_holder(HolderEvent::Granted { page, question, lease })?;
        self.keep(page)
    }

    /// Nothing that comes over the endpoint can land here any more: leases granted over it are
    /// void. Operations that this side has posted may still be under way.
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
        self.leases.called_back.retain(|revocation| revocation.endpoint != endpoint);
        self.leases.waiting_homes.retain(|revocation, _| revocation.endpoint != endpoint);
        self.tell_holder(HolderEvent::EndpointEnded(endpoint))?;
        self.tell_home(HomeEvent::EndpointEnded(endpoint))
    }
}
