//! Claims for which the daemon answers, so that they outlive it: those of other racks' clients, and
//! of writers that ended without an unlock.

use alloc::vec::Vec;

use rackpool_model::{FOREIGN_CLAIMS, LockClaim, LockWord};
use rackpool_wire::lock::LockEnd;

use super::LockHome;
use crate::lock::page::AbandonedLine;
use crate::lock::{LockAction, LockHolder, LockMemory};
use crate::planted_bugs::Bugs;
use crate::rack::PageWords;

impl<B: Bugs> LockHome<B> {
    /// From `earlier_end` on no lock is in use that an earlier daemon granted to another rack.
    pub(super) fn end_earlier(&mut self, memory: &(impl PageWords + LockMemory)) {
        if self.now < self.earlier_end {
            return;
        }
        while let Some((holder @ LockHolder::Earlier(_), _)) = self.holders.first_key_value() {
            self.end(memory, *holder, LockEnd::Abandoned);
        }
    }

    pub(super) fn take_cell(&mut self) -> Option<u32> {
        self.free_cells.pop().or_else(|| {
            let cell = self.unused_cell;
            (cell < FOREIGN_CLAIMS).then(|| self.unused_cell += 1).map(|()| cell)
        })
    }

    pub(super) fn store_foreign(&mut self, claim: LockClaim) -> Option<u32> {
        let cell = self.take_cell()?;
        self.actions.push_back(LockAction::StoreForeign(cell, Some(claim)));
        Some(cell)
    }

    pub(super) fn clear_foreign(&mut self, cell: Option<u32>) {
        if let Some(cell) = cell {
            self.free_cells.push(cell);
            self.actions.push_back(LockAction::StoreForeign(cell, None));
        }
    }

    /// A writer ended without an unlock: the next holders of its lines are told.
    pub(super) fn abandon(&mut self, claim: LockClaim) {
        for claim in claim.each_line() {
            let page = self.pages.entry(claim.page()).or_default();
            if page.abandoned.iter().any(|line| line.claim == claim) {
                continue;
            }
            // The words of the line stay managed.
            self.use_words_with(claim, |_| LockWord::MANAGED);
            let foreign = self.store_foreign(claim);
            if let Some(page) = self.pages.get_mut(&claim.page()) {
                page.abandoned.push(AbandonedLine { claim, foreign });
            }
        }
    }

    /// A writer of these lines has unlocked.
    pub(super) fn end_abandonment(&mut self, claim: LockClaim) {
        let Some(page) = self.pages.get_mut(&claim.page()) else { return };
        let covered = |line: &mut AbandonedLine| line.claim.overlaps(claim);
        let ended: Vec<AbandonedLine> = page.abandoned.extract_if(.., covered).collect();
        for AbandonedLine { claim, foreign } in ended {
            self.clear_foreign(foreign);
            self.give_back(claim);
        }
    }
}
