//! All that a rack decides about its pages and those of other racks: swaps, leases, sharing,
//! replicas, and which users must be out of a frame before the next step.
//!
//! [`RackMachine`] owns the machines of [`swap`](crate::swap), [`lease`](crate::lease) and
//! [`share`](crate::share) and passes events between them. The daemon and the simulator drive this
//! same machine; what they do not share is memory, clock and network. See docs/design/rack.md.

mod access;
mod dirty_lines;
mod event;
mod exchanges;
mod locations;
mod locks;
mod members;
mod memory;
mod quiesces;
mod recovery;
mod replicas;
mod routing;
mod search;

use alloc::collections::VecDeque;
use core::time::Duration;

use rackpool_model::{
    Access, FrameWord, HeatRules, HeatRulesError, Incarnation, LockClaim, PageId, RackId,
};

use crate::Time;
use crate::exchange::{ExchangeIdentity, ExchangeRules, Exchanges};
use crate::heat::{Heats, READS_A_WRITE};
use crate::lease::{HomeEvent, Lease, LeaseHolder, LeaseHome, LeaseId, LeaseRules, Users};
use crate::lock::{LockEvent, LockHome, LockRules, RemoteLocks};
use crate::planted_bugs::{Bugs, Sound};
use crate::publication::{Recovery, RecoveryRules};
use crate::share::{Copies, CopyId, ShareEvent, ShareHome, ShareRules, SharingId};
use crate::swap::{PeerEvent, RECORD_WORDS, RECORDS, SwapPeer, SwapRules};

pub use access::{Executor, LeaseReply, LeaseRequest, PageAccess};
use dirty_lines::DirtyLines;
pub use dirty_lines::LineRules;
pub use event::{RackAction, RackEvent, RackRecord};
pub use locations::{KnownLocation, Locations};
use members::Members;
pub use memory::{PageWords, RackMemory};
use quiesces::Quiesces;
use replicas::ReplicaRequests;
pub use search::LeaseAnswer;
use search::Searches;

/// The parameters of a rack's machine.
#[derive(Clone, Copy, Debug)]
pub struct RackRules {
    /// Of swaps.
    pub swap: SwapRules,
    /// Of leases.
    pub lease: LeaseRules,
    /// Of sharing.
    pub share: ShareRules,
    /// Whether the rack shares pages and keeps replicas.
    pub shares: bool,
    /// Of hotness.
    pub heat: HeatRules,
    /// Of dirty lines.
    pub lines: LineRules,
    /// Of exchanges of objects.
    pub exchange: ExchangeRules,
    /// Of the recovery of reservations.
    pub recovery: RecoveryRules,
    /// Of locks.
    pub lock: LockRules,
    /// The time between the return of the last lease of a vacated frame and the heavy barrier that
    /// precedes the scan for this rack's readers. A barrier interrupts each core that runs a
    /// client, and right after a move these clients ask the daemon where the page is.
    pub barrier_delay: Duration,
}

/// What earlier incarnations of a rack's daemon have left.
#[derive(Debug)]
pub struct RackPast<'a> {
    /// Above every number of earlier incarnations: of leases, requests, tickets, sharings and
    /// replicas. Never 0. It grows faster than they are drawn, like a clock in nanoseconds.
    pub first: u64,
    /// Whether an earlier daemon has served this memory.
    pub restarted: bool,
    /// The records of swaps.
    pub records: &'a [[u64; RECORD_WORDS]; RECORDS],
    /// The claims of locks for which an earlier daemon answered, with their indices, the lowest
    /// first.
    pub foreign_claims: &'a [(u32, LockClaim)],
    /// The rack and its memory.
    pub own: ExchangeIdentity,
}

/// The machine of a rack.
///
/// The shell passes events to [`Self::handle`], then executes the actions that [`Self::poll`]
/// returns, each before it polls again, until there is none. It polls again after the next event,
/// after a client has left a frame while [`Self::is_quiescing`], and at [`Self::deadline`], when it
/// passes [`RackEvent::DeadlinePassed`] first.
#[derive(Debug)]
pub struct RackMachine<B = Sound> {
    rules: RackRules,
    bugs: B,
    swap: SwapPeer<B>,
    home: LeaseHome<B>,
    holder: LeaseHolder<B>,
    shares: ShareHome<B>,
    copies: Copies<B>,
    exchanges: Exchanges<B>,
    recovery: Recovery<B>,
    locks: LockHome<B>,
    remote_locks: RemoteLocks<B>,
    heats: Heats,
    locations: Locations,
    members: Members,
    searches: Searches,
    quiesces: Quiesces,
    dirty: DirtyLines,
    replicas: ReplicaRequests,
    /// Until then, leases that were granted of this rack's previous memory may be in use.
    previous_leases_end: Time,
    queue: VecDeque<Queued>,
    actions: VecDeque<RackAction>,
    due: Option<Time>,
    /// Set when a machine with a deadline has had an event since `due` was computed.
    is_due_stale: bool,
}

