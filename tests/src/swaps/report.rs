//! Results of a campaign.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::coverage::Coverage;
use super::ledger::KINDS;
use super::trouble::Trouble;

/// Results of a campaign.
#[derive(Debug, Default)]
pub struct Report {
    /// Rounds played.
    pub rounds: usize,
    /// Rounds in which a process was away for longer than a lease.
    pub long_rounds: usize,
    /// Rounds in which the chosen phase of a swap was reached.
    pub moments: usize,
    /// The phases of the swaps that were hit.
    pub coverage: Coverage,
    /// Pages that were found in another rack than in the round before.
    pub moved: usize,
    /// Successful reads, writes and additions.
    pub operations: [u64; KINDS.len()],
    /// Operations that failed in a way that the promises allow while a process is away.
    pub failures: BTreeMap<Trouble, u64>,
    /// Racks that were taken for dead although neither they nor the metadata server were hit: the
    /// machine was slow.
    pub late_heartbeats: usize,
    /// The longest operation.
    pub longest: Duration,
    /// The most that an operation took beyond the time for which a process was away: in rounds in
    /// which that time was at most a lease, and in rounds in which it was longer.
    pub beyond: [Duration; 2],
    /// Pools at whose end nothing was in use and every frame could be allocated again.
    pub emptied: usize,
    /// Violations.
    pub problems: Vec<String>,
}

impl Report {
    /// Notes the longest operation of a round in which a process was `away` for this time.
    pub(super) fn took(&mut self, longest: Duration, away: Duration, is_long: bool) {
        self.longest = self.longest.max(longest);
        let beyond = &mut self.beyond[usize::from(is_long)];
        *beyond = (*beyond).max(longest.saturating_sub(away));
    }

    /// Adds the results of another campaign.
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.long_rounds += other.long_rounds;
        self.moments += other.moments;
        self.coverage.add(&other.coverage);
        self.moved += other.moved;
        for (own, others) in self.operations.iter_mut().zip(other.operations) {
            *own += others;
        }
        for (trouble, times) in other.failures {
            *self.failures.entry(trouble).or_default() += times;
        }
        self.late_heartbeats += other.late_heartbeats;
        self.longest = self.longest.max(other.longest);
        for (own, others) in self.beyond.iter_mut().zip(other.beyond) {
            *own = (*own).max(others);
        }
        self.emptied += other.emptied;
        self.problems.extend(other.problems);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, long_rounds, moments, late_heartbeats, .. } = self;
        writeln!(f, "{rounds} rounds: {moments} of them hit a swap in a chosen phase,")?;
        writeln!(f, "in {long_rounds} somebody was away for longer than a lease")?;
        writeln!(f, "{}", self.coverage)?;
        writeln!(f, "{} pages changed their rack between rounds", self.moved)?;
        let [reads, writes, additions] = self.operations;
        writeln!(
            f,
            "{reads} reads, {writes} writes, {additions} additions; the longest took {:?},",
            self.longest
        )?;
        let [short, long] = self.beyond;
        writeln!(
            f,
            "{short:?} more than anybody was away; where that was longer than a lease, {long:?}"
        )?;
        for (trouble, times) in &self.failures {
            writeln!(f, "{times} operations failed while that could be: {trouble:?}")?;
        }
        writeln!(f, "{late_heartbeats} racks were taken for dead whom nobody had hit")?;
        writeln!(
            f,
            "{} pools were empty at their end, and every frame of theirs could be allocated",
            self.emptied
        )?;
        write!(f, "{} problems", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}
