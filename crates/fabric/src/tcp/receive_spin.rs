use std::time::{Duration, Instant};

/// About the cost of waking a thread: spinning longer costs more than it can save.
const LONGEST: Duration = Duration::from_micros(100);
const SHORTEST: Duration = Duration::from_micros(4);
/// After each fruitless spin whose count is a multiple of this, the next spin has the maximum time,
/// since a thread that sleeps cannot measure how soon the next work arrives.
const RETRY: u32 = 32;

/// How long the server spins before it sleeps: about twice as long as recent waits took, and hardly
/// at all if work mostly arrived after the spin.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveSpin {
    since: Option<Instant>,
    budget: Duration,
    in_vain: u32,
}

impl ReceiveSpin {
    pub(super) const fn new() -> Self {
        Self { since: None, budget: LONGEST, in_vain: 0 }
    }

    /// Called when there is no work. Returns true to spin on, false to sleep.
    pub(super) fn looks_again(&mut self, now: Instant) -> bool {
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        if waited < self.budget {
            return true;
        }
        self.in_vain += 1;
        self.budget = if self.in_vain.is_multiple_of(RETRY) {
            LONGEST
        } else {
            (self.budget - self.budget / 8).max(SHORTEST)
        };
        self.since = None;
        false
    }

    /// Called when work has arrived; adapts the spin time.
    pub(super) fn came(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_duration_since(since);
            let wanted = (took * 2).clamp(SHORTEST, LONGEST);
            // Raised at once, lowered by an eighth: a long spin costs little, an early sleep costs
            // much.
            self.budget = wanted.max(self.budget - self.budget / 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_in_vain_gets_short_and_is_tried_again() {
        let mut spin = ReceiveSpin::new();
        let mut now = Instant::now();
        let mut wait = || {
            let start = now;
            while spin.looks_again(now) {
                now += Duration::from_micros(1);
            }
            now - start
        };
        assert_eq!(wait(), LONGEST);
        let waits: Vec<Duration> = (0..64).map(|_| wait()).collect();
        assert!(waits.contains(&SHORTEST), "{waits:?}");
        assert!(waits.iter().filter(|wait| **wait == LONGEST).count() >= 2, "{waits:?}");
    }

    #[test]
    fn what_comes_soon_is_looked_for_twice_as_long() {
        let mut spin = ReceiveSpin::new();
        let start = Instant::now();
        for _ in 0..100 {
            assert!(spin.looks_again(start));
            spin.came(start + Duration::from_micros(10));
        }
        assert!(spin.looks_again(start));
        assert!(spin.looks_again(start + Duration::from_micros(19)));
        assert!(!spin.looks_again(start + Duration::from_micros(20)));
    }
}
