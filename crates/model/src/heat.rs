use core::time::Duration;

/// Parameters of hotness (Rcmp, section 5.3), and how long a page rests after a move.
///
/// ```
/// use core::time::Duration;
/// use rackpool_model::HeatRules;
/// assert!(HeatRules::DEFAULT.check().is_ok());
/// assert!(HeatRules { hot: 0.5, ..HeatRules::DEFAULT }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatRules {
    /// Tl: a page's counters restart at 0 when it was not accessed for this time.
    pub lifetime: Duration,
    /// lambda: exponential decay of hotness, per second.
    pub decay: f64,
    /// Hp: a page is hot if its hotness exceeds this threshold. An unused page has hotness 1.
    pub hot: f64,
    /// Rrw: a hot page is read-hot if it has more reads than this per write.
    pub read_hot: f64,
    /// How long a page stays after its arrival before it may be given away. The rest doubles with
    /// each return to the same rack.
    pub rest: Duration,
}

/// A hotness rule outside its valid range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HeatRulesError {
    /// `lifetime` is zero.
    #[error("the lifetime of hotness is 0: give the time after which a page counts as unused")]
    NoLifetime,
    /// `lifetime` exceeds 7 days.
    #[error("a lifetime of hotness of {0:?} is too long: give at most 7 days")]
    Lifetime(Duration),
    /// `rest` exceeds a day.
    #[error("a rest of {0:?} after a move is too long: give at most a day")]
    Rest(Duration),
    /// `decay` is negative or not finite.
    #[error("hotness can't decay by {0} per second: give a number from 0 on")]
    Decay(f64),
    /// `hot` is below 1 or not finite.
    #[error("the threshold {0} makes every page hot: give a number from 1 on")]
    Hot(f64),
    /// `read_hot` is negative or not finite.
    #[error("{0} is no ratio of reads to writes: give a number from 0 on")]
    ReadHot(f64),
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
pub enum Access {
    /// A read.
    Read,
    /// A write or an atomic operation.
    Write,
}

/// Access counters of one page in one rack. Times are nanoseconds of one clock of that rack, stored
/// in ticks of 2^20 ns (about a millisecond). Ticks wrap around after 52 days, and an entry that
/// was unused for more than half of that looks just used; the owner must drop entries that are
/// [expired](Self::is_expired) before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    reads: u32,
    writes: u32,
    /// The tick of the last access.
    last: u32,
}

const _: () = assert!(size_of::<Heat>() == 12, "with its page 16 B");

/// The rest of a page after its arrival in a rack: until when it is not given away, and how often
/// it has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    until_ns: u64,
    returns: u32,
}

/// The rest is doubled at most this many times.
const MAX_DOUBLINGS: u32 = 6;
/// log2 of a tick in nanoseconds.
const TICK_BITS: u32 = 20;
/// The longest lifetime. A longer one could not be distinguished from a wrap-around of the ticks.
const LONGEST_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// The longest rest; a longer one makes no sense with a lifetime of at most 7 days.
const LONGEST_REST: Duration = Duration::from_secs(86_400);

impl HeatRules {
    /// The parameters of the paper, and a rest of one second.
    pub const DEFAULT: Self = Self {
        lifetime: Duration::from_secs(100),
        decay: 0.04,
        hot: 4.0,
        read_hot: 0.9,
        rest: Duration::from_secs(1),
    };

    /// Checks that every rule is in its valid range.
    ///
    /// # Errors
    /// The first rule that is not.
    pub fn check(&self) -> Result<(), HeatRulesError> {
        let at_least = |number: f64, least: f64| number.is_finite() && number >= least;
        if self.lifetime.is_zero() {
            return Err(HeatRulesError::NoLifetime);
        }
        if self.lifetime > LONGEST_LIFETIME {
            return Err(HeatRulesError::Lifetime(self.lifetime));
        }
        if self.rest > LONGEST_REST {
            return Err(HeatRulesError::Rest(self.rest));
        }
        if !at_least(self.decay, 0.0) {
            return Err(HeatRulesError::Decay(self.decay));
        }
        if !at_least(self.hot, 1.0) {
            return Err(HeatRulesError::Hot(self.hot));
        }
        if !at_least(self.read_hot, 0.0) {
            return Err(HeatRulesError::ReadHot(self.read_hot));
        }
        Ok(())
    }
}

