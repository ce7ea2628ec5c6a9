//! What the machine knows of a client.

use std::collections::HashSet;

use super::Now;
use crate::protocol::ObjectId;

/// A get whose objects are asked for in the pool waits as long at least, whatever its timeout.
pub(super) const LOOK_GRACE_MS: u64 = 100;
/// The times after which a waiting get asks again.
const FIRST_LOOK_MS: u64 = 2;
const LONGEST_LOOK_MS: u64 = 100;

/// How long a create waits for memory that was freed, and the times between its attempts and its
/// evictions.
const CREATE_TIMEOUT_MS: u64 = 1000;
const CREATE_RETRY_MS: u64 = 2;
const CREATE_EVICTS_MS: u64 = 100;

/// A client.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The objects that it uses, and its unsealed ones.
    pub(super) uses: HashSet<ObjectId>,
    /// The get that it waits for.
    pub(super) get: Option<PendingGet>,
    /// The create that waits for memory.
    pub(super) create: Option<PendingCreate>,
    /// How many objects of its batch are sealed.
    pub(super) batch_sealed: usize,
    pub(super) has_descriptor: bool,
    pub(super) name: String,
}

/// A create for which the memory had no room although the capacity has.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCreate {
    fails_ms: u64,
    evicts_ms: u64,
}

/// What a create does for which the memory has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It is tried again then.
    Again {
        /// It evicts first.
        evicts: bool,
        /// When.
        at_ms: u64,
    },
    /// It fails.
    Fails,
}

impl PendingCreate {
    pub(super) const fn new(now: Now) -> Self {
        Self { fails_ms: now.ms.saturating_add(CREATE_TIMEOUT_MS), evicts_ms: now.ms }
    }

    /// Decides after an attempt that has failed.
    pub(super) const fn failed(&mut self, now: Now) -> Attempt {
        if now.ms >= self.fails_ms {
            return Attempt::Fails;
        }
        let evicts = now.ms >= self.evicts_ms;
        if evicts {
            self.evicts_ms = now.ms.saturating_add(CREATE_EVICTS_MS);
        }
        Attempt::Again { evicts, at_ms: now.ms.saturating_add(CREATE_RETRY_MS) }
    }
}

/// A get that was not replied to.
#[derive(Debug)]
pub(super) struct PendingGet {
    /// The ids of the request.
    pub(super) ids: Vec<ObjectId>,
    /// Those that the client does not use yet.
    pub(super) missing: HashSet<ObjectId>,
    /// Those that the pool is asked for.
    pub(super) looking: HashSet<ObjectId>,
    /// When it is replied to; `None` if it has no timeout.
    deadline_ms: Option<u64>,
    looks_ms: u64,
    interval_ms: u64,
}

impl PendingGet {
    pub(super) fn new(
        ids: Vec<ObjectId>,
        missing: HashSet<ObjectId>,
        timeout_ms: i64,
        now: Now,
    ) -> Self {
        // A negative timeout is none.
        let timeout_ms = u64::try_from(timeout_ms).ok();
        Self {
            ids,
            looking: missing.clone(),
            missing,
            deadline_ms: timeout_ms.map(|timeout_ms| now.ms.saturating_add(timeout_ms)),
            looks_ms: now.ms.saturating_add(FIRST_LOOK_MS),
            interval_ms: FIRST_LOOK_MS,
        }
    }

    /// Returns true if the get is replied to now.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.missing.is_empty() || self.ends_ms().is_some_and(|ends_ms| ends_ms <= now.ms)
    }

    /// When it is replied to without what is missing.
    fn ends_ms(&self) -> Option<u64> {
        let grace_ms = if self.looking.is_empty() { 0 } else { LOOK_GRACE_MS };
        self.deadline_ms.map(|deadline_ms| deadline_ms.saturating_add(grace_ms))
    }

    /// Returns true if it asks for what is missing again, which begins now.
    pub(super) fn looks_again(&mut self, now: Now) -> bool {
        let looks = self.looking.is_empty() && self.looks_ms <= now.ms;
        if looks {
            self.interval_ms = self.interval_ms.saturating_mul(2).min(LONGEST_LOOK_MS);
            self.looks_ms = now.ms.saturating_add(self.interval_ms);
            self.looking.clone_from(&self.missing);
        }
        looks
    }

    /// When there is something to do for it.
    pub(super) fn wakes_ms(&self) -> Option<u64> {
        let looks_ms = self.looking.is_empty().then_some(self.looks_ms);
        self.ends_ms().into_iter().chain(looks_ms).min()
    }
}
