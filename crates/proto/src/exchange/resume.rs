//! What a restarted daemon does with the records of its predecessor. Nothing has been allocated
//! yet, so a recorded object of a page in this rack that is not allocated was freed, or was about
//! to be allocated, before the crash.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rackpool_model::{GlobalAddr, RackId};

use super::requester::Active;
use super::{
    AskedState, ClientThread, ExchangeAction, ExchangeKind, Exchanges, ObjectView, PeerRecord,
    ServedRecord, ServedState,
};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

impl<B: Bugs> Exchanges<B> {
    pub(super) fn resume(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        records: Vec<(RackId, PeerRecord)>,
    ) {
        self.strike_free(view);
        for (rack, PeerRecord { asked, served }) in records.iter().cloned() {
            let peer = self.peers.entry(rack).or_default();
            (peer.asked, peer.served) = (asked, served);
            self.resume_served(view, rack);
        }
        // Objects leave the records that say `Moved` before the exchange that owns them goes on.
        let is_moved = |one: &&(RackId, PeerRecord)| one.1.asked.state == AskedState::Moved;
        for (rack, _) in records.iter().filter(is_moved) {
            self.resume_moved(now, view, *rack, &records);
        }
        for (rack, _) in records.iter().filter(|one| !is_moved(one)) {
            self.resume_asked(now, view, *rack);
        }
    }

    /// Returns true if the object was freed, or not allocated, before the crash.
    fn is_free(&self, view: &impl ObjectView, addr: GlobalAddr) -> bool {
        self.page(addr).is_some_and(|page| view.is_here(page)) && !view.is_allocated(addr)
    }

    /// Removes objects that were being handed over or freed from the cells of clients.
    fn strike_free(&mut self, view: &impl ObjectView) {
        let mut free = BTreeMap::<ClientThread, Vec<GlobalAddr>>::new();
        for (owner, addr) in view.held().filter(|(_, addr)| self.is_free(view, *addr)) {
            free.entry(owner).or_default().push(addr);
        }
        for (owner, addrs) in free {
            self.act(ExchangeAction::Strike(owner, addrs));
        }
    }

    /// Completes what the predecessor was doing for another rack.
    fn resume_served(&mut self, view: &impl ObjectView, rack: RackId) {
        let Some(peer) = self.peers.get_mut(&rack) else { return };
        match (peer.served.state, peer.served.kind) {
            (ServedState::Done, _) => return,
            // Nothing was done. The record loses its owner, so that the repeated request is new.
            (ServedState::Writing, _) => peer.served = ServedRecord::default(),
            (ServedState::Doing, ExchangeKind::Allocate) => {
                if !self.bugs.has(Bug::KeepUnallocated) {
                    peer.served.addrs.retain(|addr| view.is_allocated(*addr));
                }
            }
            (ServedState::Doing, ExchangeKind::Free) => {
                for addr in peer.served.addrs.clone() {
                    if view.may_free(addr, None) {
                        self.act(ExchangeAction::Free { addr, client: None });
                    }
                }
            }
        }
        self.store_served(rack, ServedState::Done);
    }

    fn resume_asked(&mut self, now: Time, view: &impl ObjectView, rack: RackId) {
        let overdue_at = now.after(self.rules.timeout);
        let Some(peer) = self.peers.get_mut(&rack) else { return };
        peer.overdue_at = overdue_at;
        let addrs = peer.asked.addrs.clone();
        match (peer.asked.state, peer.asked.kind) {
            (AskedState::Idle | AskedState::Moved, _) => {}
            (AskedState::Sent, ExchangeKind::Allocate) => {
                peer.active = Some(Active::Allocate(None));
                self.send(rack);
            }
            (AskedState::Owned | AskedState::Sent, _) => {
                peer.active = Some(Active::Free(None));
                let is_owned = peer.asked.state == AskedState::Owned;
                if is_owned && !self.bugs.has(Bug::LeaveInTheOutbox)
                    || self.bugs.has(Bug::StrikeWhatWasSent)
                {
                    self.act(ExchangeAction::StrikeEverywhere(addrs));
                }
                if is_owned {
                    self.store_asked(rack, AskedState::Sent);
                }
                self.send(rack);
            }
            (AskedState::Received, _) if self.bugs.has(Bug::ForgetReceived) => {
                self.end(now, view, rack);
            }
            (AskedState::Received, _) => {
                let is_held = |addr| view.held().any(|(_, held)| held == addr);
                let left = distinct(addrs, |addr| !is_held(addr));
                if left.is_empty() {
                    self.end(now, view, rack);
                } else {
                    self.free_received(now, rack, left);
                }
            }
        }
    }

    /// An object in two records was being passed on: it leaves one of them.
    fn resume_moved(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        rack: RackId,
        records: &[(RackId, PeerRecord)],
    ) {
        let others = || records.iter().filter(|(other, _)| *other != rack);
        let is_elsewhere = |addr: &GlobalAddr| {
            others().any(|(other, one)| {
                let owns = match one.asked.state {
                    AskedState::Owned => true,
                    // The fields were stored, and not the state `Owned`.
                    AskedState::Moved => *other < rack,
                    AskedState::Idle | AskedState::Sent | AskedState::Received => false,
                };
                owns && one.asked.addrs.contains(addr)
            })
        };
        let addrs = self.peers.get(&rack).map_or(Vec::new(), |peer| peer.asked.addrs.clone());
        let left = distinct(addrs, |addr| !is_elsewhere(&addr) && !self.is_free(view, addr));
        self.peers.entry(rack).or_default().asked.addrs.clone_from(&left);
        if left.is_empty() {
            return self.end(now, view, rack);
        }
        self.store_asked(rack, AskedState::Moved);
        self.seek_moved(now, rack, left);
    }
}

/// Returns the objects that are kept, each once. A crash may have left some in two cells.
pub(super) fn distinct(
    addrs: Vec<GlobalAddr>,
    keep: impl Fn(GlobalAddr) -> bool,
) -> Vec<GlobalAddr> {
    let mut left = Vec::new();
    for addr in addrs {
        if keep(addr) && !left.contains(&addr) {
            left.push(addr);
        }
    }
    left
}