impl Heat {
    /// The counters of a page that was never accessed.
    pub const UNUSED: Self = Self { reads: 0, writes: 0, last: 0 };

    /// Counts `times` accesses (more than one if accesses are sampled) and returns the hotness
    /// before them.
    pub fn accessed(&mut self, rules: &HeatRules, now_ns: u64, access: Access, times: u32) -> f64 {
        let hotness = self.hotness(rules, now_ns);
        if self.is_expired(rules, now_ns) || *self == Self::UNUSED {
            *self = Self { last: tick(now_ns), ..Self::UNUSED };
        }
        self.last = self.last.wrapping_add(self.unused(now_ns));
        let counter = match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        };
        *counter = counter.saturating_add(times);
        hotness
    }

    /// Returns `exp(-lambda * dt) * (reads + writes) + 1`, where `dt` is the time since the last
    /// access; 1 if the page was not accessed for its lifetime.
    #[must_use]
    pub fn hotness(&self, rules: &HeatRules, now_ns: u64) -> f64 {
        let accesses = f64::from(self.reads) + f64::from(self.writes);
        match self.unused(now_ns) {
            // The usual case for a page that a caller asks about.
            0 => accesses + 1.0,
            _ if self.is_expired(rules, now_ns) => 1.0,
            ticks => {
                let unused = Duration::from_nanos(u64::from(ticks) << TICK_BITS).as_secs_f64();
                libm::exp(-rules.decay * unused) * accesses + 1.0
            }
        }
    }

    /// Returns true if the page is hot.
    #[must_use]
    pub fn is_hot(&self, rules: &HeatRules, now_ns: u64) -> bool {
        self.hotness(rules, now_ns) > rules.hot
    }

    /// Returns true if the page is hot and mostly read.
    #[must_use]
    pub fn is_read_hot(&self, rules: &HeatRules, now_ns: u64) -> bool {
        self.is_hot(rules, now_ns) && self.is_mostly_read(rules)
    }

    /// Returns true if the ratio of reads to writes exceeds `read_hot`. Such a page is read-hot
    /// when it is hot.
    #[must_use]
    pub fn is_mostly_read(&self, rules: &HeatRules) -> bool {
        // Multiplication instead of division: a page that is never written counts as mostly read.
        f64::from(self.reads) > rules.read_hot * f64::from(self.writes)
    }

    /// Returns reads and writes since the counters last restarted.
    #[must_use]
    pub const fn counts(&self) -> (u32, u32) {
        (self.reads, self.writes)
    }

    /// Returns true if the page was not accessed for the lifetime; the owner may drop the entry.
    #[must_use]
    pub fn is_expired(&self, rules: &HeatRules, now_ns: u64) -> bool {
        u64::from(self.unused(now_ns)) > nanos(rules.lifetime) >> TICK_BITS
    }

    /// Ticks since the last access; 0 if `now_ns` is earlier than that.
    fn unused(&self, now_ns: u64) -> u32 {
        let unused = tick(now_ns).wrapping_sub(self.last);
        if unused > u32::MAX / 2 { 0 } else { unused }
    }
}

impl Rest {
    /// The rest of a page that arrives in this rack now. `earlier` is its rest at its previous
    /// arrival; unless that is forgotten, the new rest is twice as long, up to 64 times
    /// `rules.rest`.
    #[must_use]
    pub fn after_arrival(earlier: Option<Self>, rules: &HeatRules, now_ns: u64) -> Self {
        let returns = match earlier {
            Some(earlier) if !earlier.is_forgotten(rules, now_ns) => {
                earlier.returns.saturating_add(1)
            }
            _ => 0,
        };
        let rest = nanos(rules.rest).saturating_mul(1 << returns.min(MAX_DOUBLINGS));
        Self { until_ns: now_ns.saturating_add(rest), returns }
    }

    /// Returns true while the page rests and must not be given away.
    #[must_use]
    pub const fn lasts(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Returns true if the rest ended more than `rules.lifetime` ago. The next arrival then counts
    /// as the first.
    #[must_use]
    pub fn is_forgotten(&self, rules: &HeatRules, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.until_ns) > nanos(rules.lifetime)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "ticks wrap around")]
