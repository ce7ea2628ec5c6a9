//! The shell of locks, about which `rackpool_proto::lock` decides: lock words, claims, and the
//! messages between racks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_fabric::EndpointId;
use rackpool_model::{ClaimId, ClientId, LockClaim, LockWord, LockWordIndex, PageId, RackId};
use rackpool_proto::exchange::ClientThread;
use rackpool_proto::lease::EndpointToken;
use rackpool_proto::lock::{LockAction, LockEvent, LockMemory, LockRequester, LockRules};
use rackpool_proto::rack::{Executor, PageWords, RackEvent};
use rackpool_ring::client_file::ThreadSlot;
use rackpool_rrpc::RequestId;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::lock::{CACHED_READS, LockEnd, LockOutcome};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;

use super::DataPlane;
use super::clients::Caller;
use super::command::{count, set};
use super::leases::{endpoint_of, token};
use super::machine::View;
use super::peers::Purpose;
use crate::data_plane::error::Result;

/// Least time for which a process may stand still before it loses its locks: several times the
/// interval of its beats.
const LEAST_LEASE: Duration = Duration::from_secs(4);
/// The longest wait for a lock.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Messages about locks under way.
#[derive(Debug, Default)]
pub(super) struct Locks {
    /// Requests of other racks that are being handled.
    asks: BTreeMap<(EndpointToken, u64), RequestId>,
    /// Messages that could not be sent yet, the first one first.
    unsent: Vec<(EndpointId, PeerRequest)>,
}

impl Locks {
    pub(super) fn has_deadlines(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// A message can't be sent now. It is sent later unless the endpoint ends.
    pub(super) fn send_later(&mut self, endpoint: EndpointId, request: PeerRequest) {
        self.unsent.push((endpoint, request));
    }
}

/// Returns the rules of locks for a lease time.
pub(super) fn rules(lease: Duration) -> LockRules {
    let lease = lease.max(LEAST_LEASE);
    // Racks execute no operation that an earlier daemon permitted after their lease.
    // This rack's clock gains at most a tenth on another one's, as for replicas.
    let cached_reads = CACHED_READS + CACHED_READS / 10;
    LockRules { lease, earlier_holders: lease + lease / 2, cached_reads }
}

fn is_lost(slot: &ThreadSlot, index: u8) -> bool {
    slot.lost_claims.load(Ordering::Acquire) >> index & 1 != 0
}

impl View<'_> {
    fn thread(&self, id: ClaimId) -> Option<&ThreadSlot> {
        self.clients.slot(ClientThread { client: id.client, thread: id.thread })
    }

    /// Returns true if the thread stores bytes in the claim's line cache. The threads of a gone
    /// client have ended.
    fn is_copying(&self, id: ClaimId) -> bool {
        let is_here = self.clients.all.get(id.client).is_some_and(|client| !client.gone);
        is_here && self.thread(id).and_then(|slot| slot.copying.claim()) == Some(id.index)
    }

    /// Returns a claim that its thread may hold: it is not lost, or its access is under way.
    fn held_claim(&self, slot: &ThreadSlot, id: ClaimId) -> Option<LockClaim> {
        let claim = slot.claims.get(usize::from(id.index))?.load()?;
        let counts = !is_lost(slot, id.index) || self.is_using(id, claim.page());
        counts.then_some(claim)
    }
}

impl LockMemory for View<'_> {
    fn lock_word(&self, index: LockWordIndex) -> LockWord {
        self.lock_words.cell(index).load()
    }

    fn claim(&self, id: ClaimId) -> Option<LockClaim> {
        self.held_claim(self.thread(id)?, id)
    }

    fn claims(&self) -> impl Iterator<Item = (ClaimId, LockClaim)> {
        self.clients.all.ids().flat_map(move |client| {
            self.clients.threads_of(client).flat_map(move |(owner, slot)| {
                let used = slot.claims_used.load(Ordering::Acquire);
                let used = usize::try_from(used).unwrap_or(usize::MAX);
                let ids = (0..).zip(slot.claims.iter().take(used)).map(move |(index, _)| ClaimId {
                    client: owner.client,
                    thread: owner.thread,
                    index,
                });
                ids.filter_map(move |id| Some((id, self.held_claim(slot, id)?)))
            })
        })
    }

    fn beat(&self, client: ClientId) -> Option<u64> {
        Some(self.clients.all.get(client)?.file.beat().load(Ordering::Acquire))
    }

    fn is_using(&self, id: ClaimId, page: PageId) -> bool {
        let frame = self.slab.find(page).map(|found| found.frame);
        let accessed = self.thread(id).and_then(|slot| slot.access.announced());
        let thread = ClientThread { client: id.client, thread: id.thread };
        frame.is_some() && frame == accessed.map(|access| access.frame)
            || self.is_copying(id)
            || self.transfers.forwarding.contains(&thread)
            || self.transfers.has_any_in(thread, page)
            || self.peers.does_anything_in(thread, page)
    }
}

