//! Locks that clients take without their daemon: a thread's claims, and the lock words that index
//! them. The protocol is in docs/design/locks.md.

use rackpool_model::{ClaimId, LockClaim, LockMode, LockWord};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

/// Attempts to change a lock word that others change at the same time. After these the daemon
/// decides.
const ATTEMPTS: usize = 4;

/// What a thread holds or is acquiring: 0, or a [`LockClaim`]. One thread of one client writes it,
/// the daemon reads it, and clears it when the client has gone.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ClaimCell(AtomicU64);

/// A [`LockWord`] in the rack's table.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct LockCell(AtomicU64);

#[cfg(not(loom))]
// SAFETY: transparent around one atomic integer.
unsafe impl crate::Shared for ClaimCell {}
#[cfg(not(loom))]
// SAFETY: transparent around one atomic integer.
unsafe impl crate::Shared for LockCell {}

impl ClaimCell {
    /// An empty cell.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The claim. Bytes that are no claim count as none. A faulty client can lose its own locks or
    /// keep others from getting them here; lock words, which it can write too, guard honest
    /// clients only.
    #[must_use]
    pub fn load(&self) -> Option<LockClaim> {
        // SYNC: pairs with the release store in `clear`: what the holder wrote is complete.
        LockClaim::from_raw(self.0.load(Ordering::Acquire))
    }

    /// Stores a claim. The thread then takes the lock or asks the daemon.
    #[inline]
    pub fn publish(&self, claim: LockClaim) {
        self.0.store(claim.to_raw(), Ordering::Release);
    }

    /// Clears the cell: the thread does not hold the lock.
    #[inline]
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl LockCell {
    /// A free lock.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The word.
    #[must_use]
    pub fn load(&self) -> LockWord {
        LockWord::from_raw(self.0.load(Ordering::Acquire))
    }

    /// Takes the lock for a claim that is published. Returns false if the daemon must be asked; the
    /// claim stays published then.
    #[inline]
    pub fn take(&self, claim: ClaimId, mode: LockMode, barrier: Barrier) -> bool {
        match mode {
            // SYNC: pairs with `release` of the last holder and with `manage`: the daemon that
            // finds the claim named loads the claim that was published before.
            LockMode::Write => self.exchange(LockWord::FREE, LockWord::named(claim, mode)).is_ok(),
            LockMode::Read => self.take_to_read(claim, barrier),
        }
    }

    #[inline]
    fn take_to_read(&self, claim: ClaimId, barrier: Barrier) -> bool {
        let mut found = LockWord::FREE;
        for _ in 0..ATTEMPTS {
            if found == LockWord::SHARED {
                // SYNC: pairs with the `heavy` barrier that the daemon executes between `manage`
                // and the scan of the claims.
                barrier.stand();
                found = self.load();
                if found == LockWord::SHARED {
                    return true;
                }
                continue;
            }
            let is_open = found == LockWord::FREE || found.is_shared();
            if !is_open || found.is_managed() {
                return false;
            }
            let new = match found {
                LockWord::FREE => LockWord::named(claim, LockMode::Read),
                _ => LockWord::SHARED,
            };
            match self.exchange(found, new) {
                Ok(()) => return true,
                Err(now) => found = now,
            }
        }
        false
    }

    /// Releases a lock whose claim is cleared. Returns false if the daemon must be told.
    #[inline]
    pub fn release(&self, claim: ClaimId, mode: LockMode, barrier: Barrier) -> bool {
        let named = LockWord::named(claim, mode);
        match (self.exchange(named, LockWord::FREE), mode) {
            (Ok(()), _) => true,
            (Err(_), LockMode::Write) => false,
            (Err(_), LockMode::Read) => {
                // SYNC: pairs with the `heavy` barrier that the daemon executes between `manage`
                // and the scan: the scan finds the claim cleared, or this thread finds the word
                // managed.
                barrier.stand();
                !self.load().is_managed()
            }
        }
    }

    #[inline]
    fn exchange(&self, from: LockWord, to: LockWord) -> Result<(), LockWord> {
        // Sequentially consistent: the caller then loads the page word, and the daemon that changes
        // the page word scans the claims.
        self.0
            .compare_exchange(from.raw(), to.raw(), Ordering::SeqCst, Ordering::Acquire)
            .map(drop)
            .map_err(LockWord::from_raw)
    }

    /// Makes the word managed. From then on only the daemon changes it.
    pub fn manage(&self) -> LockWord {
        LockWord::from_raw(self.0.fetch_or(LockWord::MANAGED.raw(), Ordering::AcqRel))
    }

    /// Stores a managed word's next value. Only the daemon calls it.
    pub fn store(&self, word: LockWord) {
        self.0.store(word.raw(), Ordering::Release);
    }
}

#[cfg(not(loom))]
pub use table::LockWords;

#[cfg(not(loom))]
mod table {
    use std::sync::Arc;

    use rackpool_model::{FOREIGN_CLAIMS, LOCK_WORDS, LockClaim, LockWordIndex};

    use super::{ClaimCell, LockCell};
    use crate::{HeldView, Mapping, OutsideMapping, Shared};

    /// The file as laid out.
    #[derive(Debug)]
    #[repr(C)]
    struct LocksArea {
        words: [LockCell; LOCK_WORDS as usize],
        foreign: [ClaimCell; FOREIGN_CLAIMS as usize],
    }

    // SAFETY: `repr(C)`, nothing but shared types.
    unsafe impl Shared for LocksArea {}

    /// The mapped lock words of a rack, and the claims for which its daemon answers.
    #[derive(Debug)]
    pub struct LockWords(HeldView<LocksArea>);

    impl LockWords {
        /// Length in bytes of the file.
        pub const BYTES: u64 = size_of::<LocksArea>() as u64;

        /// Lays the structures over a mapping. Fails if the mapping is too short.
        pub fn new(memory: &Arc<Mapping>) -> Result<Self, OutsideMapping> {
            Ok(Self(HeldView::new(memory, 0)?))
        }

        /// The lock word with this index.
        #[inline]
        #[must_use]
        pub fn cell(&self, index: LockWordIndex) -> &LockCell {
            // There are as many words as indices.
            &self.0.words[index.get()]
        }

        /// The claims for which the daemon answers, with their indices.
        pub fn foreign(&self) -> impl Iterator<Item = (u32, LockClaim)> {
            (0..).zip(&self.0.foreign).filter_map(|(index, cell)| Some((index, cell.load()?)))
        }

        /// Stores a claim for which the daemon answers, or clears it.
        pub fn store_foreign(&self, index: u32, claim: Option<LockClaim>) {
            match (self.0.foreign.get(index as usize), claim) {
                (Some(cell), Some(claim)) => cell.publish(claim),
                (Some(cell), None) => cell.clear(),
                (None, _) => {}
            }
        }
    }
}
