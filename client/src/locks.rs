//! The locks of one thread: claims in its slot, taken with one compare-and-swap where the lock is
//! free and its page in this rack, else by the daemon. docs/design/locks.md has the protocol.

use std::time::Duration;

use rackpool_model::{CLAIMS, ClaimId, FrameId, LockClaim, LockMode, PageState, PageWord};
use rackpool_ring::client_file::RingKind;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::lock_words::ClaimCell;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::lock::LockOutcome;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::deadline::{Deadline, Pauses, Retries};
use crate::error::LockError;
use crate::thread::{Target, Thread, access_error};
use crate::transfer::Bytes;
use crate::translation::Place;
use crate::{AccessError, DaemonError, GlobalAddr};

/// How long the cleaning up after a failed request may take.
const CLEAN_UP: Duration = Duration::from_secs(1);

/// What the thread knows of its claims: a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claims {
    /// The claims of held locks.
    held: u32,
    /// Those among them that the thread took without the daemon.
    own: u32,
    /// Claims that the daemon may still have. They are free after an unlock that it answers.
    unsettled: u32,
    /// Those among them of whose locks the thread does not know whether they were granted.
    withdrawn: u32,
    /// The claim under whose guard an operation runs.
    pub(crate) under: Option<u8>,
    /// Those among the held ones whose lines are in another rack.
    pub(crate) elsewhere: u32,
    /// The claims whose line caches have memory.
    pub(crate) has_memory: u32,
    /// Until when each claim's line cache can be read, in ns of the monotonic clock; 0: no lines
    /// were read from the home.
    pub(crate) fresh_until: [u64; CLAIMS as usize],
}

/// A lock that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenLock {
    pub(crate) claim: LockClaim,
    pub(crate) index: u8,
    /// Whether a writer ended without an unlock.
    pub(crate) recovered: bool,
}

impl Claims {
    /// Returns true if the thread's slot must stay with it.
    pub(crate) const fn has_any(&self) -> bool {
        self.held != 0 || self.unsettled != 0
    }
}

/// The indices of the bits that are set.
fn indices(bits: u32) -> impl Iterator<Item = u8> {
    (0..CLAIMS).filter(move |index| bits >> index & 1 != 0)
}

impl Thread {
    fn claim_id(&self, index: u8) -> ClaimId {
        ClaimId { client: self.connection.client, thread: self.index, index }
    }

    /// Stores a claim where the daemon looks for it.
    fn publish_claim(&self, index: u8, claim: LockClaim) {
        let slot = self.slot();
        if let Some(cell) = slot.claims.get(usize::from(index)) {
            if u64::from(index) >= slot.claims_used.load(Ordering::Relaxed) {
                slot.claims_used.store(u64::from(index) + 1, Ordering::Release);
            }
            cell.publish(claim);
        }
    }

    fn claim_cell(&self, index: u8) -> Option<&ClaimCell> {
        self.slot().claims.get(usize::from(index))
    }

    /// Locks the lines of `len` bytes.
    pub(crate) fn lock(
        &mut self,
        addr: GlobalAddr,
        len: usize,
        mode: LockMode,
        timeout: Duration,
    ) -> Result<TakenLock, LockError> {
        let target = self.target(addr, len)?;
        let size = self.connection.page_size;
        let claim = LockClaim::covering(target.page, target.offset, target.len, size, mode)
            .ok_or(LockError::TooLarge { addr, len: target.len })?;
        if self.claims.unsettled != 0 {
            self.settle_claims();
        }
        let index = self.free_claim(addr, claim)?;
        let taken = self.take_lock(&target, claim, index, timeout);
        if taken.is_ok() {
            self.claims.held |= 1 << index;
            return taken;
        }
        self.clear_lost(index);
        if self.claim_cell(index).is_some_and(|cell| cell.load().is_some()) {
            // The request may still be executed, and until the claim is cleared the daemon may find
            // it and take it for held.
            self.give_up(index);
        }
        taken
    }

    /// Returns a claim that the thread does not use. Refuses lines of which it holds the lock: it
    /// would wait for itself.
    fn free_claim(&self, addr: GlobalAddr, claim: LockClaim) -> Result<u8, LockError> {
        let used = self.claims.held | self.claims.unsettled;
        if used == 0 {
            return Ok(0);
        }
        if self.holds(claim) {
            return Err(LockError::AlreadyHeld(addr));
        }
        (0..CLAIMS).find(|index| used >> index & 1 == 0).ok_or(LockError::TooMany)
    }

    /// Returns true if the thread holds a lock of one of these lines.
    pub(crate) fn holds(&self, claim: LockClaim) -> bool {
        let held = |index| self.claim_cell(index).and_then(ClaimCell::load);
        indices(self.claims.held).any(|index| held(index).is_some_and(|one| one.overlaps(claim)))
    }

