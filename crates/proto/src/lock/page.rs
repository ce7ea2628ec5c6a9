//! The locks of one page: those that are held, and the requests that wait.

use alloc::vec::Vec;

use rackpool_model::LockClaim;

use super::{LockHolder, LockRequester};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// The locks of a page.
#[derive(Debug, Default)]
pub(super) struct PageLocks {
    pub(super) held: Vec<HeldLock>,
    /// In the order in which they came.
    pub(super) waiting: Vec<WaitingLock>,
    /// Lines whose writer ended without an unlock, and where no writer has unlocked since.
    pub(super) abandoned: Vec<AbandonedLines>,
}

/// Lines whose writer ended without an unlock.
#[derive(Clone, Copy, Debug)]
pub(super) struct AbandonedLines {
    pub(super) claim: LockClaim,
    /// Where the claim is stored; `None` if all cells were in use. Then a restart of the daemon
    /// forgets it.
    pub(super) foreign: Option<u32>,
}

/// A held lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLock {
    pub(super) holder: LockHolder,
    pub(super) claim: LockClaim,
    /// Where the daemon has stored the claim of another rack's client.
    pub(super) foreign: Option<u32>,
    /// Set when the holder loses the lock. It is held until no access of its thread is under way.
    pub(super) is_losing: bool,
    /// When the lock passes on, if its endpoint has ended or an earlier daemon has granted it.
    pub(super) until: Option<Time>,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingLock {
    pub(super) requester: LockRequester,
    pub(super) claim: LockClaim,
    pub(super) until: Time,
}

/// A lock that was taken out.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemovedLock {
    pub(super) claim: LockClaim,
    pub(super) foreign: Option<u32>,
    pub(super) was_losing: bool,
    /// When it would have timed out or passed on.
    pub(super) until: Option<Time>,
}

impl LockRequester {
    /// The holder, once the lock is granted.
    pub(super) const fn holder(self) -> LockHolder {
        match self {
            Self::Client(id, _) => LockHolder::Client(id),
            Self::Rack(endpoint, number) => LockHolder::Rack(endpoint, number),
        }
    }
}

impl PageLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty() && self.abandoned.is_empty()
    }

    /// Returns what a holder has or waits for.
    pub(super) fn claim_of(&self, holder: LockHolder) -> Option<LockClaim> {
        let held = self.held.iter().find(|held| held.holder == holder).map(|held| held.claim);
        let mut waiting = self.waiting.iter();
        held.or_else(|| Some(waiting.find(|one| one.requester.holder() == holder)?.claim))
    }

    /// Takes the lock or the request of a holder out.
    pub(super) fn remove(&mut self, holder: LockHolder) -> Option<RemovedLock> {
        if let Some(index) = self.held.iter().position(|held| held.holder == holder) {
            let HeldLock { claim, foreign, is_losing, until, .. } = self.held.swap_remove(index);
            let was_losing = is_losing;
            return Some(RemovedLock { claim, foreign, was_losing, until });
        }
        let of_holder = |waiting: &WaitingLock| waiting.requester.holder() == holder;
        let index = self.waiting.iter().position(of_holder)?;
        let WaitingLock { claim, until, .. } = self.waiting.remove(index);
        Some(RemovedLock { claim, foreign: None, was_losing: false, until: Some(until) })
    }

    /// Takes out the first request that is `ready` and conflicts with no held lock and no earlier
    /// request.
    pub(super) fn take_grantable(
        &mut self,
        ready: impl Fn(LockClaim) -> bool,
        bugs: impl Bugs,
    ) -> Option<WaitingLock> {
        let index = (0..self.waiting.len()).find(|index| {
            let claim = self.waiting[*index].claim;
            let earlier = self.waiting[..*index].iter().map(|earlier| earlier.claim);
            let held = self.held.iter().map(|held| held.claim);
            let waits_for = |other: LockClaim| other.conflicts(claim);
            ready(claim)
                && !held.into_iter().any(waits_for)
                && (bugs.has(Bug::OvertakeWaitingLocks) || !earlier.into_iter().any(waits_for))
        })?;
        Some(self.waiting.remove(index))
    }

    /// Returns true if a request waits for this lock.
    pub(super) fn is_wanted(&self, held: &HeldLock) -> bool {
        self.waiting.iter().any(|waiting| waiting.claim.conflicts(held.claim))
    }
}
