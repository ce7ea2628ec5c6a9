//! The lock words that the daemon manages.

use alloc::collections::BTreeMap;

use rackpool_model::{LockClaim, LockWord, LockWordIndex};

/// All managed lock words that the machine uses.
#[derive(Debug, Default)]
pub(super) struct ManagedWords(BTreeMap<LockWordIndex, ManagedWord>);

/// A managed lock word. It stays as long as a held lock or a request has a line of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct ManagedWord {
    /// Number of lines of held locks and of requests that have this word.
    users: u32,
    /// Whether the claims of the word's lines are known.
    pub(super) claims: Claims,
    /// Whether an earlier daemon managed the word: locks of other racks may be held that this
    /// daemon does not know.
    pub(super) is_inherited: bool,
    /// Whether a writer ended without an unlock.
    pub(super) is_abandoned: bool,
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
                let found = word(index);
                ManagedWord {
                    users: 0,
                    claims: Claims::Unread,
                    is_inherited: found.is_managed(),
                    is_abandoned: found.is_abandoned(),
                }
            });
            managed.users += 1;
        }
        any_new
    }

    /// Ends a claim's use of its words. Calls `free` with each word that has no user any more, and
    /// its next value.
    pub(super) fn give_back(
        &mut self,
        claim: LockClaim,
        mut free: impl FnMut(LockWordIndex, LockWord),
    ) {
        for index in claim.words() {
            let Some(managed) = self.0.get_mut(&index) else { continue };
            managed.users = managed.users.saturating_sub(1);
            if managed.users > 0 {
                continue;
            }
            // A word that is not free leads each client to the daemon.
            let next = match (managed.is_inherited, managed.is_abandoned) {
                (true, is_abandoned) => LockWord::managed(is_abandoned),
                (false, true) => LockWord::ABANDONED,
                (false, false) => LockWord::FREE,
            };
            self.0.remove(&index);
            free(index, next);
        }
    }

    pub(super) fn get(&self, index: LockWordIndex) -> Option<ManagedWord> {
        self.0.get(&index).copied()
    }

    pub(super) fn get_mut(&mut self, index: LockWordIndex) -> Option<&mut ManagedWord> {
        self.0.get_mut(&index)
    }

    /// Returns true if the claims of all words are known, and no lock of an earlier daemon can be
    /// held.
    pub(super) fn are_known(&self, claim: LockClaim) -> bool {
        claim.words().all(|index| {
            self.get(index).is_some_and(|word| word.claims == Claims::Known && !word.is_inherited)
        })
    }

    /// Returns true if a writer of one of the words ended without an unlock.
    pub(super) fn are_abandoned(&self, claim: LockClaim) -> bool {
        claim.words().any(|index| self.get(index).is_some_and(|word| word.is_abandoned))
    }

    /// Sets whether a writer of the claim's words ended without an unlock. Calls `store` with each
    /// word that changes, and its next value.
    pub(super) fn abandon(
        &mut self,
        claim: LockClaim,
        is_abandoned: bool,
        mut store: impl FnMut(LockWordIndex, LockWord),
    ) {
        for index in claim.words() {
            if let Some(word) = self.0.get_mut(&index).filter(|w| w.is_abandoned != is_abandoned) {
                word.is_abandoned = is_abandoned;
                store(index, LockWord::managed(is_abandoned));
            }
        }
    }

    /// All words.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (LockWordIndex, &mut ManagedWord)> {
        self.0.iter_mut().map(|(index, word)| (*index, word))
    }

    /// Returns true if an earlier daemon managed one of the words.
    pub(super) fn has_inherited(&self) -> bool {
        self.0.values().any(|word| word.is_inherited)
    }
}