    fn take_lock(
        &mut self,
        target: &Target,
        claim: LockClaim,
        index: u8,
        timeout: Duration,
    ) -> Result<TakenLock, LockError> {
        let waits = Deadline::after(timeout);
        let retries = Retries::within(timeout.max(self.connection.request_timeout()));
        loop {
            let place = self.translate(target, AccessIntent::Read)?.place;
            if let Place::Local { frame, word } = place
                && self.take_here(frame, word, claim, index)?
            {
                return Ok(TakenLock { claim, index, recovered: false });
            }
            match self.ask_for_lock(claim, index, &waits)? {
                (LockOutcome::Granted { recovered }, number) => {
                    if let Some(number) = number {
                        self.begin_caching(index, number)?;
                    }
                    return Ok(TakenLock { claim, index, recovered });
                }
                (LockOutcome::TimedOut, _) => return Err(LockError::TimedOut(target.addr)),
                (LockOutcome::Moved | LockOutcome::Queued, _) => self.forget(target.page),
            }
            if waits.has_passed() && timeout > Duration::ZERO {
                return Err(LockError::TimedOut(target.addr));
            }
            if !retries.pause() {
                return Err(self.page_busy(target.addr).into());
            }
        }
    }

    /// Takes the lock of a line of this rack without the daemon. Returns false if that is not
    /// possible; the claim stays published then.
    #[inline]
    fn take_here(
        &mut self,
        frame: FrameId,
        known: PageWord,
        claim: LockClaim,
        index: u8,
    ) -> Result<bool, LockError> {
        let (id, barrier) = (self.claim_id(index), self.connection.barrier);
        let (Some(cell), Some(word)) = (self.claim_cell(index), claim.only_word()) else {
            return Ok(false);
        };
        // A daemon that started while the thread asked for this claim's lock may have set it.
        if self.is_lost(index) {
            self.clear_lost(index);
        }
        self.publish_claim(index, claim);
        if !self.connection.lock_words.cell(word).take(id, claim.mode(), barrier) {
            return Ok(false);
        }
        // SYNC: pairs with the `heavy` barrier that the daemon executes between changing the page
        // word and the scan of the claims.
        barrier.stand();
        let stays = self.window.look(frame).is_some_and(|now| {
            let same = (now.page(), now.epoch()) == (known.page(), known.epoch());
            same && matches!(now.state(), Some(PageState::Live | PageState::Shared))
        });
        if stays {
            self.claims.own |= 1 << index;
            return Ok(true);
        }
        // The page moves: the daemon grants the lock when it is at rest.
        cell.clear();
        if !self.connection.lock_words.cell(word).release(id, claim.mode(), barrier)
            && !self.give_up(index)
        {
            return Err(AccessError::from(DaemonError::Unavailable).into());
        }
        Ok(false)
    }

    /// Asks the daemon. Returns its number of the lock too, if the lines are in another rack.
    fn ask_for_lock(
        &mut self,
        claim: LockClaim,
        index: u8,
        waits: &Deadline<'_>,
    ) -> Result<(LockOutcome, Option<u64>), AccessError> {
        self.publish_claim(index, claim);
        let left = waits.left();
        let timeout_us = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
        let request = RackRequest::Lock { claim, index, timeout_us };
        let longest = left.saturating_add(self.connection.request_timeout());
        let deadline = Deadline::after(longest);
        let posted = self.calls.post(&self.connection, request, RingKind::Rack, &deadline)?;
        match self.calls.wait(&self.connection, posted, &deadline)?.outcome {
            Outcome::Answered(RackAnswer::Lock { outcome, number }) => Ok((outcome, number)),
            Outcome::Answered(refusal) => Err(access_error(refusal, self.addr_of(claim))),
            // The next daemon is asked.
            Outcome::Lost => Ok((LockOutcome::Moved, None)),
        }
    }

    /// Tells the daemon that a claim is cleared. It handles the unlock after all transfers that the
    /// thread has requested, those included that the thread has given up, and the withdrawal of a
    /// request after the request: each ring is a queue.
    fn tell_unlock(&mut self, index: u8, deadline: &Deadline<'_>) -> Result<(), DaemonError> {
        let withdrawn = self.claims.withdrawn >> index & 1 != 0;
        let request = RackRequest::Unlock { index, withdrawn };
        let ring = if withdrawn { RingKind::Rack } else { RingKind::Remote };
        // Calls that were given up may have all cells.
        let mut pauses = Pauses::default();
        while !self.calls.is_available(&self.connection) && !deadline.has_passed() {
            pauses.wait();
        }
        match self.calls.ask_once(&self.connection, request, ring, deadline)? {
            Outcome::Answered(RackAnswer::Done(_)) => Ok(()),
            Outcome::Answered(_) => Err(DaemonError::Protocol),
            // A daemon that did not see the claim does not know the lock.
            Outcome::Lost => Ok(()),
        }
    }

