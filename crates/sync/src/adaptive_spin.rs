use std::time::{Duration, Instant};

/// What the caller does after a check of a condition that does not hold yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Check again.
    Again,
    /// Spinning is no longer worthwhile: sleep.
    Sleep,
}

/// Adaptive spinning: waits by repeated checks for as long as that is likely to pay. It spins
/// without a pause at first, then with the processor's pause instruction, then yields the core;
/// finally it tells the caller to sleep.
///
/// Waking a blocked thread takes 8 to 60 us on the machines measured, moving a cache line 0.1 us.
/// Spinning therefore pays for events that come within microseconds.
///
/// Past waits determine how long the next wait spins: about twice the time that events took, and
/// the least time if most came too late. Occasionally a wait spins for the longest time again,
/// because an event that arrives while the thread sleeps does not show how early spinning would
/// have seen it. The limit is a time and not a number of checks, because the cost of a check
/// depends on what is checked.
///
/// The duration of a yield shows whether another thread wants the core. If another thread used it,
/// further checks would not have helped, and the next waits yield earlier. If another thread used
/// it for a whole time slice of the kernel (some ms), this wait and the next ones do not yield any
/// more: the kernel prefers a woken thread to such a thread, whereas a yielding thread has to wait
/// for its turn.
///
/// A waiter that has just woken another thread yields before it checks: kernels tend to place a
/// woken thread on its waker's core, where it would have to wait until the spinning ends.
///
/// ```
/// use std::time::Duration;
/// use rackpool_sync::{AdaptiveSpin, Turn};
/// let mut spin = AdaptiveSpin::new(Duration::from_micros(4), Duration::from_micros(10), 12);
/// spin.begin(false);
/// while spin.turn() == Turn::Again { /* look, and break when it has come */ }
/// spin.end();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveSpin {
    least: Duration,
    longest: Duration,
    yields: u32,
    /// Estimate of the time that events take, learnt from past waits.
    took: Duration,
    /// Waits since the last one with the longest budget that ended in sleep or yielded to a thread
    /// that used the core.
    in_vain: u32,
    /// Number of next waits that do not yield the core.
    beside_busy: u32,
    /// Earliest time at which [`Self::pause`] yields again.
    next_pause: Option<Instant>,
    wait: Wait,
}

/// State of the current wait, or of the last one.
#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Start of the measured spinning: the begin of the wait, or the end of its last yield.
    since: Option<Instant>,
    /// Time since then at the last reading of the clock.
    lasted: Duration,
    /// How long this wait spins before it yields.
    budget: Duration,
    looks: u32,
    /// Number of yields left.
    yields: u32,
    /// Set if the next turn yields unconditionally.
    makes_way: bool,
    /// Set if another thread used the core during a yield.
    made_way: bool,
    slept: bool,
}

/// Checks without a pause instruction: an event within a round trip between two cores is seen at
/// once, not up to one pause (10 to 60 ns) later.
const TIGHT: u32 = 64;
/// Checks per reading of the clock, which costs about as much as a pause.
const CLOCK: u32 = 4;
/// After this many waits in which spinning was in vain, one wait spins for the longest time.
const RETRY: u32 = 32;
/// A yield takes at most this long if no other thread wants the core.
const NOBODY: Duration = Duration::from_micros(1);
/// A yield takes longer than this if another thread uses its whole time slice; a peer that serves
/// or requests returns the core earlier.
const BUSY: Duration = Duration::from_micros(20);
/// Number of waits after such a yield that do not yield.
const BESIDE_BUSY: u32 = 64;
/// Long work continues for this multiple of the time of its last interruption.
const WORK: u32 = 2;

impl AdaptiveSpin {
    /// A wait spins for `least` to `longest`, then yields the core `yields` times, then sleeps.
    ///
    /// # Panics
    /// If `least` exceeds `longest`, which is a bug of the caller.
    #[must_use]
    pub const fn new(least: Duration, longest: Duration, yields: u32) -> Self {
        assert!(least.as_nanos() <= longest.as_nanos(), "the least is more than the most");
        let wait = Wait {
            since: None,
            lasted: Duration::ZERO,
            budget: longest,
            looks: 0,
            yields,
            makes_way: false,
            made_way: false,
            slept: false,
        };
        let took = longest.checked_div(2).expect("2 is not 0");
        Self { least, longest, yields, took, in_vain: 0, beside_busy: 0, next_pause: None, wait }
    }

    /// Begins a wait. `has_woken` states whether the thread has just woken another one.
    #[inline]
    pub fn begin(&mut self, has_woken: bool) {
        self.begin_at(Instant::now(), has_woken);
    }

