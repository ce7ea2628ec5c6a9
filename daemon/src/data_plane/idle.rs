//! What the poll loop does between two rounds: poll again, yield the core, or sleep.

use std::time::{Duration, Instant};

use rackpool_sync::{AdaptiveSpin, Turn};

/// Maximum spinning time before a sleep: about the cost of a sleep. A few turns follow in which
/// other threads of the core can run.
const LONGEST: Duration = Duration::from_micros(10);
/// Minimum spinning time, for requests that are about to arrive.
const LEAST: Duration = Duration::from_micros(4);
const YIELDS: u32 = 24;

/// The busy-poll window: how long the data plane keeps polling after its last work, although it
/// could sleep. The next request then needs no wake-up.
#[derive(Debug)]
struct BusyPollWindow {
    time: Duration,
    /// `None` when there was work since the last check.
    until: Option<Instant>,
}

impl BusyPollWindow {
    /// Records that there was work.
    const fn begin(&mut self) {
        self.until = None;
    }

    /// Returns true while the window is open. Does not read the clock if the window is zero.
    fn is_open(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.time.is_zero() {
            return false;
        }
        let now = now();
        now < *self.until.get_or_insert(now + self.time)
    }
}

/// Spinning as the policy needs it; [`AdaptiveSpin`] outside of tests.
pub(super) trait Spin {
    /// Begins a wait; `yields` if the first turn yields the core.
    fn begin(&mut self, yields: bool);
    /// Waits briefly.
    fn turn(&mut self) -> Turn;
    /// Ends a wait.
    fn end(&mut self);
    /// Yields the core in the middle of long work.
    fn pause(&mut self);
}

impl Spin for AdaptiveSpin {
    fn begin(&mut self, yields: bool) {
        Self::begin(self, yields);
    }

    fn turn(&mut self) -> Turn {
        Self::turn(self)
    }

    fn end(&mut self) {
        Self::end(self);
    }

    fn pause(&mut self) {
        Self::pause(self);
    }
}

/// What a data plane without work does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// Polls again.
    Poll,
    /// Yields the core, then polls again.
    Yield,
    /// Sleeps until an event.
    Sleep,
}

/// The state of a round in which there was nothing to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleRound {
    /// A thread was woken since the last idle round: it probably waits for this core.
    pub(super) has_woken: bool,
    /// Pages are moving. Messages are then further apart than spinning bridges, and the processes
    /// that take part in the move or wait for it need the core.
    pub(super) are_pages_moving: bool,
}

/// Decides when the poll loop spins, yields or sleeps.
#[derive(Debug)]
pub(super) struct IdlePolicy<S = AdaptiveSpin> {
    spin: S,
    window: BusyPollWindow,
    /// Set while a wait of `spin` is under way.
    is_waiting: bool,
}

impl IdlePolicy {
    /// Makes a policy with a busy-poll window of `time`.
    pub(super) const fn new(time: Duration) -> Self {
        Self::with_spin(AdaptiveSpin::new(LEAST, LONGEST, YIELDS), time)
    }
}

impl<S: Spin> IdlePolicy<S> {
    const fn with_spin(spin: S, time: Duration) -> Self {
        Self { spin, window: BusyPollWindow { time, until: None }, is_waiting: false }
    }

    /// There was work, or a completion is expected: the loop polls again. `has_copied` if a
    /// page-copy chunk completed, which an emulated fabric copies on this core.
    pub(super) fn worked(&mut self, has_copied: bool) {
        self.window.begin();
        self.end_wait();
        if has_copied {
            self.spin.pause();
        }
    }

    /// Returns true while the busy-poll window is open. The loop then yields the core, because data
    /// planes of other racks may share it, and polls again.
    pub(super) fn keeps_polling(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.window.is_open(now)
    }

    /// There was no work. `is_urgent` returns true if a writer waits for a few messages only.
    pub(super) fn idle(&mut self, round: IdleRound, is_urgent: impl FnOnce() -> bool) -> Idle {
        let IdleRound { has_woken, are_pages_moving } = round;
        if has_woken {
            self.end_wait();
        }
        if !std::mem::replace(&mut self.is_waiting, true) {
            self.spin.begin(has_woken || are_pages_moving);
        }
        if self.spin.turn() == Turn::Again && !are_pages_moving {
            Idle::Poll
        } else if is_urgent() {
            // Another thread that the swap depends on gets the core.
            Idle::Yield
        } else {
            Idle::Sleep
        }
    }

