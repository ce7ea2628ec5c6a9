//! Claims for which the daemon answers, so that they outlive it: those of other racks' clients, and
//! of writers that ended without an unlock.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use rackpool_model::{FOREIGN_CLAIMS, LockClaim, LockWord, PageId};
use rackpool_wire::lock::LockEnd;

use super::LockHome;
use crate::Time;
use crate::lease::EndpointToken;
use crate::lock::page::AbandonedLines;
use crate::lock::{LockAction, LockHolder, LockMemory};
use crate::planted_bugs::{Bug, Bugs};
use crate::rack::PageWords;

impl<B: Bugs> LockHome<B> {
    /// A lock of another rack's client passes on at this time.
    pub(super) fn end_at(&mut self, holder: LockHolder, until: Time) {
        let locks = self.holders.get(&holder).and_then(|page| self.pages.get_mut(page));
        let held = locks.into_iter().flat_map(|locks| &mut locks.held);
        for held in held.filter(|held| held.holder == holder && held.until.is_none()) {
            held.until = Some(until);
            self.timeouts.insert((until, holder));
        }
    }

    /// An endpoint has ended: no operation that was sent over it can land any more. Holders may
    /// read what they have cached for a while.
    pub(super) fn endpoint_ended(
        &mut self,
        memory: &(impl PageWords + LockMemory),
        ended: EndpointToken,
    ) {
        let of = |holder: &&LockHolder| matches!(holder, LockHolder::Rack(at, _) if *at == ended);
        let until = self.now.after(self.rules.cached_reads);
        let ignores = self.bugs.has(Bug::PassWhileCached);
        let holders: Vec<LockHolder> = self.holders.keys().filter(of).copied().collect();
        let (held, requested): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(|holder| self.holds(*holder));
        // First, so that no request of the ended endpoint is granted.
        let mut pages = BTreeSet::new();
        for holder in requested {
            pages.extend(self.holders.get(&holder).copied());
            self.take_out(holder);
        }
        for holder in held {
            if ignores {
                self.end(memory, holder, LockEnd::Abandoned);
            } else {
                self.end_at(holder, until);
            }
        }
        pages.into_iter().for_each(|page| self.advance(memory, page));
    }

    fn take_cell(&mut self) -> Option<u32> {
        self.free_cells.pop().or_else(|| {
            let cell = self.unused_cell;
            (cell < FOREIGN_CLAIMS).then(|| self.unused_cell += 1).map(|()| cell)
        })
    }

    fn store_foreign(&mut self, claim: LockClaim) -> Option<u32> {
        let cell = self.take_cell()?;
        self.actions.push_back(LockAction::StoreForeign(cell, Some(claim)));
        Some(cell)
    }

    /// Stores the claim of another rack's client. Such claims take half of the cells at most, so
    /// that they and abandoned lines don't take them from each other.
    pub(super) fn store_foreign_lock(&mut self, claim: LockClaim) -> Option<u32> {
        if self.foreign_locks >= FOREIGN_CLAIMS / 2 {
            return None;
        }
        let cell = self.store_foreign(claim)?;
        self.foreign_locks += 1;
        Some(cell)
    }

    pub(super) fn clear_foreign(&mut self, cell: Option<u32>) {
        if let Some(cell) = cell {
            self.free_cells.push(cell);
            self.actions.push_back(LockAction::StoreForeign(cell, None));
        }
    }

    /// Returns true if half of the cells have abandoned lines.
    fn has_many_abandoned(&self) -> bool {
        let used = self.unused_cell as usize - self.free_cells.len();
        used - self.foreign_locks as usize >= FOREIGN_CLAIMS as usize / 2
    }

    /// A writer ended without an unlock: the next holders of its lines are told.
    pub(super) fn abandon(&mut self, claim: LockClaim) {
        let page = self.pages.entry(claim.page()).or_default();
        if page.abandoned.iter().any(|lines| lines.claim.contains(claim)) {
            return;
        }
        // The words of the lines stay managed.
        self.use_words_with(claim, |_| LockWord::MANAGED);
        let foreign = if self.has_many_abandoned() { None } else { self.store_foreign(claim) };
        if let Some(page) = self.pages.get_mut(&claim.page()) {
            page.abandoned.push(AbandonedLines { claim, foreign });
        }
    }

    /// A writer of these lines has unlocked.
    pub(super) fn end_abandonment(&mut self, claim: LockClaim) {
        let Some(page) = self.pages.get_mut(&claim.page()) else { return };
        let overlaps = |lines: &mut AbandonedLines| lines.claim.overlaps(claim);
        let ended: Vec<AbandonedLines> = page.abandoned.extract_if(.., overlaps).collect();
        // A claim of an earlier daemon that this writer held the lock in spite of is of abandoned
        // lines.
        let earlier = page.held.iter().filter(|held| {
            matches!(held.holder, LockHolder::Earlier(_)) && claim.contains(held.claim)
        });
        for holder in earlier.map(|held| held.holder).collect::<Vec<_>>() {
            self.take_out(holder);
        }
        for AbandonedLines { claim: lines, foreign } in ended {
            for rest in lines.without(claim) {
                self.abandon(rest);
            }
            self.clear_foreign(foreign);
            self.give_back(lines);
        }
    }

    /// The page was freed.
    pub(super) fn forget_abandoned(&mut self, page: PageId) {
        let Some(locks) = self.pages.get_mut(&page) else { return };
        let abandoned = core::mem::take(&mut locks.abandoned);
        if locks.is_empty() {
            self.pages.remove(&page);
        }
        for AbandonedLines { claim, foreign } in abandoned {
            self.clear_foreign(foreign);
            self.give_back(claim);
        }
    }
}