impl DataPlane {
    /// A client's thread asks for a lock.
    pub(super) fn lock(
        &mut self,
        caller: Caller,
        claim: LockClaim,
        index: u8,
        timeout_us: u64,
    ) -> Result<()> {
        let id = ClaimId { client: caller.client, thread: caller.thread, index };
        let timeout = Duration::from_micros(timeout_us).min(LONGEST_WAIT);
        let page = claim.page();
        let event = if PageWords::find(&self.slab, page).is_some() {
            LockEvent::Requested { requester: LockRequester::Client(id, caller), claim, timeout }
        } else {
            let now = self.cached_now();
            match self.machine.executor(self.at(now), &self.slab, page, true) {
                Executor::Home(home) => {
                    LockEvent::RequestedElsewhere { id, caller, home, claim, timeout }
                }
                // The client translates the page again, which waits until it is at rest.
                _ => {
                    let outcome = LockOutcome::Moved;
                    self.clients.finish(caller, RackAnswer::Lock { outcome, number: None });
                    return Ok(());
                }
            }
        };
        self.tell_locks(event)
    }

    /// A client's thread has cleared a claim that the daemon may know.
    pub(super) fn unlock(&mut self, caller: Caller, index: u8, withdrawn: bool) -> Result<()> {
        let id = ClaimId { client: caller.client, thread: caller.thread, index };
        let thread = self.clients.slot(caller.client_thread());
        let end = match thread.is_some_and(|slot| is_lost(slot, index)) {
            true => LockEnd::Abandoned,
            false if withdrawn => LockEnd::Withdrawn,
            false => LockEnd::Unlocked,
        };
        self.tell_locks(LockEvent::Unlocked { id, end })?;
        self.clients.finish(caller, RackAnswer::Done(0));
        Ok(())
    }

    fn tell_locks(&mut self, event: LockEvent) -> Result<()> {
        self.machine.handle(RackEvent::Lock(event));
        self.run_machine()
    }

    /// Another rack asks for a lock of a page of this rack. The reply is the outcome, or that the
    /// request is queued.
    pub(super) fn serve_lock(
        &mut self,
        ask: RequestId,
        number: u64,
        claim: u64,
        timeout_us: u64,
    ) -> Result<()> {
        let Some(claim) = LockClaim::from_raw(claim) else {
            return self.reply(ask, &PeerReply::Invalid("a lock of no lines".into()));
        };
        let endpoint = token(ask.endpoint);
        let requester = LockRequester::Rack(endpoint, number);
        let timeout = Duration::from_micros(timeout_us).min(LONGEST_WAIT);
        self.locks.asks.insert((endpoint, number), ask);
        self.tell_locks(LockEvent::Requested { requester, claim, timeout })?;
        match self.locks.asks.remove(&(endpoint, number)) {
            Some(ask) => self.reply(ask, &PeerReply::Lock(LockOutcome::Queued)),
            None => Ok(()),
        }
    }

    /// A home has decided about a request that it had queued.
    pub(super) fn lock_decided(
        &mut self,
        ask: RequestId,
        number: u64,
        outcome: LockOutcome,
    ) -> Result<()> {
        self.reply(ask, &PeerReply::Heard)?;
        let (endpoint, outcome) = (token(ask.endpoint), Some(outcome));
        self.tell_locks(LockEvent::Answered { number, endpoint, outcome })
    }

    /// Another rack gives up a lock of a page of this rack.
    pub(super) fn unlocked_elsewhere(
        &mut self,
        ask: RequestId,
        number: u64,
        end: LockEnd,
    ) -> Result<()> {
        let endpoint = token(ask.endpoint);
        self.tell_locks(LockEvent::UnlockedElsewhere { endpoint, number, end })
    }

    /// A home has answered a request for a lock; `None`: it will not.
    pub(super) fn lock_replied(
        &mut self,
        number: u64,
        endpoint: Option<EndpointId>,
        outcome: Option<LockOutcome>,
    ) {
        let endpoint = token(endpoint.unwrap_or(EndpointId(0)));
        self.machine.handle(RackEvent::Lock(LockEvent::Answered { number, endpoint, outcome }));
    }

    pub(super) fn execute_lock(&mut self, now: Instant, action: LockAction) -> Result<()> {
        self.count_lock(&action);
        match action {
            LockAction::Manage(claim) => {
                for index in claim.words() {
                    self.rack.lock_words.cell(index).manage();
                }
            }
            LockAction::StoreLockWord(index, word) => self.rack.lock_words.cell(index).store(word),
            LockAction::StoreForeign(index, claim) => {
                self.rack.lock_words.store_foreign(index, claim);
            }
            LockAction::Answer { id, caller, outcome, number } => {
                if matches!(outcome, LockOutcome::Granted { .. }) {
                    self.set_lost(id, false);
                }
                self.clients.finish(caller, RackAnswer::Lock { outcome, number });
            }
            LockAction::AnswerRack { endpoint, number, outcome } => {
                match self.locks.asks.remove(&(endpoint, number)) {
                    Some(ask) => self.reply(ask, &PeerReply::Lock(outcome))?,
                    None => {
                        let message = PeerRequest::LockDecided { number, outcome };
                        self.send_lock_message(now, endpoint_of(endpoint), message)?;
                    }
                }
            }
            LockAction::Request { home, number, claim, timeout } => {
                let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
                let claim = claim.to_raw();
                let request = PeerRequest::Lock { number, claim, timeout_us };
                self.ask(home, request, Purpose::Lock { number }, now + self.lease)?;
            }
            LockAction::Unlock { endpoint, number, end, writer } => {
                let written = writer.map(|id| self.unwritten(id, number)).unwrap_or_default();
                let message = PeerRequest::Unlock { number, end, written };
                self.send_lock_message(now, endpoint_of(endpoint), message)?;
            }
            LockAction::Lose(id) => self.lose(id),
            LockAction::ClearClaims(client) => {
                for (_, slot) in self.clients.threads_of(client) {
                    slot.claims.iter().for_each(|claim| claim.clear());
                }
            }
            LockAction::RemoteLocksEnded(client) => self.forget_if_returned(client),
            // The rack's machine has its own queue and its own barrier.
            LockAction::Queue(_) | LockAction::Barrier => {}
        }
        Ok(())
    }