    #[inline]
    fn begin_at(&mut self, now: Instant, has_woken: bool) {
        let budget = if self.in_vain >= RETRY {
            self.in_vain = 0;
            self.longest
        } else {
            (self.took * 2).clamp(self.least, self.longest)
        };
        let may_yield = self.beside_busy == 0;
        self.beside_busy = self.beside_busy.saturating_sub(1);
        self.wait = Wait {
            since: Some(now),
            lasted: Duration::ZERO,
            budget,
            looks: 0,
            yields: if may_yield { self.yields } else { 0 },
            makes_way: has_woken && may_yield,
            made_way: false,
            slept: false,
        };
    }

    /// Waits briefly, then tells the caller to check again or to sleep. Call it after each failed
    /// check.
    #[inline]
    pub fn turn(&mut self) -> Turn {
        self.turn_at(Instant::now)
    }

    #[inline]
    fn turn_at(&mut self, now: impl Fn() -> Instant) -> Turn {
        let wait = &mut self.wait;
        if std::mem::take(&mut wait.makes_way) {
            self.make_way(now);
        } else if wait.is_looking() {
            if wait.looks >= TIGHT {
                core::hint::spin_loop();
            }
            wait.looks += 1;
            if wait.looks.is_multiple_of(CLOCK) {
                wait.look_at_clock(now());
            }
        } else if wait.yields > 0 {
            wait.yields -= 1;
            self.wait.made_way |= self.make_way(now);
        } else {
            wait.slept = true;
            return Turn::Sleep;
        }
        Turn::Again
    }

    /// Yields the core once. Returns true if another thread used it. The measured spinning starts
    /// anew afterwards.
    #[cold]
    fn make_way(&mut self, now: impl Fn() -> Instant) -> bool {
        let start = now();
        std::thread::yield_now();
        let end = now();
        self.wait.since = Some(end);
        self.was_away(end.saturating_duration_since(start))
    }

    /// Records a yield that took `time`. Returns true if another thread used the core.
    fn was_away(&mut self, time: Duration) -> bool {
        if time > BUSY {
            self.beside_busy = BESIDE_BUSY;
            self.wait.yields = 0;
        }
        time > NOBODY
    }

    /// Yields the core in the middle of long work, if that work has continued for at least twice
    /// the time of its last interruption. Beside a thread that uses whole time slices, most of the
    /// core's time stays with the caller.
    pub fn pause(&mut self) {
        self.pause_at(Instant::now, std::thread::yield_now);
    }

    fn pause_at(&mut self, now: impl Fn() -> Instant, give_away: impl FnOnce()) {
        let start = now();
        if self.next_pause.is_some_and(|next| start < next) {
            return;
        }
        give_away();
        let end = now();
        self.next_pause = Some(end + end.saturating_duration_since(start) * WORK);
    }

    /// Ends a wait: the event has arrived.
    #[inline]
    pub fn end(&mut self) {
        if self.wait.slept || self.wait.made_way {
            self.in_vain += 1;
            self.took -= self.took / 8;
            return;
        }
        // The estimate rises at once and falls by eighths: spinning too long costs little, sleeping
        // too early a lot.
        let took = self.wait.lasted.min(self.longest);
        self.took = took.max(self.took - self.took / 8 + took / 8);
    }
}

impl Wait {
    const fn is_looking(&self) -> bool {
        self.lasted.as_nanos() < self.budget.as_nanos()
    }

