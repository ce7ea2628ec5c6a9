//! Whose absence may be noticed in a round: who was hit, and whom the metadata server took for
//! dead.

use std::path::PathBuf;

use super::blows::Away;
use super::round::{LEASE, Victim};
use super::trouble::{Absent, Trouble, are_back, taken_for_dead};
use crate::pool::TestPool;
use crate::wait::{TIMEOUT, try_wait_for};

/// Whose absence may be noticed.
#[derive(Debug)]
pub(super) struct Absence {
    /// Who was hit so that it shows.
    hit: Absent,
    log: PathBuf,
    /// Bytes of the metadata server's log when the round began.
    seen: usize,
}

impl Absence {
    /// A round begins, nobody has been hit.
    pub(super) fn begin(pool: &TestPool) -> Self {
        let log = pool.dir().join("metadata.log");
        let seen = std::fs::read(&log).map_or(0, |said| said.len());
        Self { hit: Absent::default(), log, seen }
    }

    /// Somebody was away. Heartbeats come four times a lease, so a rack that stands still for less
    /// than three quarters of one is there all the time, and nobody may be told that it is not. The
    /// metadata server is waited for as long as a lease.
    pub(super) fn note(&mut self, away: &Away) {
        match away.who {
            Victim::Daemon(rack) if away.was_killed || away.time >= LEASE * 3 / 4 => {
                self.hit.racks[usize::from(rack)] = true;
            }
            Victim::MetadataServer if away.was_killed || away.time >= LEASE => {
                self.hit.metadata = true;
            }
            _ => {}
        }
    }

    /// What the metadata server has said in this round.
    fn said(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(said.get(self.seen..).unwrap_or_default()).into_owned()
    }

    fn taken_for_dead(&self) -> [bool; 2] {
        taken_for_dead(&self.said())
    }

    /// Waits until everybody knows that nobody is dead, so that the next round can't show what
    /// happened in this one; whether that came.
    pub(super) fn is_over(&self, pool: &TestPool) -> bool {
        if !self.taken_for_dead().contains(&true) {
            return true;
        }
        let knows_others = |rack| pool.try_status(rack).is_some_and(|said| said.other_frames > 0);
        let is_over = || are_back(&self.said()) && [0, 1].into_iter().all(knows_others);
        try_wait_for(TIMEOUT, || is_over().then_some(())).is_some()
    }

    /// Whether an operation of a client of rack `own` may have failed like that in this round.
    pub(super) fn allows(&self, own: u16, trouble: Trouble) -> bool {
        let dead = Absent { racks: self.taken_for_dead(), metadata: false };
        self.hit.allows(own, trouble) || dead.allows(own, trouble)
    }

    /// How many racks were taken for dead though neither they nor the metadata server had been hit.
    pub(super) fn late_heartbeats(&self) -> usize {
        if self.hit.metadata {
            return 0;
        }
        let dead = self.taken_for_dead().into_iter().zip(self.hit.racks);
        dead.filter(|(dead, hit)| *dead && !*hit).count()
    }
}
