//! Delays of answers to `AUTH`, which slow down guessing.
//!
//! The delay of a refusal doubles with each failure of its connection, and with each doubling of
//! the recent failures of all connections: a guesser is on this host and can open many connections.
//! While there are recent failures, the answer to a right password is delayed by the shortest of
//! these times. Otherwise a guesser could tell a wrong password by the missing answer and continue
//! on another connection.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The delay of the first refusal.
const FIRST: Duration = Duration::from_millis(100);
/// The most doublings.
const MAX_DOUBLINGS: u32 = 6;
/// The time after which one failure is forgotten.
const FORGET: Duration = Duration::from_secs(1);
/// The most recent failures that are counted.
const MAX_RECENT: u32 = 1 << MAX_DOUBLINGS;

/// The failures of all connections.
#[derive(Debug)]
pub struct AuthThrottle {
    recent: Mutex<Recent>,
}

#[derive(Debug)]
struct Recent {
    failures: u32,
    /// The start of the interval after which the next failure is forgotten.
    since: Instant,
}

impl Recent {
    /// Subtracts the failures that are forgotten by `now`.
    fn forget(&mut self, now: Instant) {
        let gone = now.saturating_duration_since(self.since).as_secs() / FORGET.as_secs();
        let gone = u32::try_from(gone).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_sub(gone);
        self.since = if self.failures == 0 { now } else { self.since + FORGET * gone };
    }
}

impl AuthThrottle {
    /// No failures yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { recent: Mutex::new(Recent { failures: 0, since: now }) }
    }

    /// Counts a failure; returns the delay of the refusal. `own_failures` is the number of failures
    /// of the connection, including this one.
    pub(crate) fn refused(&self, own_failures: u32, now: Instant) -> Duration {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.forget(now);
        recent.failures = (recent.failures + 1).min(MAX_RECENT);
        let doublings = own_failures.saturating_sub(1).max(recent.failures.ilog2());
        FIRST * (1 << doublings.min(MAX_DOUBLINGS))
    }

    /// The delay of the answer to a right password.
    pub(crate) fn accepted(&self, now: Instant) -> Duration {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.forget(now);
        if recent.failures == 0 { Duration::ZERO } else { FIRST }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_a_connection_waits_twice_as_long() {
        let begin = Instant::now();
        let throttle = AuthThrottle::new(begin);
        assert_eq!(throttle.accepted(begin), Duration::ZERO);
        for (failures, ms) in [(1, 100), (2, 200), (3, 400), (7, 6400), (1000, 6400)] {
            // Late enough that the failures of all connections are forgotten.
            let now = begin + Duration::from_secs(u64::from(failures) * 100);
            assert_eq!(throttle.refused(failures, now), Duration::from_millis(ms), "{failures}");
        }
    }

    #[test]
    fn failures_of_many_connections_count_together_and_are_forgotten() {
        let begin = Instant::now();
        let throttle = AuthThrottle::new(begin);
        let waits: Vec<u128> = (0..100).map(|_| throttle.refused(1, begin).as_millis()).collect();
        assert_eq!(waits[..8], [100, 200, 200, 400, 400, 400, 400, 800]);
        assert_eq!(waits[63..], [6400; 37]);
        assert_eq!(throttle.accepted(begin), FIRST);
        let later = begin + Duration::from_millis(63_900);
        assert_eq!(throttle.accepted(later), FIRST);
        assert_eq!(throttle.accepted(later + Duration::from_millis(200)), Duration::ZERO);
        assert_eq!(throttle.refused(1, later + Duration::from_secs(9)), FIRST);
    }
}