    fn look_at_clock(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.lasted = now.saturating_duration_since(since);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LEAST: Duration = Duration::from_micros(4);
    const LONGEST: Duration = Duration::from_micros(16);
    const SOON: Duration = Duration::from_micros(6);
    const LATE: Duration = Duration::from_millis(1);

    /// A clock that advances by `step` with each reading.
    struct Clock {
        now: Cell<Instant>,
        step: Duration,
    }

    impl Clock {
        fn new(step: Duration) -> Self {
            Self { now: Cell::new(Instant::now()), step }
        }

        fn now(&self) -> Instant {
            self.now.replace(self.now.get() + self.step)
        }
    }

    /// Waits for an event that comes after `needed`. Returns how long the wait spun, and whether it
    /// slept.
    fn wait(spin: &mut AdaptiveSpin, needed: Duration) -> (Duration, bool) {
        let clock = Clock::new(Duration::from_nanos(100));
        let start = clock.now.get();
        spin.begin_at(start, false);
        let slept = loop {
            if spin.wait.lasted >= needed {
                break false;
            }
            if spin.turn_at(|| clock.now()) == Turn::Sleep {
                break true;
            }
        };
        spin.end();
        (spin.wait.lasted, slept)
    }

    #[test]
    fn what_comes_soon_is_waited_for_and_what_comes_late_is_not() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 2);
        assert!((0..100).all(|_| !wait(&mut spin, SOON).1));
        let wasted: Vec<_> = (0..100).map(|_| wait(&mut spin, LATE).0).collect();
        assert!(wasted[50..].iter().filter(|time| **time > LEAST).count() <= 3, "{wasted:?}");
    }

    #[test]
    fn it_finds_out_when_looking_pays_again() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 0);
        for _ in 0..100 {
            wait(&mut spin, LATE);
        }
        let slept = (0..300).filter(|_| wait(&mut spin, SOON).1).count();
        assert!(slept < 200, "slept {slept} times of 300");
        assert!((0..50).all(|_| !wait(&mut spin, SOON).1));
    }

    #[test]
    fn time_is_bounded_whatever_a_look_costs() {
        let look = Duration::from_micros(3);
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 0);
        let clock = Clock::new(look * CLOCK);
        spin.begin_at(clock.now.get(), false);
        let mut looks = 0;
        while spin.turn_at(|| clock.now()) == Turn::Again {
            looks += 1;
        }
        assert!(look * looks <= LONGEST + look * CLOCK * 2, "{looks} looks");
    }

    /// A wait whose yield, if it comes to one, takes `away`. Returns how long it spun before.
    fn wait_beside(spin: &mut AdaptiveSpin, away: Duration) -> Duration {
        let clock = Clock::new(Duration::from_nanos(100));
        spin.begin_at(clock.now.get(), false);
        while spin.wait.is_looking() {
            assert_eq!(spin.turn_at(|| clock.now()), Turn::Again);
        }
        let looked = spin.wait.lasted;
        if spin.wait.yields > 0 {
            spin.wait.made_way |= spin.was_away(away);
        } else {
            assert_eq!(spin.turn_at(|| clock.now()), Turn::Sleep);
        }
        spin.end();
        looked
    }

    #[test]
    fn a_core_that_others_want_is_given_away_early() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 2);
        let looked: Vec<_> =
            (0..50).map(|_| wait_beside(&mut spin, Duration::from_micros(3))).collect();
        assert!(looked[0] >= LONGEST);
        let many = looked[25..].iter().filter(|time| **time > LEAST * 2).count();
        assert!(many <= 1, "{looked:?}");
    }

    #[test]
    fn beside_a_busy_thread_it_sleeps_instead_of_yielding() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 2);
        wait_beside(&mut spin, Duration::from_millis(3));
        for _ in 0..BESIDE_BUSY {
            spin.begin(true);
            assert!(!spin.wait.makes_way && spin.wait.yields == 0);
            spin.end();
        }
        spin.begin(true);
        assert!(spin.wait.makes_way && spin.wait.yields == 2, "never again");
    }

    #[test]
    fn who_has_woken_somebody_gives_the_core_away_before_it_looks() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 0);
        let clock = Clock::new(Duration::from_nanos(100));
        spin.begin_at(clock.now.get(), true);
        assert_eq!(spin.turn_at(|| clock.now()), Turn::Again);
        assert_eq!((spin.wait.looks, spin.wait.made_way), (0, false));
        assert_eq!(spin.turn_at(|| clock.now()), Turn::Again);
        assert_eq!(spin.wait.looks, 1, "once");
    }

    #[test]
    fn what_others_used_the_core_for_is_not_counted_as_looking() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 3);
        let clock = Clock::new(LONGEST * 2);
        spin.begin_at(clock.now.get(), true);
        assert_eq!(spin.turn_at(|| clock.now()), Turn::Again);
        assert_eq!(spin.wait.yields, 0, "beside a busy thread it sleeps after its looks");
        let looks_begin = spin.wait.since.unwrap();
        let clock = Clock { now: Cell::new(looks_begin), step: Duration::from_nanos(100) };
        (0..CLOCK).for_each(|_| assert_eq!(spin.turn_at(|| clock.now()), Turn::Again));
        assert!(spin.wait.lasted < LEAST && spin.wait.is_looking());
    }

    #[test]
    fn long_work_goes_on_for_longer_than_it_was_interrupted_for() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 2);
        let clock = Clock::new(Duration::ZERO);
        let go_on = |time| clock.now.set(clock.now.get() + time);
        let (piece, turn) = (Duration::from_micros(10), Duration::from_millis(4));
        let pauses = Cell::new(0);
        let mut work = |pieces: u32, away| {
            pauses.set(0);
            for _ in 0..pieces {
                go_on(piece);
                let interrupt = || {
                    pauses.set(pauses.get() + 1);
                    go_on(away);
                };
                spin.pause_at(|| clock.now(), interrupt);
            }
            pauses.get()
        };
        assert_eq!(work(100, Duration::from_micros(4)), 100, "for a short question each time");
        assert_eq!(work(100, turn), 1);
        let beside_busy = work(10_000, turn);
        assert!((10..=13).contains(&beside_busy), "{beside_busy} turns in 100 ms of work");
    }

    #[test]
    fn the_longest_time_is_kept() {
        let mut spin = AdaptiveSpin::new(LEAST, LONGEST, 3);
        for _ in 0..100 {
            assert!(wait(&mut spin, LATE).0 <= LONGEST + Duration::from_micros(1));
            assert!(wait(&mut spin, LONGEST).0 <= LONGEST + Duration::from_micros(1));
        }
    }
}
