//! Claims that are found in memory, and the words that lead to them.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use rackpool_model::{ClaimId, ClientId, LockClaim, LockMode, LockWord, LockWordIndex, PageId};
use rackpool_wire::lock::LockEnd;

use super::LockHome;
use crate::lock::page::HeldLock;
use crate::lock::words::Claims;
use crate::lock::{LockAction, LockEvent, LockHolder, LockMemory};
use crate::planted_bugs::{Bug, Bugs};
use crate::rack::PageWords;

impl<B: Bugs> LockHome<B> {
    /// Counts the claim as a user of its words, and has new ones managed.
    pub(super) fn use_words(&mut self, memory: &impl LockMemory, claim: LockClaim) {
        self.use_words_with(claim, |index| memory.lock_word(index));
    }

    pub(super) fn use_words_with(
        &mut self,
        claim: LockClaim,
        word: impl Fn(LockWordIndex) -> LockWord,
    ) {
        if self.words.take(claim, word) {
            self.actions.push_back(LockAction::Manage(claim));
            self.actions.push_back(LockAction::Queue(LockEvent::WordsManaged(claim)));
        }
    }

    pub(super) fn words_managed(
        &mut self,
        memory: &(impl PageWords + LockMemory),
        claim: LockClaim,
    ) {
        let mut to_read = Vec::new();
        for index in claim.words() {
            let word = memory.lock_word(index);
            let Some(managed) = self.words.get_mut(index) else { continue };
            if managed.claims != Claims::Unread {
                continue;
            }
            if managed.is_inherited || word.is_shared() && word.claim().is_none() {
                managed.claims = Claims::Awaited;
                to_read.push(index);
                continue;
            }
            managed.claims = Claims::Known;
            if let Some(id) = word.claim() {
                let found = memory.claim(id).filter(|claim| claim.words().any(|of| of == index));
                let is_mode =
                    |found: &LockClaim| (found.mode() == LockMode::Read) == word.is_shared();
                if let Some(found) = found.filter(is_mode) {
                    self.found(memory, id, found);
                }
            }
            self.free_unused(index);
        }
        if !to_read.is_empty() {
            if !self.bugs.has(Bug::ReadClaimsWithoutBarrier) {
                self.actions.push_back(LockAction::Barrier);
            }
            self.actions.push_back(LockAction::Queue(LockEvent::WordsReadable(to_read)));
        }
        self.advance(memory, claim.page());
    }

    pub(super) fn words_readable(
        &mut self,
        memory: &(impl PageWords + LockMemory),
        words: &[LockWordIndex],
    ) {
        for (id, claim) in memory.claims() {
            // A writer of a word that was shared has not got the lock.
            let may_hold = |index: LockWordIndex| {
                let inherited = self.words.get(index).is_some_and(|word| word.is_inherited);
                words.contains(&index) && (inherited || claim.mode() == LockMode::Read)
            };
            if claim.words().any(may_hold) && !self.bugs.has(Bug::OverlookSharedClaims) {
                self.found(memory, id, claim);
            }
        }
        for index in words {
            if let Some(word) = self.words.get_mut(*index) {
                word.claims = Claims::Known;
            }
            self.free_unused(*index);
        }
        let waiting = self.timeouts.iter().filter_map(|(_, holder)| self.holders.get(holder));
        let pages: BTreeSet<PageId> = waiting.copied().collect();
        for page in pages {
            self.advance(memory, page);
        }
    }

    /// A claim in memory may be held.
    pub(super) fn found(&mut self, memory: &impl LockMemory, id: ClaimId, claim: LockClaim) {
        let holder = LockHolder::Client(id);
        if let Some(page) = self.holders.get(&holder) {
            let locks = self.pages.get(page);
            let is_known = locks.is_some_and(|locks| locks.claim_of(holder) == Some(claim));
            if is_known {
                return;
            }
            // The thread uses the claim for another lock now.
            self.take_out(holder);
        }
        self.hold(holder, claim, None);
        self.use_words(memory, claim);
    }

    pub(super) fn hold(&mut self, holder: LockHolder, claim: LockClaim, foreign: Option<u32>) {
        self.holders.insert(holder, claim.page());
        let page = self.pages.entry(claim.page()).or_default();
        page.held.push(HeldLock { holder, claim, foreign, is_losing: false, until: None });
    }

    pub(super) fn give_back(&mut self, claim: LockClaim) {
        self.words.give_back(claim);
        claim.words().for_each(|index| self.free_unused(index));
    }

    pub(super) fn free_unused(&mut self, index: LockWordIndex) {
        if self.words.take_unused(index) {
            self.actions.push_back(LockAction::StoreLockWord(index, LockWord::FREE));
        }
    }

    pub(super) fn client_gone(&mut self, memory: &impl LockMemory, client: ClientId) {
        let wrote = memory
            .claims()
            .filter(|(id, claim)| id.client == client && claim.mode() == LockMode::Write);
        let mut claims = Vec::new();
        for (id, claim) in wrote.collect::<Vec<_>>() {
            let is_inherited = |index| match self.words.get(index) {
                Some(word) => word.is_inherited && word.claims != Claims::Known,
                None => memory.lock_word(index).is_managed(),
            };
            if claim.words().any(is_inherited) {
                // The words do not say whether the claim was held.
                self.found(memory, id, claim);
            }
            // Locks that the client took without the daemon are found when their words are managed.
            self.use_words(memory, claim);
            claims.push(claim);
        }
        self.going.insert(client, claims);
        self.actions.push_back(LockAction::Queue(LockEvent::ClaimsManaged(client)));
    }

    pub(super) fn claims_managed(
        &mut self,
        memory: &(impl PageWords + LockMemory),
        client: ClientId,
    ) {
        let of_client =
            |holder: &&LockHolder| matches!(holder, LockHolder::Client(id) if id.client == client);
        for holder in self.holders.keys().filter(of_client).copied().collect::<Vec<_>>() {
            self.end(memory, holder, LockEnd::Abandoned);
        }
        for claim in self.going.remove(&client).unwrap_or_default() {
            self.give_back(claim);
        }
        // Last, after what its writers leave is stored.
        self.actions.push_back(LockAction::ClearClaims(client));
    }
}
