/// What to do after one more look at a condition that does not hold yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Look again.
    Again,
    /// Waiting by looking has lasted long enough: sleep.
    Sleep,
}

/// Bounded waiting by looking: at first as fast as it can, then with the processor's pause, then by
/// giving the core to whoever else wants it, and at last it says that it is time to sleep.
///
/// A blocked thread is woken in 40 to 60 us across cores on the machines we know, a cache line
/// arrives in 0.1 us: so looking pays for answers that come within microseconds, and giving way
/// in between lets a peer on the same core produce the answer at all.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    looks: u32,
    pauses: u32,
    yields: u32,
}

/// Looks without a pause: what comes within a round trip between two cores is seen at once, and not
/// up to a pause (10 to 60 ns) later.
const TIGHT: u32 = 64;

impl Spin {
    /// Looks `pauses` times, the later ones with a pause (about 40 ns) between them, then `yields`
    /// times gives the core away.
    #[must_use]
    pub const fn new(pauses: u32, yields: u32) -> Self {
        Self { looks: 0, pauses, yields }
    }

    /// Starts over, because something happened.
    pub fn reset(&mut self) {
        self.looks = 0;
    }

    /// Whether the next turn gives the core away.
    pub(crate) const fn is_yielding(&self) -> bool {
        self.looks >= self.pauses && self.looks - self.pauses < self.yields
    }

    /// Waits a little.
    pub fn turn(&mut self) -> Turn {
        if self.looks < self.pauses {
            if self.looks >= TIGHT {
                core::hint::spin_loop();
            }
        } else if self.looks < self.pauses + self.yields {
            yield_now();
        } else {
            return Turn::Sleep;
        }
        self.looks += 1;
        Turn::Again
    }
}

fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_bounded_and_starts_over() {
        let mut spin = Spin::new(2, 1);
        let turns: Vec<_> = (0..4).map(|_| spin.turn()).collect();
        assert_eq!(turns, [Turn::Again, Turn::Again, Turn::Again, Turn::Sleep]);
        spin.reset();
        assert_eq!(spin.turn(), Turn::Again);
    }
}
