//! The lock words that the daemon manages.

use alloc::collections::BTreeMap;

use rackpool_model::{LockClaim, LockWord, LockWordIndex};

/// All managed lock words that the machine uses.
#[derive(Debug, Default)]
pub(super) struct ManagedWords(BTreeMap<LockWordIndex, ManagedWord>);

/// A managed lock word. It stays as long as a lock, a request or an abandoned range has a line of
/// the word, or its claims are not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct ManagedWord {
    /// Number of lines of locks, of requests and of abandoned ranges that have this word.
    users: u32,
    /// Whether the claims of the word's lines are known.
    pub(super) claims: Claims,
    /// Whether an earlier daemon managed the word. Then any claim may be held, and the word does
    /// not say which.
    pub(super) is_inherited: bool,
}

/// What the machine knows of the claims of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claims {
    /// The word is being managed. Left when it is.
    Unread,
    /// A barrier is being executed. Left after it, when the claims are read.
    Awaited,
    /// Each claim that may be held is among the held locks.
    Known,
}

impl ManagedWords {
    /// Counts the claim as a user of its words. Returns true if one of them is new: the caller has
    /// the claim's words managed. `word` reads a word.
    pub(super) fn take(
        &mut self,
        claim: LockClaim,
        word: impl Fn(LockWordIndex) -> LockWord,
    ) -> bool {
        let mut any_new = false;
        for index in claim.words() {
            let managed = self.0.entry(index).or_insert_with(|| {
                any_new = true;
                let is_inherited = word(index).is_managed();
                ManagedWord { users: 0, claims: Claims::Unread, is_inherited }
            });
            managed.users += 1;
        }
        any_new
    }

    /// Ends a claim's use of its words. The caller calls [`Self::take_unused`] with each of them.
    pub(super) fn give_back(&mut self, claim: LockClaim) {
        for index in claim.words() {
            if let Some(managed) = self.0.get_mut(&index) {
                managed.users = managed.users.saturating_sub(1);
            }
        }
    }

    /// Takes a word out that has no user any more. Returns true if its next value is free. While
    /// its claims are not known the word stays: one of them may be held.
    pub(super) fn take_unused(&mut self, index: LockWordIndex) -> bool {
        let is_unused = |word: &ManagedWord| word.users == 0 && word.claims == Claims::Known;
        let found = self.0.get(&index).is_some_and(is_unused);
        if found {
            self.0.remove(&index);
        }
        found
    }

    pub(super) fn get(&self, index: LockWordIndex) -> Option<ManagedWord> {
        self.0.get(&index).copied()
    }

    pub(super) fn get_mut(&mut self, index: LockWordIndex) -> Option<&mut ManagedWord> {
        self.0.get_mut(&index)
    }

    /// Returns true if the claims of all words are known.
    pub(super) fn are_known(&self, claim: LockClaim) -> bool {
        claim.words().all(|index| self.get(index).is_some_and(|word| word.claims == Claims::Known))
    }
}
