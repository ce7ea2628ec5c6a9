use std::time::{Duration, Instant};

use crate::{Spin, Turn};

/// Waiting by looking, for as long as it is likely to pay.
///
/// What was waited for in the past says how long to look in the future: about twice as long as it
/// took to come, and only for the least time when it mostly came too late. Now and then a wait is given the
/// longest time again, because what comes to a sleeper tells nothing about how soon it came.
///
/// Giving the core away shows who else wants it. When somebody used it, more looks would not have
/// helped: the next waits give it away earlier. When somebody used it up, the kernel's turn for a
/// busy thread (some ms), the next waits do not give it away at all: a thread that sleeps is put
/// before such a one when it is woken, a thread that yields has to wait for its turn.
///
/// ```
/// use rackpool_sync::{Patience, Turn};
/// let mut patience = Patience::new(100, 400, 12);
/// patience.begin();
/// while patience.turn() == Turn::Again { /* look, and break when it has come */ }
/// patience.end();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    spin: Spin,
    least: u32,
    longest: u32,
    yields: u32,
    /// Looks it took lately, in sixteenths.
    took: u32,
    looks: u32,
    slept: bool,
    /// Somebody else used the core meanwhile.
    made_way: bool,
    /// Waits since the last one that looked for the longest time, if they ended in sleep or made
    /// way.
    in_vain: u32,
    /// Waits that will not give the core away.
    beside_busy: u32,
}

/// Every so many waits in which looking was in vain, one looks for the longest time.
const RETRY: u32 = 32;
/// Giving the core away takes less when nobody wants it.
const NOBODY: Duration = Duration::from_micros(1);
/// It takes more when somebody uses the core for as long as the kernel lets him; a peer that serves
/// or asks gives it back earlier.
const BUSY: Duration = Duration::from_micros(20);
/// So many waits after that do not give the core away.
const BESIDE_BUSY: u32 = 64;
const SCALE: u32 = 16;

impl Patience {
    /// Looks `least` to `longest` times, about 40 ns each after the first 64, then gives the core away
    /// `yields` times, then says that it is time to sleep.
    ///
    /// # Panics
    /// When `least` is more than `longest`, a bug of the caller.
    #[must_use]
    pub const fn new(least: u32, longest: u32, yields: u32) -> Self {
        assert!(least <= longest, "the least is more than the most");
        Self {
            spin: Spin::new(longest, yields),
            least,
            longest,
            yields,
            took: longest * SCALE / 2,
            looks: 0,
            slept: false,
            made_way: false,
            in_vain: 0,
            beside_busy: 0,
        }
    }

    /// A wait begins.
    #[inline]
    pub fn begin(&mut self) {
        let pauses = if self.in_vain >= RETRY {
            self.in_vain = 0;
            self.longest
        } else {
            (self.took / SCALE * 2).clamp(self.least, self.longest)
        };
        let yields = if self.beside_busy == 0 { self.yields } else { 0 };
        self.beside_busy = self.beside_busy.saturating_sub(1);
        self.spin = Spin::new(pauses, yields);
        self.looks = 0;
        self.slept = false;
        self.made_way = false;
    }

    /// Waits a little.
    #[inline]
    pub fn turn(&mut self) -> Turn {
        let turn = if self.spin.is_yielding() { self.make_way() } else { self.spin.turn() };
        self.looks += 1;
        self.slept = turn == Turn::Sleep;
        turn
    }

    #[cold]
    fn make_way(&mut self) -> Turn {
        let start = Instant::now();
        let turn = self.spin.turn();
        self.was_away(start.elapsed());
        turn
    }

    /// Giving the core away has taken so long.
    fn was_away(&mut self, time: Duration) {
        self.made_way |= time > NOBODY;
        if time > BUSY {
            self.beside_busy = BESIDE_BUSY;
        }
    }

    /// What was waited for has come.
    #[inline]
    pub fn end(&mut self) {
        if self.slept || self.made_way {
            self.in_vain += 1;
            self.took -= self.took / 8;
            return;
        }
        // Up at once, down by eighths: looking too long costs little, sleeping too early a lot.
        let took = self.looks.min(self.longest) * SCALE;
        self.took = took.max(self.took - self.took / 8 + took / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 96;
    const LONGEST: u32 = 400;

    /// Waits for what comes after `needed` looks; how many were made, and whether it slept.
    fn wait(patience: &mut Patience, needed: u32) -> (u32, bool) {
        patience.begin();
        let mut looks = 0;
        let slept = loop {
            if looks == needed {
                break false;
            }
            if patience.turn() == Turn::Sleep {
                break true;
            }
            looks += 1;
        };
        patience.end();
        (looks, slept)
    }

    #[test]
    fn what_comes_soon_is_waited_for_and_what_comes_late_is_not() {
        let mut patience = Patience::new(LEAST, LONGEST, 2);
        assert!((0..100).all(|_| !wait(&mut patience, 150).1));
        let wasted: Vec<u32> = (0..100).map(|_| wait(&mut patience, 10_000).0).collect();
        assert!(wasted[50..].iter().filter(|looks| **looks > LEAST + 2).count() <= 3, "{wasted:?}");
    }

    #[test]
    fn it_finds_out_when_looking_pays_again() {
        let mut patience = Patience::new(LEAST, LONGEST, 0);
        for _ in 0..100 {
            wait(&mut patience, 10_000);
        }
        let slept = (0..300).filter(|_| wait(&mut patience, 100).1).count();
        assert!(slept < 200, "slept {slept} times of 300");
        assert!((0..50).all(|_| !wait(&mut patience, 100).1));
    }

    /// A wait in which the core was given away for so long once it came to that; how many looks
    /// there were.
    fn wait_beside(patience: &mut Patience, away: Duration) -> u32 {
        patience.begin();
        let mut looks = 0;
        loop {
            if patience.spin.is_yielding() {
                patience.was_away(away);
                break;
            }
            if patience.turn() == Turn::Sleep {
                break;
            }
            looks += 1;
        }
        patience.end();
        looks
    }

    #[test]
    fn a_core_that_others_want_is_given_away_early() {
        let mut patience = Patience::new(LEAST, LONGEST, 2);
        let looks: Vec<u32> =
            (0..50).map(|_| wait_beside(&mut patience, Duration::from_micros(3))).collect();
        assert_eq!(looks[0], LONGEST);
        let many = looks[25..].iter().filter(|looks| **looks > LEAST).count();
        assert!(many <= 1, "{looks:?}");
    }

    #[test]
    fn beside_a_busy_thread_it_sleeps_instead_of_yielding() {
        let mut patience = Patience::new(LEAST, LONGEST, 2);
        wait_beside(&mut patience, Duration::from_millis(3));
        for _ in 0..BESIDE_BUSY {
            patience.begin();
            assert!(!patience.slept && patience.spin.turn() == Turn::Again);
            while patience.turn() == Turn::Again {
                assert!(!patience.spin.is_yielding());
            }
            patience.end();
        }
        patience.begin();
        assert_eq!(patience.beside_busy, 0);
        while !patience.spin.is_yielding() {
            assert_eq!(patience.turn(), Turn::Again, "it never gives the core away again");
        }
    }

    #[test]
    fn the_longest_time_is_kept() {
        let mut patience = Patience::new(LEAST, LONGEST, 3);
        for _ in 0..100 {
            assert!(wait(&mut patience, 10_000).0 <= LONGEST + 3);
            assert!(wait(&mut patience, LONGEST).0 <= LONGEST + 3);
        }
    }
}