    /// The sleep is over.
    pub(super) fn slept(&mut self) {
        self.spin.end();
        self.is_waiting = false;
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.spin.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A spin that spins `turns` times in each wait, and records what it is told.
    #[derive(Default)]
    struct Script {
        turns: u32,
        left: u32,
        begun: Vec<bool>,
        ended: u32,
        paused: u32,
    }

    impl Spin for Script {
        fn begin(&mut self, yields: bool) {
            self.left = self.turns;
            self.begun.push(yields);
        }

        fn turn(&mut self) -> Turn {
            match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    Turn::Again
                }
                None => Turn::Sleep,
            }
        }

        fn end(&mut self) {
            self.ended += 1;
        }

        fn pause(&mut self) {
            self.paused += 1;
        }
    }

    const QUIET: IdleRound = IdleRound { has_woken: false, are_pages_moving: false };

    fn policy(turns: u32) -> IdlePolicy<Script> {
        IdlePolicy::with_spin(Script { turns, ..Script::default() }, Duration::ZERO)
    }

    #[test]
    fn it_spins_and_then_sleeps() {
        let mut policy = policy(2);
        let nothing = || unreachable!("only a data plane that is about to sleep asks");
        assert_eq!(policy.idle(QUIET, nothing), Idle::Poll);
        assert_eq!(policy.idle(QUIET, nothing), Idle::Poll);
        assert_eq!(policy.idle(QUIET, || false), Idle::Sleep);
        assert_eq!((policy.spin.begun.as_slice(), policy.spin.ended), (&[false][..], 0));
        policy.slept();
        assert_eq!(policy.idle(QUIET, nothing), Idle::Poll, "a new wait");
        assert_eq!((policy.spin.begun.as_slice(), policy.spin.ended), (&[false; 2][..], 1));
    }

    #[test]
    fn work_ends_a_wait_once() {
        let mut policy = policy(5);
        assert_eq!(policy.idle(QUIET, || false), Idle::Poll);
        policy.worked(false);
        policy.worked(false);
        assert_eq!((policy.spin.ended, policy.spin.paused), (1, 0));
        policy.worked(true);
        assert_eq!((policy.spin.ended, policy.spin.paused), (1, 1), "only a copy pauses");
    }

    #[test]
    fn after_waking_a_thread_the_next_wait_yields_first() {
        let mut policy = policy(5);
        assert_eq!(policy.idle(QUIET, || false), Idle::Poll);
        let woken = IdleRound { has_woken: true, ..QUIET };
        assert_eq!(policy.idle(woken, || false), Idle::Poll);
        assert_eq!((policy.spin.begun.as_slice(), policy.spin.ended), (&[false, true][..], 1));
    }

    #[test]
    fn while_pages_move_it_does_not_spin() {
        let mut policy = policy(5);
        let moves = IdleRound { are_pages_moving: true, ..QUIET };
        assert_eq!(policy.idle(moves, || false), Idle::Sleep);
        assert_eq!(policy.idle(moves, || true), Idle::Yield, "a writer waits");
    }

    #[test]
    fn it_polls_for_the_window_after_the_last_work_and_then_sleeps_until_there_is_some() {
        let (start, time) = (Instant::now(), Duration::from_millis(3));
        let mut policy = IdlePolicy::with_spin(Script::default(), time);
        let mut polls = |after| policy.keeps_polling(|| start + after);
        assert!(polls(Duration::ZERO) && polls(time / 2));
        assert!(!polls(time) && !polls(time * 2), "woken by nothing, it sleeps again");
        policy.worked(false);
        let mut polls = |after| policy.keeps_polling(|| start + after);
        assert!(polls(time * 3) && polls(time * 7 / 2) && !polls(time * 4));
        assert!(!self::policy(0).keeps_polling(|| unreachable!("no window, no clock")));
    }
}
