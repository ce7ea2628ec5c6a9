//! The victim of a round, the way it is hit, and the time.

use std::fmt;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::atlas::{PHASES, Part};
use super::ledger::WORKERS;

/// The time for which a rack counts as alive without a heartbeat.
pub const LEASE: Duration = Duration::from_millis(500);
/// The most time that a busy machine may take to start a daemon, or to give a thread a core.
const BUSY: Duration = Duration::from_secs(4);

/// The process that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A rack's daemon.
    Daemon(u16),
    /// The metadata server.
    MetadataServer,
    /// A client.
    Worker(u64),
}

/// How the victim is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// `kill -9`, and a restart after this time.
    Kill(Duration),
    /// `SIGSTOP`, and `SIGCONT` after this time.
    Stop(Duration),
}

/// When the victim is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// After this time.
    After(Duration),
    /// When a rack has this part in a swap.
    In {
        /// The rack.
        rack: u16,
        /// Its part.
        part: Part,
    },
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The process that is hit.
    pub victim: Victim,
    /// How it is hit.
    pub blow: Blow,
    /// When it is hit.
    pub at: KillPoint,
}

impl Round {
    /// A random round. One in ten keeps the victim away for longer than a lease, so that the others
    /// take it for dead.
    pub fn draw(random: &mut SmallRng) -> Self {
        let victim = match random.random_range(0..8) {
            0..=2 => Victim::Daemon(0),
            3..=4 => Victim::Daemon(1),
            5..=6 => Victim::MetadataServer,
            _ => Victim::Worker(random.random_range(0..WORKERS)),
        };
        let is_long = random.random_bool(0.1);
        let long = LEASE.mul_f64(random.random_range(1.1..2.0));
        let blow = if random.random_bool(if is_long { 0.3 } else { 0.7 }) {
            let short = Duration::from_micros(random.random_range(0..20_000));
            Blow::Kill(if is_long { long } else { short })
        } else {
            let short = Duration::from_micros(random.random_range(500..300_000));
            Blow::Stop(if is_long { long } else { short })
        };
        let at = if random.random_bool(0.25) {
            KillPoint::After(Duration::from_micros(random.random_range(0..50_000)))
        } else {
            let phase = PHASES[random.random_range(0..PHASES.len())];
            let part = Part { phase, asked: random.random_bool(0.5) };
            KillPoint::In { rack: random.random_range(0..2), part }
        };
        Self { victim, blow, at }
    }

    /// The most time that an operation may take in a round in which a process was away for `away`.
    /// A process that is away for longer than a lease is dead and has to come back. The others
    /// detect that within a lease, fence it, and wait until its leases and operations under way
    /// have ended. That time is part of `BUSY`.
    #[must_use]
    pub fn stated(away: Duration) -> Duration {
        away + 2 * LEASE + BUSY
    }
}

impl Blow {
    /// The time for which the victim is away.
    #[must_use]
    pub const fn away(self) -> Duration {
        match self {
            Self::Kill(away) | Self::Stop(away) => away,
        }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { victim, blow, at } = self;
        write!(f, "{victim:?} {blow:?} {at:?}")
    }
}

#[cfg(test)]
mod tests {
    use rackpool_proto::lease::LeaseRules;
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn everybody_is_hit_in_every_way_and_rounds_repeat_with_their_seed() {
        let draw = |seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            (0..2_000).map(|_| Round::draw(&mut random)).collect::<Vec<_>>()
        };
        let rounds = draw(5);
        assert_eq!(rounds, draw(5));
        let victims = [Victim::Daemon(0), Victim::Daemon(1), Victim::MetadataServer];
        for victim in victims.into_iter().chain((0..WORKERS).map(Victim::Worker)) {
            let of = |blow: fn(&Blow) -> bool| {
                rounds.iter().any(|round| round.victim == victim && blow(&round.blow))
            };
            assert!(of(|blow| matches!(blow, Blow::Kill(_))), "{victim:?}");
            assert!(of(|blow| matches!(blow, Blow::Stop(_))), "{victim:?}");
        }
        for long in [false, true] {
            let is_hit = |victim: fn(&Victim) -> bool, blow: fn(&Blow) -> bool| {
                rounds.iter().any(|round| {
                    let is_long = round.blow.away() > LEASE;
                    is_long == long && victim(&round.victim) && blow(&round.blow)
                })
            };
            let victims: [fn(&Victim) -> bool; 3] = [
                |victim| matches!(victim, Victim::Daemon(_)),
                |victim| matches!(victim, Victim::MetadataServer),
                |victim| matches!(victim, Victim::Worker(_)),
            ];
            for victim in victims {
                assert!(is_hit(victim, |blow| matches!(blow, Blow::Kill(_))), "long: {long}");
                assert!(is_hit(victim, |blow| matches!(blow, Blow::Stop(_))), "long: {long}");
            }
        }
        for (phase, asked) in PHASES.into_iter().flat_map(|phase| [(phase, true), (phase, false)]) {
            let wanted = Part { phase, asked };
            let is_meant =
                |round: &Round| matches!(round.at, KillPoint::In { part, .. } if part == wanted);
            assert!(rounds.iter().any(is_meant), "{wanted:?}");
        }
    }

    #[test]
    fn what_follows_a_death_is_well_within_the_stated_time() {
        let rules = LeaseRules::of(LEASE);
        let found_out = LEASE + rules.grace + rules.good_at_home() + rules.flight;
        for away in [Duration::ZERO, LEASE, 3 * LEASE] {
            assert_eq!(Round::stated(away), away + Duration::from_secs(5));
            assert!(away + 2 * found_out < Round::stated(away), "half of it is for the machine");
        }
    }
}