    fn count_lock(&self, action: &LockAction) {
        let metrics = &self.metrics.locks;
        set(&metrics.known, self.machine.lock_count() as u64);
        match action {
            LockAction::Answer { outcome: LockOutcome::Granted { recovered }, .. }
            | LockAction::AnswerRack { outcome: LockOutcome::Granted { recovered }, .. } => {
                count(&metrics.granted);
                if *recovered {
                    count(&metrics.recovered);
                }
            }
            LockAction::Lose(_) => count(&metrics.lost),
            _ => {}
        }
    }

    fn send_lock_message(
        &mut self,
        now: Instant,
        endpoint: EndpointId,
        message: PeerRequest,
    ) -> Result<()> {
        self.ask_over(endpoint, message, Purpose::LockMessage, now + self.lease)
    }

    /// Sends messages that could not be sent before. Those of ended endpoints are dropped.
    pub(super) fn send_lock_messages(&mut self, now: Instant) -> Result<()> {
        for (endpoint, message) in std::mem::take(&mut self.locks.unsent) {
            self.send_lock_message(now, endpoint, message)?;
        }
        Ok(())
    }

    /// A thread has lost a lock. Its operations that wait to be sent are not executed.
    fn lose(&mut self, id: ClaimId) {
        self.set_lost(id, true);
        tracing::warn!("client {} has lost a lock", id.client.0);
        let thread = ClientThread { client: id.client, thread: id.thread };
        for operation in self.peers.take_unsent_of(thread) {
            self.finish_operation(operation, RackAnswer::LockLost);
        }
    }

    fn set_lost(&self, id: ClaimId, is_lost: bool) {
        let thread = ClientThread { client: id.client, thread: id.thread };
        if let Some(slot) = self.clients.slot(thread) {
            let bit = 1 << id.index;
            match is_lost {
                true => slot.lost_claims.fetch_or(bit, Ordering::AcqRel),
                false => slot.lost_claims.fetch_and(!bit, Ordering::AcqRel),
            };
        }
    }

    /// Locks of other racks' pages ended with the endpoints of an earlier daemon.
    pub(super) fn lose_locks_elsewhere(&self, client: ClientId) {
        for (owner, slot) in self.clients.threads_of(client) {
            for (index, claim) in (0..).zip(&slot.claims) {
                let elsewhere =
                    |claim: LockClaim| PageWords::find(&self.slab, claim.page()).is_none();
                if claim.load().is_some_and(elsewhere) {
                    let ClientThread { client, thread } = owner;
                    self.set_lost(ClaimId { client, thread, index }, true);
                }
            }
        }
    }

    /// Returns true if the thread has lost a lock of a line of these bytes of a page.
    pub(super) fn has_lost_lock(
        &self,
        caller: Caller,
        page: PageId,
        offset: u64,
        len: u64,
    ) -> bool {
        let Some(slot) = self.clients.slot(caller.client_thread()) else { return false };
        let lost = slot.lost_claims.load(Ordering::Acquire);
        if lost == 0 {
            return false;
        }
        let end = offset.saturating_add(len);
        let claims = (0..).zip(&slot.claims).filter(|(index, _)| lost >> *index & 1 != 0);
        claims.filter_map(|(_, cell): (u8, _)| cell.load()).any(|claim| {
            let lines = claim.offset()..claim.offset() + claim.bytes();
            claim.page() == page && offset < lines.end && lines.start < end
        })
    }

    /// Returns true if an operation of the thread on the page may go to `home`: locks that it holds
    /// there are valid for the endpoint over which it would go.
    pub(super) fn may_operate_at(&self, caller: Caller, page: PageId, home: RackId) -> bool {
        let over = self.peers.connected_endpoint(home);
        self.may_operate_over(caller, page, over.unwrap_or(EndpointId(0)))
    }

    /// Like [`Self::may_operate_at`], for an operation over this endpoint.
    pub(super) fn may_operate_over(
        &self,
        caller: Caller,
        page: PageId,
        endpoint: EndpointId,
    ) -> bool {
        self.machine.may_operate(caller.client, caller.thread, page, token(endpoint))
    }
}
