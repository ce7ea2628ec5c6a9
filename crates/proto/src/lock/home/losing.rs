//! Holders whose processes stand still while others wait.

use alloc::vec::Vec;

use rackpool_model::{ClientId, LockMode, PageId};
use rackpool_wire::lock::LockEnd;

use super::LockHome;
use crate::Time;
use crate::lock::beats::Beats;
use crate::lock::page::HeldLock;
use crate::lock::{LockAction, LockHolder, LockMemory};
use crate::planted_bugs::{Bug, Bugs};
use crate::rack::PageWords;

impl<B: Bugs> LockHome<B> {
    /// Ends lost locks whose holders' accesses have ended. Returns true if there are actions.
    pub fn end_lost(&mut self, now: Time, memory: &(impl PageWords + LockMemory)) -> bool {
        self.now = now;
        let held = self.pages.values().flat_map(|page| &page.held);
        let is_over = |held: &&HeldLock| {
            let hasty = self.bugs.has(Bug::PassLostLockAtOnce);
            held.is_losing
                && matches!(held.holder, LockHolder::Client(id)
                    if hasty || !memory.is_using(id, held.claim.page()))
        };
        for holder in held.filter(is_over).map(|held| held.holder).collect::<Vec<_>>() {
            self.end(memory, holder, LockEnd::Abandoned);
        }
        !self.actions.is_empty()
    }

    /// Looks for holders in the way of a request whose processes stand still.
    pub(super) fn look_at_beats(&mut self, memory: &impl LockMemory) {
        let now = self.now;
        let in_the_way = self.pages.values().flat_map(|page| {
            page.held.iter().filter(|held| !held.is_losing && page.is_wanted(held))
        });
        let clients: Vec<(ClientId, PageId)> = in_the_way
            .filter_map(|held| match held.holder {
                LockHolder::Client(id) => Some((id.client, held.claim.page())),
                LockHolder::Rack(..) | LockHolder::Earlier(_) => None,
            })
            .collect();
        let lease = self.rules.lease;
        self.beats.look(now, lease, memory, clients.iter().map(|(client, _)| *client));
        self.look_at = (!self.timeouts.is_empty()).then(|| now.after(Beats::interval(lease)));
        for (client, page) in clients {
            if self.beats.is_stalled(now, lease, client) {
                self.lose(client, page);
            }
        }
    }

    /// A client that stands still loses its locks of a page.
    pub(super) fn lose(&mut self, client: ClientId, page: PageId) {
        let held = self.pages.get_mut(&page).into_iter().flat_map(|locks| &mut locks.held);
        let of_client = |held: &&mut HeldLock| {
            let is_its = matches!(held.holder, LockHolder::Client(id) if id.client == client);
            is_its && !held.is_losing
        };
        let mut lost = Vec::new();
        for held in held.filter(of_client) {
            held.is_losing = true;
            lost.push((held.holder, held.claim));
        }
        self.losing += lost.len();
        for (holder, claim) in lost {
            if claim.mode() == LockMode::Write && !self.bugs.has(Bug::ForgetAbandonedLocks) {
                // Before the claim is lost: an earlier daemon's lost claims do not count.
                self.abandon(claim);
            }
            if let LockHolder::Client(id) = holder {
                self.actions.push_back(LockAction::Lose(id));
            }
        }
        self.actions.push_back(LockAction::Barrier);
    }
}
