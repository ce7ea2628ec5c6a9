//! The server's side: executes each request of another rack once.

use alloc::vec::Vec;
use core::cmp::Ordering;

use rackpool_model::{GlobalAddr, MAX_RACKS, MemoryId, PageId, RackId};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::{
    BATCH, ExchangeAction, ExchangeKind, Exchanges, ObjectView, Place, ServedRecord, ServedState,
};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// A request to free objects that waits for a page to come to rest. Nothing is recorded.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    ask: u64,
    memory: MemoryId,
    sequence: u64,
    addrs: Vec<GlobalAddr>,
    pub(super) again: Time,
    /// After this the objects of moving pages count as moved.
    pub(super) until: Time,
}

/// The allocation that is being executed, one object at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocating {
    ask: u64,
    rack: RackId,
    bytes: u64,
    /// The number of objects still to be allocated.
    left: u16,
}

/// The relation of a request to the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Repeated,
    Next,
    Stale,
}

impl<B: Bugs> Exchanges<B> {
    pub(super) fn requested(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        ask: u64,
        request: PeerRequest,
    ) {
        match request {
            PeerRequest::Allocate { rack, memory, sequence, bytes, count } => {
                if rack.0 >= MAX_RACKS || bytes == 0 {
                    return self.refuse(ask, "no such rack, or no bytes");
                }
                if self.is_new(view, ask, rack, memory, sequence) {
                    self.begin_record(rack, memory, sequence, ExchangeKind::Allocate);
                    self.store_served(rack, ServedState::Doing);
                    self.allocating = Some(Allocating { ask, rack, bytes, left: count });
                }
            }
            PeerRequest::Free { rack, memory, sequence, addrs } => {
                if rack.0 >= MAX_RACKS || addrs.len() > BATCH {
                    return self.refuse(ask, "no such rack, or too many objects");
                }
                if self.is_new(view, ask, rack, memory, sequence) {
                    let earlier = self.peers.get(&rack).and_then(|peer| peer.deferred.as_ref());
                    let earlier = earlier.filter(|one| one.sequence == sequence);
                    let until = earlier.map_or(now.after(self.rules.defer), |one| one.until);
                    let deferred = Deferred { ask, memory, sequence, addrs, again: now, until };
                    self.free_for(now, view, rack, deferred);
                }
            }
            _ => {}
        }
    }

    fn refuse(&mut self, ask: u64, why: &str) {
        self.act(ExchangeAction::Answer(ask, PeerReply::Invalid(why.into())));
    }

    /// Returns true if the request has to be executed. Otherwise answers it.
    fn is_new(
        &mut self,
        view: &impl ObjectView,
        ask: u64,
        rack: RackId,
        memory: MemoryId,
        sequence: u64,
    ) -> bool {
        match self.order(rack, memory, sequence) {
            Order::Next => true,
            Order::Repeated => {
                self.answer(view, ask, rack, 0);
                false
            }
            Order::Stale => {
                self.refuse(ask, "an exchange of the past");
                false
            }
        }
    }

    /// Returns true if the request was executed, or is out of date.
    pub(crate) fn has_served(&self, rack: RackId, memory: MemoryId, sequence: u64) -> bool {
        self.order(rack, memory, sequence) != Order::Next
    }

    fn order(&self, rack: RackId, memory: MemoryId, sequence: u64) -> Order {
        let Some(peer) = self.peers.get(&rack) else { return Order::Next };
        let served = &peer.served;
        if served.memory != memory {
            return Order::Next;
        }
        match sequence.cmp(&served.sequence) {
            Ordering::Less if !self.bugs.has(Bug::IgnoreSequence) => Order::Stale,
            Ordering::Equal if !self.bugs.has(Bug::ExecuteRepeated) => Order::Repeated,
            _ => Order::Next,
        }
    }

    /// Begins the record of a request.
    fn begin_record(&mut self, rack: RackId, memory: MemoryId, sequence: u64, kind: ExchangeKind) {
        let peer = self.peers.entry(rack).or_default();
        peer.deferred = None;
        let (addrs, moved) = (Vec::new(), Vec::new());
        if !self.bugs.has(Bug::RewriteValidRecord) {
            self.store_served(rack, ServedState::Writing);
        }
        let peer = self.peers.entry(rack).or_default();
        let state = ServedState::Doing;
        peer.served = ServedRecord { state, memory, sequence, kind, addrs, moved };
    }

