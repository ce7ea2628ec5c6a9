//! The requester's side: one exchange at a time with each rack.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use rackpool_model::{GlobalAddr, PageId, RackId};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::returns::{Source, Step};
use super::{
    AskedRecord, AskedState, BATCH, CallResult, Caller, ExchangeAction, ExchangeKind, Exchanges,
    ObjectView,
};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// The most objects of a new exchange. A record in the state `Moved` takes objects of other racks'
/// records up to [`BATCH`]; since no exchange begins with so many, a full record has an object for
/// its own rack and can be sent.
const NEW: usize = BATCH - 1;

/// An exchange that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Active {
    /// Allocates objects for this caller, until the deadline; `None`: they are freed again.
    Allocate(Option<(Caller, Time)>),
    /// Frees objects, perhaps for a release.
    Free(Option<u64>),
}

/// An allocation that waits for the current exchange to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    caller: Caller,
    bytes: u64,
    count: u64,
    pub(super) deadline: Time,
    /// Its place in the order of arrival.
    number: u64,
}

impl Active {
    pub(super) const fn deadline(&self) -> Option<Time> {
        match self {
            Self::Allocate(Some((_, deadline))) => Some(*deadline),
            Self::Allocate(None) | Self::Free(_) => None,
        }
    }
}

impl<B: Bugs> Exchanges<B> {
    pub(super) fn allocate(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        caller: Caller,
        rack: RackId,
        bytes: u64,
        count: u64,
    ) {
        let (number, deadline) = (self.number(), now.after(self.rules.timeout));
        let count = count.min(NEW as u64);
        let one = Allocation { caller, bytes, count, deadline, number };
        self.peers.entry(rack).or_default().waiting.push_back(one);
        self.begin_next(now, view, rack);
    }

    /// Begins the next exchange with a rack if none is under way.
    pub(super) fn begin_next(&mut self, now: Time, view: &impl ObjectView, rack: RackId) {
        loop {
            let peer = self.peers.entry(rack).or_default();
            if peer.active.is_some() {
                return;
            }
            let state = peer.asked.state;
            let first = peer.waiting.front().map(|one| one.number);
            let first = first.filter(|_| state == AskedState::Idle);
            let free = self.first_return_to(rack, state == AskedState::Moved);
            match (first, free) {
                (Some(number), free) if free.is_none_or(|other| number < other) => {
                    self.begin_allocation(now, rack);
                }
                (_, Some(_)) => self.begin_free(now, view, rack),
                _ => return,
            }
        }
    }

    fn begin_allocation(&mut self, now: Time, rack: RackId) {
        let Some(peer) = self.peers.get_mut(&rack) else { return };
        let Some(one) = peer.waiting.pop_front() else { return };
        let Allocation { caller, bytes, count, deadline, .. } = one;
        peer.active = Some(Active::Allocate(Some((caller, deadline))));
        peer.overdue_at = now.after(self.rules.timeout);
        peer.arrived.clear();
        let (sequence, kind) = (peer.asked.sequence.wrapping_add(1), ExchangeKind::Allocate);
        let (state, addrs) = (AskedState::Sent, Vec::new());
        let record = AskedRecord { state, sequence, kind, bytes, count, addrs };
        self.commit(rack, record, &[]);
    }