    /// Unlocks. Fails if the lock was lost, or if bytes could not be written back.
    #[inline]
    pub(crate) fn unlock(&mut self, index: u8) -> Result<(), AccessError> {
        let id = self.claim_id(index);
        let Some(claim) = self.claim_cell(index).and_then(ClaimCell::load) else { return Ok(()) };
        if self.is_elsewhere(index) {
            return self.unlock_elsewhere(claim, index);
        }
        let Some(cell) = self.claim_cell(index) else { return Ok(()) };
        let is_own = self.claims.own >> index & 1 != 0;
        cell.clear();
        let barrier = self.connection.barrier;
        let word = claim.only_word().filter(|_| is_own);
        let words = &self.connection.lock_words;
        let is_released =
            word.is_some_and(|word| words.cell(word).release(id, claim.mode(), barrier));
        self.claims.own &= !(1 << index);
        self.claims.held &= !(1 << index);
        if is_released && !self.is_lost(index) {
            return Ok(());
        }
        self.unlock_at_daemon(claim, index)
    }

    /// Unlocks lines of another rack.
    #[cold]
    fn unlock_elsewhere(&mut self, claim: LockClaim, index: u8) -> Result<(), AccessError> {
        let written = self.end_caching(claim, index);
        if let Some(cell) = self.claim_cell(index) {
            cell.clear();
        }
        self.claims.held &= !(1 << index);
        self.unlock_at_daemon(claim, index)?;
        written
    }

    #[cold]
    fn unlock_at_daemon(&mut self, claim: LockClaim, index: u8) -> Result<(), AccessError> {
        self.claims.unsettled |= 1 << index;
        let was_lost = self.is_lost(index);
        self.settle_claims();
        if was_lost {
            return Err(AccessError::LockLost(self.addr_of(claim)));
        }
        Ok(())
    }

    /// Gives up a claim that the daemon may have, whose lock the thread has not used. Returns false
    /// if the daemon does not answer now.
    fn give_up(&mut self, index: u8) -> bool {
        self.claims.unsettled |= 1 << index;
        self.claims.withdrawn |= 1 << index;
        self.settle_claims();
        self.claims.unsettled >> index & 1 == 0
    }

    /// Frees the claims that the daemon may still have, if it answers. The others stay unsettled:
    /// the lock that follows tries again.
    fn settle_claims(&mut self) {
        let deadline = Deadline::after(CLEAN_UP);
        for index in indices(self.claims.unsettled) {
            if let Some(cell) = self.claim_cell(index) {
                cell.clear();
            }
            if self.tell_unlock(index, &deadline).is_ok() {
                self.claims.unsettled &= !(1 << index);
                self.claims.withdrawn &= !(1 << index);
                self.clear_claim(index);
            }
        }
    }

    /// Frees a claim that no daemon has.
    fn clear_claim(&self, index: u8) {
        if let Some(cell) = self.claim_cell(index) {
            cell.clear();
        }
        self.clear_lost(index);
    }

    fn clear_lost(&self, index: u8) {
        self.slot().lost_claims.fetch_and(!(1 << index), Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn is_lost(&self, index: u8) -> bool {
        self.slot().lost_claims.load(Ordering::Acquire) >> index & 1 != 0
    }

    /// Returns true if the operation runs under a guard whose lock is lost. The caller has
    /// announced its access: the daemon sets the bit, executes a barrier, and then waits until no
    /// access is announced.
    #[inline]
    pub(crate) fn is_under_lost_lock(&self) -> bool {
        self.claims.under.is_some_and(|index| self.is_lost(index))
    }

    /// The first byte of the lock under whose guard the operation runs.
    pub(crate) fn locked_addr(&self) -> GlobalAddr {
        let claim = self.claims.under.and_then(|index| self.claim_cell(index)?.load());
        claim.map_or(GlobalAddr::NULL, |claim| self.addr_of(claim))
    }

    fn addr_of(&self, claim: LockClaim) -> GlobalAddr {
        let size = self.connection.page_size;
        GlobalAddr::new(claim.page(), claim.offset(), size).unwrap_or(GlobalAddr::NULL)
    }

    /// Executes a transfer under a guard.
    pub(crate) fn transfer_locked(
        &mut self,
        lock: LockClaim,
        index: u8,
        addr: GlobalAddr,
        bytes: Bytes<'_>,
    ) -> Result<(), AccessError> {
        self.claims.under = Some(index);
        let done = if self.is_elsewhere(index) {
            self.transfer_cached(lock, index, addr, bytes)
        } else {
            self.transfer_checked(addr, bytes)
        };
        self.claims.under = None;
        done
    }

    /// Unlocks everything when the thread ends.
    pub(crate) fn unlock_everything(&mut self) {
        if self.claims.unsettled != 0 {
            self.settle_claims();
        }
        for index in indices(self.claims.held) {
            // The guard was forgotten: nothing reports a loss.
            let _ = self.unlock(index);
        }
    }
}