const fn tick(now_ns: u64) -> u32 {
    (now_ns >> TICK_BITS) as u32
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: HeatRules = HeatRules::DEFAULT;
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_fourth_access_in_a_row_finds_the_page_at_the_threshold_and_the_fifth_beyond_it() {
        let mut heat = Heat::default();
        let found: [f64; 5] =
            core::array::from_fn(|_| heat.accessed(&RULES, SECOND, Access::Read, 1));
        assert_eq!(found, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(heat.is_hot(&RULES, SECOND));
    }

    #[test]
    fn hotness_halves_in_the_time_that_lambda_says() {
        let mut heat = Heat::default();
        heat.accessed(&RULES, 0, Access::Write, 100);
        let half_life = 17_328_679_514; // ln 2 / 0.04 seconds
        let later = heat.hotness(&RULES, half_life);
        assert!((later - 51.0).abs() < 1e-2, "{later}");
    }

    #[test]
    fn counters_restart_after_the_lifetime_and_not_before() {
        let mut heat = Heat::default();
        heat.accessed(&RULES, 0, Access::Write, 1_000_000);
        assert!(heat.hotness(&RULES, 100 * SECOND) > 1.0);
        let later = 100 * SECOND + 2_000_000;
        assert_eq!(heat.accessed(&RULES, later, Access::Read, 1), 1.0);
        assert_eq!(heat.hotness(&RULES, later), 2.0);
    }

    #[test]
    fn read_hot_needs_heat_and_reads() {
        let mut heat = Heat::default();
        heat.accessed(&RULES, 0, Access::Read, 2);
        assert!(!heat.is_read_hot(&RULES, 0), "not hot");
        heat.accessed(&RULES, 0, Access::Read, 7);
        assert!(heat.is_read_hot(&RULES, 0), "never written");
        heat.accessed(&RULES, 0, Access::Write, 10);
        assert!(!heat.is_read_hot(&RULES, 0), "9 reads to 10 writes are not more than 0.9");
        heat.accessed(&RULES, 0, Access::Read, 1);
        assert!(heat.is_read_hot(&RULES, 0));
    }

    #[test]
    fn counters_stand_still_at_their_end_and_time_never_runs_backwards() {
        let mut heat = Heat::default();
        heat.accessed(&RULES, 5, Access::Read, u32::MAX);
        heat.accessed(&RULES, 3, Access::Read, 1);
        assert_eq!(heat.hotness(&RULES, 4), f64::from(u32::MAX) + 1.0);
    }

    #[test]
    fn hotness_goes_on_where_ticks_wrap_around() {
        let wrap = 1 << (32 + TICK_BITS);
        let mut heat = Heat::default();
        heat.accessed(&RULES, wrap - SECOND, Access::Write, 100);
        let hotness = heat.accessed(&RULES, wrap + SECOND, Access::Write, 1);
        assert!((hotness - (100.0 * libm::exp(-0.08) + 1.0)).abs() < 0.05, "{hotness}");
        assert_eq!(heat.counts(), (0, 101));
        assert!(heat.is_expired(&RULES, wrap + 102 * SECOND));
    }

    #[test]
    fn each_return_doubles_the_rest_until_the_page_has_stayed_away() {
        let (mut earlier, mut now) = (None, SECOND);
        let mut rest = |now: u64| {
            let rest = Rest::after_arrival(earlier, &RULES, now);
            earlier = Some(rest);
            (0..200).find(|s| !rest.lasts(now + s * SECOND)).unwrap()
        };
        for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(rest(now), expected);
            now += (expected + 1) * SECOND;
        }
        assert_eq!(rest(now + 101 * SECOND), 1);
    }

    #[test]
    fn rules_that_cannot_be_meant_are_refused() {
        assert_eq!(RULES.check(), Ok(()));
        for wrong in [
            HeatRules { lifetime: Duration::ZERO, ..RULES },
            HeatRules { lifetime: Duration::from_secs(8 * 86_400), ..RULES },
            HeatRules { rest: Duration::from_secs(86_401), ..RULES },
            HeatRules { decay: -0.1, ..RULES },
            HeatRules { decay: f64::NAN, ..RULES },
            HeatRules { hot: 0.9, ..RULES },
            HeatRules { hot: f64::INFINITY, ..RULES },
            HeatRules { read_hot: -1.0, ..RULES },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
    }
}