    /// Begins to free the objects that are to be returned to a rack: those of one owner, or all
    /// that are in records if the rack's own record has moved objects.
    fn begin_free(&mut self, now: Time, view: &impl ObjectView, rack: RackId) {
        let asked = self.peers.get(&rack).map(|peer| peer.asked.clone()).unwrap_or_default();
        let is_moved = asked.state == AskedState::Moved;
        let Some(number) = self.first_return_to(rack, is_moved) else { return };
        let of_first = |ret: &super::Return| (ret.number == number).then_some(ret.key());
        let Some(key) = self.returns.iter().find_map(of_first) else { return };
        let (mut addrs, most) = if is_moved { (asked.addrs, BATCH) } else { (Vec::new(), NEW) };
        let mut struck: Vec<(Source, Vec<GlobalAddr>)> = Vec::new();
        let mut pieces = 0;
        let mut returns = core::mem::take(&mut self.returns);
        for one in &mut returns {
            let is_meant = if is_moved { one.is_recorded() } else { one.key() == key };
            if one.step != Step::Queued(rack) || !is_meant {
                continue;
            }
            one.addrs.retain(|addr| self.has(view, one.source, *addr));
            let mut taken = Vec::new();
            one.addrs.retain(|addr| {
                let is_there = addrs.contains(addr);
                let is_taken = is_there || addrs.len() < most;
                if is_taken && !is_there {
                    addrs.push(*addr);
                }
                if is_taken && one.source != Source::Record(rack) {
                    taken.push(*addr);
                }
                !is_taken
            });
            struck.push((one.source, taken));
            pieces += usize::from(one.addrs.is_empty());
        }
        // What stays in the record comes back with the answer.
        returns.retain(|one| !one.addrs.is_empty() && one.source != Source::Record(rack));
        self.returns = returns;
        let (_, release) = key;
        let is_empty = addrs.is_empty();
        self.merge_pieces(release, pieces, !is_empty);
        if !is_empty {
            let peer = self.peers.entry(rack).or_default();
            peer.active = Some(Active::Free(release));
            peer.overdue_at = now.after(self.rules.timeout);
            let (sequence, kind) = (asked.sequence.wrapping_add(1), ExchangeKind::Free);
            let (state, bytes, count) = (AskedState::Sent, 0, 0);
            let record = AskedRecord { state, sequence, kind, bytes, count, addrs };
            self.commit(rack, record, &struck);
        }
        for (source, _) in struck {
            match source {
                Source::Record(other) if other != rack => self.end_if_empty(now, view, other),
                Source::Record(_) => {}
                Source::Cells(owner) => self.report_returned(owner.client, release),
            }
        }
    }

    /// Begins an exchange. From the record on, the exchange owns the objects: only then they are
    /// removed from where they were recorded. The other rack may free them at once, so they are
    /// removed before the request is sent.
    fn commit(&mut self, rack: RackId, record: AskedRecord, struck: &[(Source, Vec<GlobalAddr>)]) {
        let has = |bug| self.bugs.has(bug);
        let (early, soon) = (has(Bug::SendBeforeRecord), has(Bug::SendBeforeStrike));
        let strikes_first = has(Bug::StrikeBeforeRecord);
        self.peers.entry(rack).or_default().asked = record;
        if early {
            self.send(rack);
        }
        if strikes_first {
            self.strike_all(struck);
        }
        let strikes = struck.iter().any(|(_, addrs)| !addrs.is_empty());
        if strikes {
            self.store_asked(rack, AskedState::Owned);
            if soon {
                self.send(rack);
            }
            self.strike_all(struck);
        }
        self.store_asked(rack, AskedState::Sent);
        let is_sent = early || soon && strikes;
        if !is_sent {
            self.send(rack);
        }
    }

    fn strike_all(&mut self, struck: &[(Source, Vec<GlobalAddr>)]) {
        for (source, addrs) in struck {
            self.strike(*source, addrs);
        }
    }

    pub(super) fn send(&mut self, rack: RackId) {
        let Some(peer) = self.peers.get(&rack).filter(|peer| peer.active.is_some()) else { return };
        let AskedRecord { sequence, kind, bytes, count, addrs, .. } = peer.asked.clone();
        let (own, memory) = (self.own.rack, self.own.memory);
        let request = match kind {
            ExchangeKind::Allocate => {
                let count = u16::try_from(count).unwrap_or(1);
                PeerRequest::Allocate { rack: own, memory, sequence, bytes, count }
            }
            ExchangeKind::Free => PeerRequest::Free { rack: own, memory, sequence, addrs },
        };
        self.act(ExchangeAction::Request(rack, request));
    }

    pub(super) fn answered(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        rack: RackId,
        reply: PeerReply,
    ) {
        let Some(peer) = self.peers.get_mut(&rack) else { return };
        let Some(active) = peer.active.take() else { return };
        let (count, arrived) = (peer.asked.count, core::mem::take(&mut peer.arrived));
        match (active, reply) {
            (Active::Allocate(caller), PeerReply::Full { free_frames }) => {
                if let Some((caller, _)) = caller {
                    let free = Some(free_frames);
                    self.act(ExchangeAction::NotAllocated(caller, rack, free));
                }
                self.end(now, view, rack);
            }
            (Active::Allocate(caller), PeerReply::Allocated(addrs))
                if self.are_new(view, &addrs, count, caller.map(|_| &arrived)) =>
            {
                self.received(now, view, rack, caller.map(|(caller, _)| caller), addrs);
            }
            (Active::Allocate(caller), _) => {
                if let Some((caller, _)) = caller {
                    self.act(ExchangeAction::Finish(caller, CallResult::Invalid));
                }
                self.end(now, view, rack);
            }
            (Active::Free(release), PeerReply::Freed { refused, moved }) => {
                self.piece_ended(release, u64::from(refused));
                self.objects_moved(now, view, rack, &moved);
            }
            (Active::Free(release), _) => {
                self.piece_ended(release, 0);
                self.end(now, view, rack);
            }
        }
    }