    pub(super) fn store_served(&mut self, rack: RackId, state: ServedState) {
        let served = &mut self.peers.entry(rack).or_default().served;
        served.state = state;
        let record = served.clone();
        self.act(ExchangeAction::StoreServed(rack, record));
    }

    /// Allocates the next object, or answers. Every earlier action has been executed.
    pub(crate) fn continue_allocation(&mut self, view: &impl ObjectView) {
        let Some(Allocating { ask, rack, bytes, left }) = self.allocating.take() else { return };
        let served = &mut self.peers.entry(rack).or_default().served;
        // There was no memory for the last object.
        let failed = served.addrs.pop_if(|addr| !view.is_allocated(*addr)).is_some();
        let room = left > 0 && served.addrs.len() < BATCH && !failed;
        let Some(addr) = room.then(|| view.candidate(bytes)).flatten() else {
            self.store_served(rack, ServedState::Done);
            return self.answer(view, ask, rack, 0);
        };
        served.addrs.push(addr);
        // The record names the object before it is allocated: after a crash in between it is
        // removed from the record.
        if self.bugs.has(Bug::AllocateBeforeRecord) {
            self.act(ExchangeAction::Allocate { addr, bytes });
            self.store_served(rack, ServedState::Doing);
        } else {
            self.store_served(rack, ServedState::Doing);
            self.act(ExchangeAction::Allocate { addr, bytes });
        }
        self.allocating = Some(Allocating { ask, rack, bytes, left: left - 1 });
    }

    /// Answers the recorded exchange.
    fn answer(&mut self, view: &impl ObjectView, ask: u64, rack: RackId, refused: u16) {
        let served = &self.peers.entry(rack).or_default().served;
        let reply = match served.kind {
            ExchangeKind::Allocate if served.addrs.is_empty() => {
                PeerReply::Full { free_frames: view.free_frames() }
            }
            ExchangeKind::Allocate => PeerReply::Allocated(served.addrs.clone()),
            ExchangeKind::Free => PeerReply::Freed { refused, moved: served.moved.clone() },
        };
        self.act(ExchangeAction::Answer(ask, reply));
    }

    /// Frees objects for another rack, or waits until their pages are at rest. The answer names the
    /// objects of pages that are not here.
    fn free_for(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        rack: RackId,
        mut deferred: Deferred,
    ) {
        let (mut freed, mut moved, mut refused) = (Vec::new(), Vec::new(), 0);
        let mut moving: Vec<PageId> = Vec::new();
        for addr in &deferred.addrs {
            let page = self.page(*addr);
            match page.map(|page| (page, view.place(page))) {
                Some((page, Place::Moving)) => {
                    moving.push(page);
                    moved.push(*addr);
                }
                Some((_, Place::Elsewhere)) => moved.push(*addr),
                Some((_, Place::Here)) if view.may_free(*addr, None) => freed.push(*addr),
                // Not recorded: after a crash, completing the record would free the object although
                // a program may have allocated it again.
                _ => refused += 1,
            }
        }
        if now < deferred.until && !moving.is_empty() {
            deferred.again = now.after(self.rules.again);
            moving.into_iter().for_each(|page| self.act(ExchangeAction::NeedPage(page)));
            self.peers.entry(rack).or_default().deferred = Some(deferred);
            return;
        }
        let Deferred { ask, memory, sequence, .. } = deferred;
        self.begin_record(rack, memory, sequence, ExchangeKind::Free);
        let served = &mut self.peers.entry(rack).or_default().served;
        (served.addrs, served.moved) = (freed.clone(), moved);
        self.store_served(rack, ServedState::Doing);
        for addr in freed {
            self.act(ExchangeAction::Free { addr, client: None });
        }
        self.store_served(rack, ServedState::Done);
        self.answer(view, ask, rack, refused);
    }

    pub(super) fn look_at_deferred(&mut self, now: Time, view: &impl ObjectView) {
        let mut due = Vec::new();
        for (rack, peer) in &mut self.peers {
            let is_due = |one: &mut Deferred| now >= one.again || now >= one.until;
            due.extend(peer.deferred.take_if(is_due).map(|deferred| (*rack, deferred)));
        }
        for (rack, deferred) in due {
            self.free_for(now, view, rack, deferred);
        }
    }
}