/// An event in the queue.
#[derive(Clone, Debug)]
enum Queued {
    Rack(RackEvent),
    Swap(PeerEvent),
    Shares(ShareEvent),
    ContinueAllocation,
    /// A page has come here that callers may be searching for.
    Arrived(PageId),
}

impl<B: Bugs> RackMachine<B> {
    /// Restores the machine from what an earlier incarnation has left. `shared` are the pages whose
    /// words are shared. The shell must poll at once.
    ///
    /// # Errors
    /// When a rule of hotness is outside its valid range.
    pub fn restore(
        now: Time,
        rules: RackRules,
        past: &RackPast<'_>,
        shared: impl IntoIterator<Item = FrameWord>,
        pages: usize,
        bugs: B,
    ) -> Result<Self, HeatRulesError> {
        let RackPast { first, restarted, records, foreign_claims, own } = *past;
        let RackRules { swap, lease, share, heat, .. } = rules;
        let earlier = if restarted { rules.recovery.earlier_requests } else { Duration::ZERO };
        let earlier_requests_end = now.after(earlier);
        let leases_end = now.after(lease.good_at_home().saturating_add(lease.flight));
        Ok(Self {
            rules,
            bugs,
            swap: SwapPeer::restore(now, swap, Incarnation(first), records, bugs),
            home: LeaseHome::new(now, lease, LeaseId(first), restarted, bugs),
            holder: LeaseHolder::new(now, lease, first, bugs),
            shares: ShareHome::restore(now, share, SharingId(first), shared, bugs),
            copies: Copies::new(now, share, CopyId(first), bugs),
            exchanges: Exchanges::new(rules.exchange, own, bugs),
            recovery: Recovery::new(rules.recovery, own.rack, earlier_requests_end, bugs),
            locks: LockHome::restore(now, rules.lock, foreign_claims.iter().copied(), bugs),
            remote_locks: RemoteLocks::new(now, rules.lock, first, bugs),
            heats: Heats::with_room(heat, pages)?,
            locations: Locations::default(),
            members: Members::default(),
            searches: Searches::default(),
            quiesces: Quiesces::default(),
            dirty: DirtyLines::default(),
            replicas: ReplicaRequests::default(),
            previous_leases_end: if restarted { now } else { leases_end },
            queue: VecDeque::from([Queued::Rack(RackEvent::DeadlinePassed)]),
            actions: VecDeque::new(),
            due: None,
            is_due_stale: true,
        })
    }

    /// Queues an event. [`Self::poll`] handles it.
    pub fn handle(&mut self, event: RackEvent) {
        self.queue.push_back(Queued::Rack(event));
    }

