//! The phases of swaps in which processes were hit: the chosen phases, and those in the records of
//! daemons that were killed or stopped.

use std::fmt;

use super::atlas::{PHASES, Part, Phase};

/// Counts for one phase, on the requesting or the serving side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Rounds that chose this phase and reached it.
    chosen: usize,
    /// Records in this phase of daemons that had been killed.
    killed: usize,
    /// Records in this phase of daemons that had been stopped.
    stopped: usize,
}

/// Counts for all phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage([[Counts; 2]; PHASES.len()]);

impl Coverage {
    fn of(&mut self, part: Part) -> &mut Counts {
        let phase = PHASES.iter().position(|phase| *phase == part.phase).unwrap_or_default();
        &mut self.0[phase][usize::from(!part.asked)]
    }

    /// Counts a round that reached its chosen phase.
    pub fn chosen(&mut self, part: Part) {
        self.of(part).chosen += 1;
    }

    /// Counts a record of a killed daemon.
    pub fn killed(&mut self, part: Part) {
        self.of(part).killed += 1;
    }

    /// Counts a record of a stopped daemon.
    pub fn stopped(&mut self, part: Part) {
        self.of(part).stopped += 1;
    }

    /// Adds the counts of another campaign.
    pub fn add(&mut self, others: &Self) {
        for (own, others) in self.0.iter_mut().flatten().zip(others.0.iter().flatten()) {
            own.chosen += others.chosen;
            own.killed += others.killed;
            own.stopped += others.stopped;
        }
    }

    /// The phases in which no chosen blow fell, or in which no daemon was killed.
    #[must_use]
    pub fn missed(&self) -> Vec<Phase> {
        let is_missed = |counts: &[Counts; 2]| {
            counts.iter().all(|of| of.chosen == 0) || counts.iter().all(|of| of.killed == 0)
        };
        let missed = PHASES.iter().zip(&self.0).filter(|(_, counts)| is_missed(counts));
        missed.map(|(phase, _)| *phase).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<18} {:>8} {:>8} {:>8}", "phase", "chosen", "killed", "stopped")?;
        for (phase, counts) in PHASES.iter().zip(&self.0) {
            for (Counts { chosen, killed, stopped }, role) in counts.iter().zip(["asked", "served"])
            {
                let name = format!("{phase:?}, {role}");
                write!(f, "\n{name:<18} {chosen:>8} {killed:>8} {stopped:>8}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_hit_when_it_was_chosen_and_a_daemon_died_in_it() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.missed(), PHASES);
        for (phase, asked) in PHASES.into_iter().zip([true, false, true, false]) {
            coverage.chosen(Part { phase, asked });
        }
        assert_eq!(coverage.missed(), PHASES, "nobody died in any");
        let mut deaths = Coverage::default();
        for phase in [Phase::Open, Phase::InDoubt, Phase::GivenUp] {
            deaths.killed(Part { phase, asked: true });
        }
        deaths.stopped(Part { phase: Phase::Committed, asked: true });
        coverage.add(&deaths);
        assert_eq!(coverage.missed(), [Phase::Committed]);
        coverage.killed(Part { phase: Phase::Committed, asked: false });
        assert_eq!(coverage.missed(), []);
        let shown = coverage.to_string();
        assert!(shown.contains("\nGivenUp, served           1        0        0"), "{shown}");
        assert!(shown.contains("\nCommitted, asked          1        0        1"), "{shown}");
    }
}