    /// Returns true if these can be objects that another rack allocated for a request of `count`.
    /// Their pages are not here, unless a swap has brought one here meanwhile: then the object is
    /// allocated and no cell holds it. `arrived` are the pages that have arrived since the request
    /// began; `None` if the objects will only be freed.
    fn are_new(
        &self,
        view: &impl ObjectView,
        addrs: &[GlobalAddr],
        count: u64,
        arrived: Option<&BTreeSet<PageId>>,
    ) -> bool {
        let is_held = |addr| view.held().any(|(_, held)| held == addr);
        let is_new = |addr: &GlobalAddr| {
            let is_nobodys = || view.is_allocated(*addr) && !is_held(*addr);
            let may_be_here = |page| arrived.is_none_or(|arrived| arrived.contains(&page));
            let page = self.page(*addr);
            page.is_some_and(|page| !view.is_here(page) || may_be_here(page) && is_nobodys())
        };
        !addrs.is_empty()
            && addrs.len() as u64 <= count
            && addrs.iter().all(is_new)
            && addrs.iter().collect::<BTreeSet<_>>().len() == addrs.len()
    }

    /// Hands allocated objects over. The caller is answered last: once it may take the objects, the
    /// record must not hold them any more.
    fn received(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        rack: RackId,
        caller: Option<Caller>,
        addrs: Vec<GlobalAddr>,
    ) {
        if let Some(peer) = self.peers.get_mut(&rack) {
            peer.asked.addrs.clone_from(&addrs);
        }
        self.store_asked(rack, AskedState::Received);
        match caller {
            Some(caller) if view.takes(caller) => {
                let count = addrs.len() as u64;
                self.act(ExchangeAction::FillInbox(caller, addrs));
                self.store_asked(rack, AskedState::Idle);
                self.act(ExchangeAction::Finish(caller, CallResult::Allocated(count)));
                self.begin_next(now, view, rack);
            }
            caller => {
                if let Some(caller) = caller {
                    self.act(ExchangeAction::Finish(caller, CallResult::Invalid));
                }
                self.free_received(now, rack, addrs);
            }
        }
    }

    /// Frees received objects by the next exchange. The record goes from one exchange to the next
    /// without the state `Idle`.
    pub(super) fn free_received(&mut self, now: Time, rack: RackId, addrs: Vec<GlobalAddr>) {
        let peer = self.peers.entry(rack).or_default();
        peer.active = Some(Active::Free(None));
        peer.overdue_at = now.after(self.rules.timeout);
        let (sequence, kind) = (peer.asked.sequence.wrapping_add(1), ExchangeKind::Free);
        let (state, bytes, count) = (AskedState::Sent, 0, 0);
        let record = AskedRecord { state, sequence, kind, bytes, count, addrs };
        self.commit(rack, record, &[]);
    }

    /// Stores the record of a rack with this state.
    pub(super) fn store_asked(&mut self, rack: RackId, state: AskedState) {
        let asked = &mut self.peers.entry(rack).or_default().asked;
        asked.state = state;
        let record = asked.clone();
        self.act(ExchangeAction::StoreAsked(rack, record));
    }

    /// The exchange with a rack has ended.
    pub(super) fn end(&mut self, now: Time, view: &impl ObjectView, rack: RackId) {
        self.peers.entry(rack).or_default().asked.addrs.clear();
        self.store_asked(rack, AskedState::Idle);
        self.begin_next(now, view, rack);
    }

    /// Answers the callers of allocations that have waited long enough. An exchange that was sent
    /// goes on; its objects are then freed.
    pub(super) fn expire_allocations(&mut self, now: Time) {
        let mut late = Vec::new();
        for (rack, peer) in &mut self.peers {
            if let Some(Active::Allocate(caller)) = &mut peer.active
                && let Some((caller, _)) = caller.take_if(|(_, deadline)| now >= *deadline)
            {
                late.push((caller, *rack));
            }
            for one in core::mem::take(&mut peer.waiting) {
                if now >= peer.limit(one.deadline) {
                    late.push((one.caller, *rack));
                } else {
                    peer.waiting.push_back(one);
                }
            }
        }
        for (caller, rack) in late {
            self.act(ExchangeAction::NotAllocated(caller, rack, None));
        }
    }
}
