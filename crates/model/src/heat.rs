use core::time::Duration;

/// When a page counts as hot (Rcmp, section 5.3), and how long it rests after a move.
///
/// ```
/// use core::time::Duration;
/// use rackpool_model::HeatRules;
/// assert!(HeatRules::DEFAULT.check().is_ok());
/// assert!(HeatRules { hot: 0.5, ..HeatRules::DEFAULT }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeatRules {
    /// Tl: after so long without an access the counters restart at 0.
    pub lifetime: Duration,
    /// lambda: how fast hotness fades, per second.
    pub decay: f64,
    /// Hp: hot is what is hotter than this. Nothing is cooler than 1.
    pub hot: f64,
    /// Rrw: a hot page with more reads than this per write is read-hot.
    pub read_hot: f64,
    /// How long a page that has come is not given away; doubled with each return.
    pub rest: Duration,
}

/// Rules that can't be meant.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HeatRulesError {
    /// The lifetime is zero.
    #[error("the lifetime of hotness is 0: give the time after which a page counts as unused")]
    NoLifetime,
    /// The lifetime is too long.
    #[error("a lifetime of hotness of {0:?} is too long: give at most 7 days")]
    Lifetime(Duration),
    /// The rest is too long.
    #[error("a rest of {0:?} after a move is too long: give at most a day")]
    Rest(Duration),
    /// The decay is negative or no number.
    #[error("hotness can't decay by {0} per second: give a number from 0 on")]
    Decay(f64),
    /// The threshold is below 1 or no number.
    #[error("the threshold {0} makes every page hot: give a number from 1 on")]
    Hot(f64),
    /// The ratio is negative or no number.
    #[error("{0} is no ratio of reads to writes: give a number from 0 on")]
    ReadHot(f64),
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "wire", derive(bincode::Encode, bincode::Decode))]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, or is atomic.
    Write,
}

/// How much a rack uses a page. Times are nanoseconds of one clock of that rack; they are kept in
/// ticks of a millisecond, which wrap around after 52 days: what has not been used for
/// [`HeatRules::lifetime`] is to be dropped before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    reads: u32,
    writes: u32,
    /// The tick of the last access.
    last: u32,
}

const _: () = assert!(size_of::<Heat>() == 12, "with its page 16 B");

/// How long a page that has come to a rack is not to be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    until_ns: u64,
    returns: u32,
}

/// A rest is doubled at most this many times.
const MAX_DOUBLINGS: u32 = 6;
/// log2 of the nanoseconds of a tick.
const TICK_BITS: u32 = 20;
/// Longer lifetimes of hotness can't be told from the wrapping of ticks.
const LONGEST_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
/// Longer rests make no sense with a lifetime of at most that.
const LONGEST_REST: Duration = Duration::from_secs(86_400);

impl HeatRules {
    /// The paper's, and a rest of one second.
    pub const DEFAULT: Self = Self {
        lifetime: Duration::from_secs(100),
        decay: 0.04,
        hot: 4.0,
        read_hot: 0.9,
        rest: Duration::from_secs(1),
    };

    /// Whether the rules can be meant.
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
    /// That of a page that was never used.
    pub const UNUSED: Self = Self { reads: 0, writes: 0, last: 0 };

    /// Counts `times` accesses (more than one when accesses are sampled), and gives the hotness
    /// they found.
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

    /// exp(-lambda * dt) * (reads + writes) + 1; 1 when the page was not used for its lifetime.
    #[must_use]
    pub fn hotness(&self, rules: &HeatRules, now_ns: u64) -> f64 {
        let accesses = f64::from(self.reads) + f64::from(self.writes);
        match self.unused(now_ns) {
            // Almost always, for a page that is worth asking about.
            0 => accesses + 1.0,
            _ if self.is_expired(rules, now_ns) => 1.0,
            ticks => {
                let unused = Duration::from_nanos(u64::from(ticks) << TICK_BITS).as_secs_f64();
                libm::exp(-rules.decay * unused) * accesses + 1.0
            }
        }
    }

    /// Whether the page is hot.
    #[must_use]
    pub fn is_hot(&self, rules: &HeatRules, now_ns: u64) -> bool {
        self.hotness(rules, now_ns) > rules.hot
    }

    /// Whether the page is hot and mostly read.
    #[must_use]
    pub fn is_read_hot(&self, rules: &HeatRules, now_ns: u64) -> bool {
        self.is_hot(rules, now_ns) && self.is_mostly_read(rules)
    }

    /// Whether it has been read so much more than written that it is read-hot when it is hot.
    #[must_use]
    pub fn is_mostly_read(&self, rules: &HeatRules) -> bool {
        // Multiplied instead of divided: a page that is never written is read-hot.
        f64::from(self.reads) > rules.read_hot * f64::from(self.writes)
    }

    /// Reads and writes since the counters last restarted.
    #[must_use]
    pub const fn counts(&self) -> (u32, u32) {
        (self.reads, self.writes)
    }

    /// Whether the page has not been used for the lifetime of hotness: there is nothing to
    /// remember.
    #[must_use]
    pub fn is_expired(&self, rules: &HeatRules, now_ns: u64) -> bool {
        u64::from(self.unused(now_ns)) > nanos(rules.lifetime) >> TICK_BITS
    }

    /// Ticks since the last access; none when that lies ahead.
    fn unused(&self, now_ns: u64) -> u32 {
        let unused = tick(now_ns).wrapping_sub(self.last);
        if unused > u32::MAX / 2 { 0 } else { unused }
    }
}

impl Rest {
    /// A page has come to this rack, for the first time or after an earlier stay: it rests, the
    /// longer the more often it has come back.
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

    /// Whether the page rests and is not to be given away.
    #[must_use]
    pub const fn lasts(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Whether the page has stayed away for so long that its next arrival is like its first.
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
