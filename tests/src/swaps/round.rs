//! Who is hit, how, and when.

use std::fmt;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::atlas::{PHASES, Phase};
use super::ledger::WORKERS;

/// Who is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A rack's daemon.
    Daemon(u16),
    /// The metadata server.
    MetadataServer,
    /// A client.
    Worker(u64),
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// `kill -9`, and a new one after so long.
    Kill(Duration),
    /// `SIGSTOP`, and `SIGCONT` after so long.
    Stop(Duration),
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// After so long.
    After(Duration),
    /// When a swap of a rack is in a phase.
    In {
        /// The rack.
        rack: u16,
        /// The phase.
        phase: Phase,
        /// A swap that the rack asked for; else one that it serves.
        asked: bool,
    },
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Who.
    pub victim: Victim,
    /// How.
    pub blow: Blow,
    /// When.
    pub moment: Moment,
}

impl Round {
    /// A round by chance. Swaps that are given up are rare: they are not waited for.
    pub fn draw(random: &mut SmallRng) -> Self {
        let victim = match random.random_range(0..8) {
            0..=2 => Victim::Daemon(0),
            3..=4 => Victim::Daemon(1),
            5..=6 => Victim::MetadataServer,
            _ => Victim::Worker(random.random_range(0..WORKERS)),
        };
        let blow = if random.random_bool(0.7) {
            Blow::Kill(Duration::from_micros(random.random_range(0..20_000)))
        } else {
            Blow::Stop(Duration::from_micros(random.random_range(500..300_000)))
        };
        let moment = if random.random_bool(0.25) {
            Moment::After(Duration::from_micros(random.random_range(0..50_000)))
        } else {
            let rack = random.random_range(0..2);
            let phase = PHASES[random.random_range(0..3)];
            Moment::In { rack, phase, asked: random.random_bool(0.5) }
        };
        Self { victim, blow, moment }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { victim, blow, moment } = self;
        write!(f, "{victim:?} {blow:?} {moment:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn everybody_is_hit_in_every_way_and_rounds_repeat_with_their_seed() {
        let draw = |seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            (0..400).map(|_| Round::draw(&mut random)).collect::<Vec<_>>()
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
        for phase in [Phase::Open, Phase::InDoubt, Phase::Committed] {
            let is_meant =
                |round: &Round| matches!(round.moment, Moment::In { phase: p, .. } if p == phase);
            assert!(rounds.iter().any(is_meant), "{phase:?}");
        }
    }
}