    /// Returns the next action; `None` when all events are handled.
    pub fn poll(&mut self, now: Time, memory: &impl RackMemory) -> Option<RackAction> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                if let RackAction::StoreWord(frame, word) = action {
                    self.dirty.word_stored(frame, word);
                    self.page_changed(word.page());
                }
                return Some(action);
            }
            if let Some(event) = self.queue.pop_front() {
                self.step(now, memory, event);
            } else if !self.look_at_quiesces(now, memory)
                && !self.end_locks(now, memory)
                && !self.relieve(now, memory)
                && !self.look_at_due(now, memory)
            {
                return None;
            }
        }
    }

    /// Does a part of what is due for exchanges and the recovery. Returns true if there was
    /// anything. The shell polls in every round: nothing is walked before the first deadline.
    fn look_at_due(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        if core::mem::take(&mut self.is_due_stale) {
            self.due = self.next_deadline();
        }
        self.due.is_some_and(|due| now >= due)
            && (self.look_at_exchanges(now, memory)
                || self.look_at_recovery(now, memory)
                || self.look_at_locks(now, memory))
    }

    /// A page word has changed: exchanges and the recovery look at the page again.
    fn page_changed(&mut self, page: PageId) {
        self.exchanges.page_changed(page);
        self.recovery.page_changed(page);
        if self.locks.is_used(page) || self.remote_locks.is_used(page) {
            self.handle(RackEvent::Lock(LockEvent::PageChanged(page)));
        }
        self.is_due_stale = true;
    }

    fn next_deadline(&self) -> Option<Time> {
        let machines = [
            self.swap.deadline(),
            self.home.deadline(),
            self.shares.deadline(),
            self.copies.deadline(),
            self.exchanges.deadline(),
            self.recovery.deadline(),
            self.searches.deadline(self.rules.lease.lease),
            self.locks.deadline(),
            self.remote_locks.deadline(),
        ];
        machines.into_iter().flatten().min()
    }

    /// Returns the time when [`RackEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.due.into_iter().chain(self.quiesces.barrier_at()).min()
    }

    /// Returns true if events or actions wait for [`Self::poll`].
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.queue.is_empty() || !self.actions.is_empty()
    }

    /// Returns true if the machine waits for users to leave a frame.
    #[must_use]
    pub fn is_quiescing(&self) -> bool {
        !self.quiesces.is_empty() || self.locks.is_losing() || self.remote_locks.is_ending()
    }

    /// Returns the swaps of this rack.
    #[must_use]
    pub const fn swap(&self) -> &SwapPeer<B> {
        &self.swap
    }

    /// Returns the pages that this rack shares.
    #[must_use]
    pub const fn shares(&self) -> &ShareHome<B> {
        &self.shares
    }

    /// Returns the replicas that this rack keeps.
    #[must_use]
    pub const fn copies(&self) -> &Copies<B> {
        &self.copies
    }

    /// Returns the hotness of pages.
    #[must_use]
    pub const fn heats(&self) -> &Heats {
        &self.heats
    }

    /// Returns the hotness of pages, to count accesses.
    pub const fn heats_mut(&mut self) -> &mut Heats {
        &mut self.heats
    }

    /// Returns where pages of other racks were last found.
    #[must_use]
    pub const fn locations(&self) -> &Locations {
        &self.locations
    }

    /// Returns the same, to record what other racks have said.
    pub const fn locations_mut(&mut self) -> &mut Locations {
        &mut self.locations
    }

    /// Returns true if this rack's reads of the page outnumber its writes enough for a replica to
    /// pay off.
    #[must_use]
    pub fn is_hardly_written(&self, page: PageId) -> bool {
        let (reads, writes) = self.heats.counts(page);
        reads >= writes.saturating_mul(READS_A_WRITE)
    }

    /// Begins an operation under the page's lease. The caller posts it at once, and reports its end
    /// with [`RackEvent::OperationEnded`].
    pub fn begin(&mut self, now: Time, page: PageId, access: Access) -> Option<Lease> {
        let lease = self.holder.begin(now, page, access);
        self.drain_holder(now);
        lease
    }

    /// Counts the read of a replica as use of its lease, so that the lease is renewed in time.
    pub fn used_by_copy(&mut self, now: Time, page: PageId) {
        self.holder.used_by_copy(now, page);
        self.drain_holder(now);
    }

    /// Returns the page's lease if it is valid.
    #[must_use]
    pub fn lease(&self, now: Time, page: PageId) -> Option<Lease> {
        self.holder.lease(now, page)
    }

    /// Forgets a page that its presumed home does not have.
    pub fn forget(&mut self, page: PageId) {
        self.locations.forget(page);
        self.holder.forget(page);
    }

    /// A home has refused an operation on a page. `is_forwarded` tells whether it was a forwarded
    /// write; else it was an atomic operation.
    pub fn note_refusal(
        &mut self,
        page: PageId,
        home: RackId,
        answer: LeaseAnswer,
        is_forwarded: bool,
    ) {
        match answer {
            LeaseAnswer::NotHere
                if self.locations.of(page).is_none_or(|found| found.home == home) =>
            {
                self.forget(page);
            }
            LeaseAnswer::Busy if is_forwarded => self.locations.note_unforwarded(page),
            LeaseAnswer::Busy => self.holder.forget(page),
            _ => {}
        }
    }

    /// Requires that no other rack has a lease of the page, as a quiesce does, or ends that. For
    /// tests of shells.
    pub fn require_page(&mut self, now: Time, page: PageId, is_needed: bool) {
        let needed = HomeEvent::PageNeeded(page, Users::Everyone);
        let event = if is_needed { needed } else { HomeEvent::PageSpared(page) };
        self.tell_home(now, event);
    }

    /// Returns true if the sharing of pages is ending, or will at the next poll.
    #[must_use]
    pub fn is_unsharing(&self) -> bool {
        let needed = |event: &Queued| matches!(event, Queued::Rack(RackEvent::WriteNeeded(_)));
        self.shares.is_ending() || self.queue.iter().any(needed)
    }
}
